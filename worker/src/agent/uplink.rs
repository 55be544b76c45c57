//! The stream to the coordinator: attaches, attaches anew, passes words both ways.
//!
//! A stream that ends is not the end: training goes on, and the coordinator (or the next one) is looked for until it is found.

use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use varuna_protocol::Order;
use varuna_wire::{Downward, Hello, Upward, Welcome, WireError};

/// Words that may wait in either direction; more than a handful means that the other side is stuck.
const QUEUE: usize = 1024;
/// Between two attempts to attach; doubles from the first to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What comes from above.
#[derive(Debug)]
pub enum UplinkEvent {
    /// A new stream is up; nothing of an older one comes any more.
    Up(Welcome),
    /// The stream ended.
    Down,
    /// An order.
    Order {
        /// The coordinator's term.
        term: u64,
        /// What it wants.
        order: Order,
    },
    /// This worker is not wanted, for good.
    Refused(String),
}

/// Why one stream ended.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("cannot reach the coordinator: {0}")]
    Connect(#[from] tonic::transport::Error),
    #[error("the stream broke: {0}")]
    Broken(Box<tonic::Status>),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("the coordinator closed the stream")]
    Closed,
    #[error("the coordinator refused for now: {0}")]
    Later(String),
    #[error("the agent has ended")]
    AgentGone,
}

impl From<tonic::Status> for StreamError {
    fn from(status: tonic::Status) -> Self {
        StreamError::Broken(Box::new(status))
    }
}

/// Where the coordinator is.
#[derive(Clone, Debug)]
pub struct Coordinator {
    /// `host:port`, or a URI.
    pub address: String,
    /// The certificate that it shows, as PEM; without it the stream is in the clear.
    pub certificate: Option<String>,
}

/// Starts the task. Returns where words for the coordinator go, and where its words come from.
#[must_use]
pub fn start(to: Coordinator, hello: Hello) -> (Sender<Upward>, Receiver<UplinkEvent>) {
    let (reports, outbox) = channel(QUEUE);
    let (events, inbox) = channel(QUEUE);
    tokio::spawn(keep_attached(to, hello, outbox, events));
    (reports, inbox)
}

async fn keep_attached(
    to: Coordinator,
    mut hello: Hello,
    mut outbox: Receiver<Upward>,
    events: Sender<UplinkEvent>,
) {
    let mut backoff = BACKOFF.0;
    loop {
        match attach(&to, &mut hello, &mut outbox, &events, &mut backoff).await {
            Err(StreamError::AgentGone) => return,
            Err(error) => tracing::info!(%error, address = to.address, "no stream to the coordinator"),
            Ok(never) => match never {},
        }
        if events.send(UplinkEvent::Down).await.is_err() {
            return;
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF.1);
    }
}

/// One stream from its hello to its end.
async fn attach(
    to: &Coordinator,
    hello: &mut Hello,
    outbox: &mut Receiver<Upward>,
    events: &Sender<UplinkEvent>,
    backoff: &mut Duration,
) -> Result<std::convert::Infallible, StreamError> {
    let mut client = varuna_wire::connect(&to.address, to.certificate.as_deref()).await?;
    let (up, requests) = channel(QUEUE);
    let say = async |word: &Upward| up.send(word.to_wire()).await.map_err(|_| StreamError::Closed);
    say(&Upward::Hello(hello.clone())).await?;
    let mut orders = client.attach(ReceiverStream::new(requests)).await?.into_inner();
    let tell = async |event| events.send(event).await.map_err(|_| StreamError::AgentGone);
    loop {
        tokio::select! {
            down = orders.message() => {
                let Some(down) = down? else { return Err(StreamError::Closed) };
                match Downward::from_wire(down)? {
                    (term, Downward::Order(order)) => tell(UplinkEvent::Order { term, order }).await?,
                    (_, Downward::Welcome(welcome)) => {
                        *backoff = BACKOFF.0;
                        hello.job_hash.clone_from(&welcome.job_hash);
                        // What was meant for an older stream has no meaning on this one.
                        while outbox.try_recv().is_ok() {}
                        tell(UplinkEvent::Up(welcome)).await?;
                    }
                    (_, Downward::Refused { reason, is_final: true }) => {
                        tell(UplinkEvent::Refused(reason)).await?;
                        return Err(StreamError::AgentGone);
                    }
                    (_, Downward::Refused { reason, .. }) => return Err(StreamError::Later(reason)),
                }
            }
            word = outbox.recv() => match word {
                Some(word) => say(&word).await?,
                None => return Err(StreamError::AgentGone),
            },
        }
    }
}
