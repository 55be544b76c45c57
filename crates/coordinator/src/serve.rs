//! Starting a coordinator: what it is given, and the handle that comes back.

use crate::CoordinatorError;
use crate::driver::{Driver, Inbound};
use crate::folder::{Contact, Metric, RunFolder};
use crate::keeping::Keeping;
use crate::server::Service;
use crate::store::{FileStore, RecordStore};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::{oneshot, watch};
use tonic::transport::{Server, ServerTlsConfig};
use tracing::Instrument as _;
use varuna_api::Job;
use varuna_checkpoint::{Claim, Ownership, Store};
use varuna_plan::{Costs, Step};
use varuna_protocol::coordinator::{Event, Outcome, Snapshot, Timing};
use varuna_wire::MESSAGE_BYTES_MAX;
use varuna_wire::v1::coordinator_server::CoordinatorServer;

/// Inbound messages that may wait; senders wait when there are more.
const INBOUND: usize = 4096;

/// Another number of workers is wanted; answered with a sentence, or why not.
pub struct ScaleRequest {
    /// How many there shall be.
    pub workers: u32,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Result<String, String>>,
}

/// What a coordinator is started with.
pub struct Options {
    /// The job, and its file as written.
    pub job: Job,
    /// The job file's text.
    pub job_text: String,
    /// Fingerprint of the dataset, empty = not known.
    pub data_fingerprint: String,
    /// Where to listen; port 0 = any free one.
    pub bind: String,
    /// The run's token; workers and commands must know it.
    pub token: String,
    /// What the server shows of itself; without it, it talks in the clear.
    pub identity: Option<Identity>,
    /// The name of this host, where [`Control::ended`] will tell of the ends of processes on it.
    pub host: Option<String>,
    /// How many workers are started with the run, where that is known.
    pub expected_workers: Option<usize>,
    /// Deadlines.
    pub timing: Timing,
    /// Where checkpoints lie, if anywhere.
    pub checkpoints: Option<Checkpointing>,
    /// Measured costs of the job's model, checked to be of it; else they are estimated.
    pub costs: Option<Costs>,
    /// Who can start and stop workers, if anyone.
    pub scale: Option<Sender<ScaleRequest>>,
}

/// Where a run's checkpoints lie, and by what right it writes there.
pub struct Checkpointing {
    /// Where.
    pub store: Store,
    /// How many are kept.
    pub keep: usize,
    /// Who claims the place.
    pub claim: Claim,
    /// The right, where it was got before; otherwise the coordinator gets it as soon as the store answers.
    pub ownership: Option<Ownership>,
}

/// What a coordinator shows of itself to those that connect, as PEM. The certificate is of [`varuna_wire::SERVER_NAME`], and those
/// that connect trust this one alone.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity")
    }
}

/// What is known of a run's checkpoints.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Saved {
    /// Step of the newest that may be resumed from.
    pub newest: Option<Step>,
    /// Why the store could not be asked the last time.
    pub failing: Option<String>,
    /// The newest is behind by more than a few intervals, whatever the reason.
    pub stale: bool,
}

/// What watchers see.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The machine's present state.
    pub snapshot: Option<Snapshot>,
    /// The last committed step.
    pub metric: Option<Metric>,
    /// Diary entries in words, numbered; watchers remember what they have shown.
    pub diary: VecDeque<(u64, String)>,
    /// The same as they were told by the machine, with the time since the coordinator's start, numbered on their own. Of steps
    /// only the first after anything else.
    pub happened: VecDeque<(u64, Duration, Event)>,
    /// Checkpoints; none where the run has no store.
    pub saved: Option<Saved>,
}

/// What somebody else has seen of the workers of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Known {
    /// They will go.
    Leaving(String),
    /// They have ended for certain.
    Ended(String),
}

/// The handle to a running coordinator.
pub struct Control {
    /// Where it listens.
    pub address: SocketAddr,
    /// Brought up to date a few times a second.
    pub view: watch::Receiver<View>,
    /// Ends the run in an orderly way.
    pub stop: Sender<()>,
    /// Orders a checkpoint of the next step.
    pub save: Sender<()>,
    /// Takes the ids of processes of this host that have ended for certain.
    pub ended: Sender<u32>,
    /// Takes what is known of workers from elsewhere, by their names.
    pub known: Sender<Known>,
    /// How it ended.
    pub outcome: tokio::task::JoinHandle<Result<Outcome, CoordinatorError>>,
}

/// Starts a coordinator on a run folder, its record in the folder as well.
///
/// # Errors
/// It cannot listen, or the folder's record cannot be read.
pub async fn serve(options: Options, folder: RunFolder) -> Result<Control, CoordinatorError> {
    let mut store = FileStore::new(folder.path().join("record.json"));
    store.read()?;
    start(options, folder, |_| Keeping::Near(Box::new(store))).await
}

/// Starts a coordinator whose record lies elsewhere, where it may be slow to reach: the store is asked by a thread of its own.
/// The run folder holds what people read, and may be empty at each start.
///
/// # Errors
/// It cannot listen, or the folder cannot be written.
pub async fn serve_with(
    options: Options,
    folder: RunFolder,
    store: Box<dyn RecordStore>,
) -> Result<Control, CoordinatorError> {
    start(options, folder, |inbound| Keeping::far(store, inbound)).await
}

fn server(identity: Option<&Identity>) -> Result<Server, CoordinatorError> {
    let mut server = Server::builder();
    if let Some(Identity { certificate, key }) = identity {
        let identity = tonic::transport::Identity::from_pem(certificate, key);
        server = server.tls_config(ServerTlsConfig::new().identity(identity))?;
    }
    Ok(server
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(Duration::from_secs(2)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5))))
}

async fn start(
    options: Options,
    folder: RunFolder,
    store: impl FnOnce(Sender<Inbound>) -> Keeping,
) -> Result<Control, CoordinatorError> {
    let listen = |source| CoordinatorError::Listen {
        address: options.bind.clone(),
        source,
    };
    let listener = tokio::net::TcpListener::bind(&options.bind)
        .await
        .map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let contact = Contact {
        address: address.to_string(),
        token: options.token.clone(),
        pid: std::process::id(),
    };
    folder.write_contact(&contact)?;
    let (inbound, inbox) = channel(INBOUND);
    let service = Service {
        inbound: inbound.clone(),
        token: options.token.clone(),
        job_hash: options.job.spec_hash(),
        streams: Arc::new(AtomicU64::new(1)),
    };
    let service = CoordinatorServer::new(service)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let server = server(options.identity.as_ref())?
        .add_service(service)
        .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener));
    let (publish, view) = watch::channel(View::default());
    let mut driver = Driver::new(options, folder, store(inbound.clone()), publish, &inbound)?;
    let (stop, mut stopped) = channel::<()>(1);
    let (save, mut saves) = channel::<()>(1);
    let (ended, mut ends) = channel::<u32>(64);
    let (known, mut news) = channel::<Known>(64);
    // What is logged keeps the caller's fields: a process may run many coordinators.
    let work = async move {
        tokio::select! {
            outcome = driver.run(inbox) => outcome,
            result = server => {
                result?;
                Ok(Outcome::Stopped)
            }
        }
    };
    let outcome = tokio::spawn(work.in_current_span());
    tokio::spawn(async move {
        loop {
            let word = tokio::select! {
                Some(()) = stopped.recv() => Inbound::Stop,
                Some(()) = saves.recv() => Inbound::Save(oneshot::channel().0),
                Some(process) = ends.recv() => Inbound::Ended(process),
                Some(known) = news.recv() => Inbound::Known(known),
                else => return,
            };
            if inbound.send(word).await.is_err() {
                return;
            }
        }
    });
    Ok(Control {
        address,
        view,
        stop,
        save,
        ended,
        known,
        outcome,
    })
}
