//! The stream to the coordinator: attaches, reattaches, and passes messages both ways.
//!
//! Training goes on while the stream is down; the coordinator, or its successor, is tried again until it answers.

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use varuna_protocol::Order;
use varuna_wire::{Downward, Hello, Upward, Welcome, WireError};

/// Messages that may wait in either direction. More than a few mean that the other side is stuck.
const QUEUE: usize = 1024;
/// Pauses between two attempts to attach: doubled up to a second, without end, plus a random part of up to the same length. All workers
/// lose a coordinator at the same moment. If they came back at the same moment too, they would push each other out of the places that its
/// port has for connections that have not shown the token yet.
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(20))
    .with_max_delay(Duration::from_secs(1))
    .with_jitter()
    .without_max_times();

/// What comes from the coordinator.
#[derive(Debug)]
pub enum UplinkEvent {
    /// A new stream is up. No event of an older stream follows.
    Up(Welcome),
    /// The stream ended.
    Down,
    /// An order.
    Order {
        /// The coordinator's term.
        term: u64,
        /// What the worker must do.
        order: Order,
    },
    /// The coordinator will never take this worker, with the reason.
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
// No `Debug`: it holds the token.
#[derive(Clone)]
pub struct Coordinator {
    /// `host:port`, or a URI.
    pub address: String,
    /// The certificate that it must show, as PEM. None: the stream is not encrypted.
    pub certificate: Option<String>,
    /// The run's token; empty where it has none.
    pub token: String,
}

/// Starts the task. Returns the queue to the coordinator and the queue of what comes from it.
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
    let mut backoff = BACKOFF.build();
    loop {
        match attach(&to, &mut hello, &mut outbox, &events, &mut backoff).await {
            Err(StreamError::AgentGone) => return,
            Err(error) => tracing::info!(%error, address = to.address, "no stream to the coordinator"),
            Ok(never) => match never {},
        }
        if events.send(UplinkEvent::Down).await.is_err() {
            return;
        }
        tokio::time::sleep(backoff.next().unwrap_or_default()).await;
    }
}

/// One stream from its hello to its end.
async fn attach(
    to: &Coordinator,
    hello: &mut Hello,
    outbox: &mut Receiver<Upward>,
    events: &Sender<UplinkEvent>,
    backoff: &mut ExponentialBackoff,
) -> Result<std::convert::Infallible, StreamError> {
    let mut client = varuna_wire::connect(&to.address, to.certificate.as_deref(), &to.token).await?;
    let (up, requests) = channel(QUEUE);
    let send = async |message: &Upward| up.send(message.to_wire()).await.map_err(|_| StreamError::Closed);
    // What the worker has found out about itself goes into every later hello.
    let renew = |hello: &mut Hello, newer: Hello| {
        let run = std::mem::take(&mut hello.run);
        *hello = Hello { run, ..newer };
        Upward::Hello(hello.clone())
    };
    send(&Upward::Hello(hello.clone())).await?;
    let emit = async |event| events.send(event).await.map_err(|_| StreamError::AgentGone);
    let mut orders = match client.attach(ReceiverStream::new(requests)).await {
        Ok(orders) => orders.into_inner(),
        // Another try would show the same token.
        Err(status) if status.code() == tonic::Code::Unauthenticated => {
            emit(UplinkEvent::Refused(status.message().to_owned())).await?;
            return Err(StreamError::AgentGone);
        }
        Err(status) => return Err(status.into()),
    };
    loop {
        tokio::select! {
            down = orders.message() => {
                let Some(down) = down? else { return Err(StreamError::Closed) };
                match Downward::from_wire(down)? {
                    (term, Downward::Order(order)) => emit(UplinkEvent::Order { term, order }).await?,
                    (_, Downward::Welcome(welcome)) => {
                        *backoff = BACKOFF.build();
                        hello.run.clone_from(&welcome.run);
                        // Messages for an older stream mean nothing on this one, but for what the worker says of itself.
                        while let Ok(message) = outbox.try_recv() {
                            if let Upward::Hello(newer) = message {
                                send(&renew(hello, newer)).await?;
                            }
                        }
                        emit(UplinkEvent::Up(welcome)).await?;
                    }
                    (_, Downward::Refused { reason, is_final: true }) => {
                        emit(UplinkEvent::Refused(reason)).await?;
                        return Err(StreamError::AgentGone);
                    }
                    (_, Downward::Refused { reason, .. }) => return Err(StreamError::Later(reason)),
                }
            }
            message = outbox.recv() => match message {
                Some(Upward::Hello(newer)) => send(&renew(hello, newer)).await?,
                Some(message) => send(&message).await?,
                None => return Err(StreamError::AgentGone),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn workers_reconnect_at_different_times() {
        let tries_at = |seed| -> Vec<Duration> {
            let pauses = BACKOFF.with_jitter_seed(seed).build().take(8);
            let add = |at: &mut Duration, pause| {
                *at += pause;
                Some(*at)
            };
            pauses.scan(Duration::ZERO, add).collect()
        };
        let all: Vec<_> = (0..1000).map(tries_at).collect();
        for attempt in 0..8 {
            // In slots of a hundredth of the elapsed time.
            let slot = all[0][attempt] / 100;
            let slots: BTreeSet<_> = all
                .iter()
                .map(|at| at[attempt].as_nanos() / slot.as_nanos())
                .collect();
            assert!(slots.len() > 10, "try {attempt}: {} slots", slots.len());
            let latest = all.iter().map(|at| at[attempt]).max();
            assert!(
                latest < Some(Duration::from_secs(2) * 8),
                "it goes on trying: {latest:?}"
            );
        }
    }
}
