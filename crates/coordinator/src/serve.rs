//! Starts a coordinator and returns a handle to it.

use crate::admission::{Incoming, admission};
use crate::driver::Driver;
use crate::error::CoordinatorError;
use crate::inbox::{Inbound, Process, WorkerNotice};
use crate::options::{Identity, Options};
use crate::record_client::RecordClient;
use crate::server::Service;
use crate::store::{FileStore, RecordStore};
use crate::view::View;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::watch;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Server, ServerTlsConfig};
use tracing::Instrument as _;
use varuna_plan::Step;
use varuna_protocol::Record;
use varuna_protocol::coordinator::Outcome;
use varuna_run_folder::{Contact, RunFolder};
use varuna_wire::MESSAGE_BYTES_MAX;
use varuna_wire::v1::coordinator_server::CoordinatorServer;

/// How many messages the inbox holds; senders wait when it is full.
const INBOX_MAX: usize = 4096;
/// Maximum number of concurrent streams of one connection: a worker has one, a command a few.
const STREAMS_MAX: u32 = 32;
/// Maximum bytes of a request's headers: names, a path and the token.
const HEADERS_MAX: u32 = 8 << 10;

/// The handle to a running coordinator.
pub struct Control {
    /// Address at which the coordinator listens.
    pub address: SocketAddr,
    /// The state of the run, updated a few times a second.
    pub view: watch::Receiver<View>,
    /// Ends the run in order after one more checkpoint, if the job names a location for checkpoints. It is waited for as long as training
    /// goes on, the store answers and more of it comes there, half an hour at most.
    pub save_and_stop: Sender<()>,
    /// Ends the run in order, without another checkpoint.
    pub stop: Sender<()>,
    /// Ends this coordinator because the run itself is gone, as that of a deleted job. No worker is informed and nothing is recorded, but the
    /// checkpoint location is released, so that the next run need not wait for it.
    pub abandon: Sender<()>,
    /// Orders a checkpoint of the next step.
    pub save: Sender<()>,
    /// Orders more steps, given as the total number. A smaller number changes nothing.
    pub steps: Sender<u64>,
    /// Takes the locations of all known nodes by name, from the widest part to the narrowest (`zone-a/block-3`).
    pub domains: Sender<BTreeMap<String, String>>,
    /// Takes whether the job may lose its training progress, if that differs from [`Options`].
    pub allow_state_loss: Sender<bool>,
    /// Takes ids of processes of this host that have certainly ended.
    pub process_ended: Sender<u32>,
    /// Takes what the caller knows about workers, by name.
    pub notices: Sender<WorkerNotice>,
    /// The outcome of the run, once it has ended.
    pub outcome: tokio::task::JoinHandle<Result<Outcome, CoordinatorError>>,
}

/// Starts a coordinator on a run folder, with its record in that folder.
///
/// # Errors
/// The coordinator cannot listen, the folder's record cannot be read, or the run cannot have this number of steps.
pub async fn serve(options: Options, folder: RunFolder) -> Result<Control, CoordinatorError> {
    let mut store = FileStore::new(folder.files().record_path());
    check_steps(&options, &store.read()?)?;
    start(options, folder, |_| RecordClient::direct(Box::new(store))).await
}

/// Refuses a number of steps that the run can no longer have, or not without a checkpoint.
fn check_steps(options: &Options, record: &Record) -> Result<(), CoordinatorError> {
    let had = record.last_step.0.max(options.job.training.steps);
    if options.steps < record.last_step.0 {
        return Err(CoordinatorError::FewerSteps {
            asked: options.steps,
            ordered: record.last_step.0,
        });
    }
    if record.done && options.steps > had && options.checkpoints.is_none() {
        return Err(CoordinatorError::NothingToGoOnFrom {
            asked: options.steps,
            had,
        });
    }
    Ok(())
}

/// Starts a coordinator whose record is stored outside the run folder, possibly in a slow store, which a thread asks. The run folder holds
/// what people read, and may be empty at each start.
///
/// # Errors
/// The coordinator cannot listen, or the folder cannot be written.
pub async fn serve_with(
    options: Options,
    folder: RunFolder,
    store: Box<dyn RecordStore>,
) -> Result<Control, CoordinatorError> {
    start(options, folder, |inbound| {
        RecordClient::start_thread(store, inbound)
    })
    .await
}

fn server(identity: Option<&Identity>) -> Result<Server, CoordinatorError> {
    let mut server = Server::builder();
    if let Some(Identity { certificate, key }) = identity {
        let identity = tonic::transport::Identity::from_pem(certificate, key);
        server = server.tls_config(ServerTlsConfig::new().identity(identity))?;
    }
    Ok(server
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_header_list_size(HEADERS_MAX)
        .http2_keepalive_interval(Some(Duration::from_secs(2)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5))))
}

async fn start(
    options: Options,
    folder: RunFolder,
    record: impl FnOnce(Sender<Inbound>) -> RecordClient,
) -> Result<Control, CoordinatorError> {
    let listen = |source| CoordinatorError::Listen {
        address: options.bind.clone(),
        source,
    };
    let listener = tokio::net::TcpListener::bind(&options.bind)
        .await
        .map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    folder.write_contact(&Contact {
        address: address.to_string(),
        token: options.token.clone(),
        certificate: options
            .identity
            .as_ref()
            .map(|identity| identity.certificate.clone()),
        pid: std::process::id(),
    })?;
    let (inbound, inbox) = channel(INBOX_MAX);
    let host = options.host.clone().unwrap_or_default();
    let service = Service::new(inbound.clone(), options.run.clone());
    let service = CoordinatorServer::new(service)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let service = InterceptedService::new(service, admission(options.token.clone()));
    let server = server(options.identity.as_ref())?
        .add_service(service)
        .serve_with_incoming(Incoming::new(listener));
    let (watchers, view) = watch::channel(View::default());
    let mut driver = Driver::new(options, folder, record(inbound.clone()), watchers, &inbound);
    let work = async move {
        tokio::select! {
            outcome = driver.run(inbox) => outcome,
            result = server => {
                result?;
                Ok(Outcome::Stopped)
            }
        }
    };
    // Log entries keep the caller's fields: a process may run many coordinators.
    let outcome = tokio::spawn(work.in_current_span());
    Ok(Control {
        address,
        view,
        save_and_stop: forward(&inbound, 1, |()| Inbound::SaveAndStop),
        stop: forward(&inbound, 1, |()| Inbound::Stop),
        abandon: forward(&inbound, 1, |()| Inbound::Abandon),
        save: forward(&inbound, 1, |()| Inbound::Save(None)),
        steps: forward(&inbound, 1, |steps| Inbound::LastStep(Step(steps))),
        domains: forward(&inbound, 1, Inbound::Domains),
        allow_state_loss: forward(&inbound, 1, Inbound::AllowStateLoss),
        process_ended: forward(&inbound, 64, move |id| {
            Inbound::ProcessEnded(Process {
                host: host.clone(),
                id,
            })
        }),
        notices: forward(&inbound, 64, Inbound::Notice),
        outcome,
    })
}

/// A channel whose messages go to the inbox, until that is closed.
fn forward<T: Send + 'static>(
    inbound: &Sender<Inbound>,
    capacity: usize,
    message: impl Fn(T) -> Inbound + Send + 'static,
) -> Sender<T> {
    let (sender, mut queue) = channel(capacity);
    let inbound = inbound.clone();
    tokio::spawn(async move {
        while let Some(given) = queue.recv().await {
            if inbound.send(message(given)).await.is_err() {
                return;
            }
        }
    });
    sender
}
