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

/// How long a coordinator may take to welcome a worker or to refuse it. It takes milliseconds, and half a minute where a thousand workers come back
/// at once. One that only keeps the connection alive hangs, and as long as it is waited for its successor is not found.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(60);

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
    #[error("the coordinator neither welcomed nor refused this worker within {0:?}")]
    Silent(Duration),
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
        let limit = WELCOME_TIMEOUT;
        match attach(&to, &mut hello, &mut outbox, &events, &mut backoff, limit).await {
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

/// One stream from its hello to its end. The coordinator has this long for its welcome.
async fn attach(
    to: &Coordinator,
    hello: &mut Hello,
    outbox: &mut Receiver<Upward>,
    events: &Sender<UplinkEvent>,
    backoff: &mut ExponentialBackoff,
    limit: Duration,
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
    let mut silence = std::pin::pin!(tokio::time::sleep(limit));
    let answer = tokio::select! {
        answer = client.attach(ReceiverStream::new(requests)) => answer,
        () = &mut silence => return Err(StreamError::Silent(limit)),
    };
    let mut orders = match answer {
        Ok(orders) => orders.into_inner(),
        // Another try would show the same token.
        Err(status) if status.code() == tonic::Code::Unauthenticated => {
            emit(UplinkEvent::Refused(status.message().to_owned())).await?;
            return Err(StreamError::AgentGone);
        }
        Err(status) => return Err(status.into()),
    };
    let mut is_welcome = false;
    loop {
        tokio::select! {
            () = &mut silence, if !is_welcome => return Err(StreamError::Silent(limit)),
            down = orders.message() => {
                let Some(down) = down? else { return Err(StreamError::Closed) };
                match Downward::from_wire(down)? {
                    (term, Downward::Order(order)) => emit(UplinkEvent::Order { term, order }).await?,
                    (_, Downward::Welcome(welcome)) => {
                        *backoff = BACKOFF.build();
                        is_welcome = true;
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
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic::{Request, Response, Status, Streaming};
    use varuna_plan::WorkerId;
    use varuna_wire::v1::coordinator_server::{Coordinator as Service, CoordinatorServer};
    use varuna_wire::v1::{self, Down, Up};

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

    /// A coordinator that hangs: in its handler, or after it has answered.
    struct Hanging {
        answers: bool,
        held: Sender<()>,
    }

    #[tonic::async_trait]
    impl Service for Hanging {
        type AttachStream = ReceiverStream<Result<Down, Status>>;

        async fn attach(&self, _: Request<Streaming<Up>>) -> Result<Response<Self::AttachStream>, Status> {
            if !self.answers {
                self.held.closed().await;
            }
            let (orders, stream) = channel(1);
            let held = self.held.clone();
            tokio::spawn(async move {
                held.closed().await;
                drop(orders);
            });
            Ok(Response::new(ReceiverStream::new(stream)))
        }

        async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
            Err(Status::unimplemented("not here"))
        }

        async fn scale(&self, _: Request<v1::ScaleRequest>) -> Result<Response<v1::ScaleReply>, Status> {
            Err(Status::unimplemented("not here"))
        }

        async fn stop(&self, _: Request<v1::StopRequest>) -> Result<Response<v1::StopReply>, Status> {
            Err(Status::unimplemented("not here"))
        }

        async fn save(&self, _: Request<v1::SaveRequest>) -> Result<Response<v1::SaveReply>, Status> {
            Err(Status::unimplemented("not here"))
        }

        async fn process_ended(
            &self,
            _: Request<v1::ProcessEndedRequest>,
        ) -> Result<Response<v1::ProcessEndedReply>, Status> {
            Err(Status::unimplemented("not here"))
        }
    }

    fn hello() -> Hello {
        Hello {
            worker: WorkerId(1),
            name: "w1".into(),
            address: "127.0.0.1:1".into(),
            node: "n".into(),
            host: "h".into(),
            pid: 1,
            hardware: None,
            workers_on_gpu: 0,
            memory_bytes: None,
            copies_bytes: None,
            scores: None,
            device: String::new(),
            speed: 1.0,
            run: String::new(),
        }
    }

    #[tokio::test]
    async fn hanging_coordinator_is_not_waited_for() {
        for answers in [false, true] {
            let (held, _holds) = channel(1);
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let to = Coordinator {
                address: listener.local_addr().unwrap().to_string(),
                certificate: None,
                token: String::new(),
            };
            let server = tonic::transport::Server::builder()
                .add_service(CoordinatorServer::new(Hanging { answers, held }))
                .serve_with_incoming(TcpListenerStream::new(listener));
            let server = tokio::spawn(server);
            let ((_reports, mut outbox), (events, _inbox)) = (channel(1), channel(1));
            let (mut hello, mut backoff) = (hello(), BACKOFF.build());
            let limit = Duration::from_millis(100);
            let attached = attach(&to, &mut hello, &mut outbox, &events, &mut backoff, limit);
            let ended = tokio::time::timeout(Duration::from_secs(60), attached).await;
            assert!(matches!(ended, Ok(Err(StreamError::Silent(_)))), "{ended:?}");
            server.abort();
        }
    }
}
