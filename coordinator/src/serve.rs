//! Starting a coordinator: what it is given, and the handle that comes back.

use crate::CoordinatorError;
use crate::driver::{Driver, Inbound};
use crate::folder::{Contact, Metric, RunFolder};
use crate::server::Service;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::{oneshot, watch};
use varuna_api::Job;
use varuna_protocol::coordinator::{Outcome, Snapshot, Timing};
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
    /// How many workers are started with the run, where that is known.
    pub expected_workers: Option<usize>,
    /// Deadlines.
    pub timing: Timing,
    /// Who can start and stop workers, if anyone.
    pub scale: Option<Sender<ScaleRequest>>,
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
}

/// The handle to a running coordinator.
pub struct Control {
    /// Where it listens.
    pub address: SocketAddr,
    /// Brought up to date a few times a second.
    pub view: watch::Receiver<View>,
    /// Ends the run in an orderly way.
    pub stop: Sender<()>,
    /// How it ended.
    pub outcome: tokio::task::JoinHandle<Result<Outcome, CoordinatorError>>,
}

/// Starts a coordinator on a run folder.
///
/// # Errors
/// It cannot listen, or the folder's record cannot be read.
pub async fn serve(options: Options, folder: RunFolder) -> Result<Control, CoordinatorError> {
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
    let server = tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(Duration::from_secs(2)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .add_service(service)
        .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener));
    let (publish, view) = watch::channel(View::default());
    let mut driver = Driver::new(options, folder, publish)?;
    let (stop, mut stopped) = channel::<()>(1);
    let outcome = tokio::spawn(async move {
        tokio::select! {
            outcome = driver.run(inbox) => outcome,
            result = server => {
                result?;
                Ok(Outcome::Stopped)
            }
        }
    });
    tokio::spawn(async move {
        while stopped.recv().await.is_some() {
            if inbound.send(Inbound::Stop).await.is_err() {
                return;
            }
        }
    });
    Ok(Control {
        address,
        view,
        stop,
        outcome,
    })
}
