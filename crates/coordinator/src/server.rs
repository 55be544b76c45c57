//! The gRPC service: turns requests and streams into messages of the driver's inbox. Its only state is a counter of streams. The
//! `admission` module has already decided who may ask.

use crate::inbox::{DownSender, Inbound, Process, StreamNumber};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::oneshot;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};
use varuna_plan::WorkerId;
use varuna_wire::v1::coordinator_server::Coordinator;
use varuna_wire::v1::{
    Down, ProcessEndedReply, ProcessEndedRequest, SaveReply, SaveRequest, ScaleReply, ScaleRequest,
    StatusReply, StatusRequest, StopReply, StopRequest, Up,
};
use varuna_wire::{Downward, Hello, Upward, WireError};

/// How long a new stream may take to send its Hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// How many messages may wait for one worker; the stream of a worker that leaves more unread is closed.
const DOWN_MAX: usize = 256;

pub(crate) struct Service {
    inbound: Sender<Inbound>,
    run: String,
    /// Number of the next stream.
    streams: AtomicU64,
}

fn ending() -> Status {
    Status::unavailable("the run is ending")
}

impl Service {
    pub(crate) fn new(inbound: Sender<Inbound>, run: String) -> Service {
        Service {
            inbound,
            run,
            streams: AtomicU64::new(1),
        }
    }

    /// Why a worker is refused, and whether that is final.
    fn refusal(&self, hello: &Hello) -> Option<(String, bool)> {
        let other = !hello.run.is_empty() && hello.run != self.run;
        other.then(|| ("this coordinator is of another run".into(), true))
    }

    async fn attach_worker(&self, hello: Hello, mut ups: Streaming<Up>, down: DownSender) {
        let worker = hello.worker;
        let number = StreamNumber(self.streams.fetch_add(1, Ordering::Relaxed));
        let inbound = self.inbound.clone();
        if inbound
            .send(Inbound::Attached { number, hello, down })
            .await
            .is_err()
        {
            return;
        }
        tokio::spawn(async move {
            let why = follow(&mut ups, worker, number, &inbound).await;
            tracing::debug!(%worker, why, "a worker's stream ended");
            // An error means that the driver has ended.
            let _ = inbound.send(Inbound::Detached { worker, number }).await;
        });
    }
}

/// Passes a worker's messages on until its stream ends; returns why it did.
async fn follow(
    ups: &mut Streaming<Up>,
    worker: WorkerId,
    number: StreamNumber,
    inbound: &Sender<Inbound>,
) -> String {
    loop {
        match ups.next().await {
            None => return "closed".into(),
            Some(Err(status)) => return status.message().to_owned(),
            Some(Ok(up)) => match Upward::from_wire(up) {
                Ok(message) => {
                    if inbound
                        .send(Inbound::Message {
                            worker,
                            number,
                            message,
                        })
                        .await
                        .is_err()
                    {
                        return "the run is ending".into();
                    }
                }
                Err(error) => return error.to_string(),
            },
        }
    }
}

#[tonic::async_trait]
impl Coordinator for Service {
    type AttachStream = Pin<Box<dyn Stream<Item = Result<Down, Status>> + Send>>;

    async fn attach(&self, request: Request<Streaming<Up>>) -> Result<Response<Self::AttachStream>, Status> {
        let mut ups = request.into_inner();
        let (down, stream) = channel(DOWN_MAX);
        let first = tokio::time::timeout(HELLO_TIMEOUT, ups.next()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no Hello came"))?;
        let first = first
            .transpose()?
            .ok_or_else(|| Status::invalid_argument("no Hello"))?;
        let refusal = match Upward::from_wire(first) {
            Ok(Upward::Hello(hello)) => match self.refusal(&hello) {
                Some(refusal) => Some(refusal),
                None => {
                    self.attach_worker(hello, ups, down.clone()).await;
                    None
                }
            },
            Ok(_) => Some(("the first message of a stream must be Hello".into(), true)),
            // One of the two is replaced when the upgrade continues.
            Err(error @ WireError::Version { .. }) => Some((error.to_string(), false)),
            Err(error) => Some((error.to_string(), true)),
        };
        if let Some((reason, is_final)) = refusal {
            tracing::warn!(reason, "a worker is refused");
            let refused = Downward::Refused { reason, is_final }.to_wire(0);
            let _ = down.send(Ok(refused)).await;
        }
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusReply>, Status> {
        let (reply, answer) = oneshot::channel();
        self.inbound
            .send(Inbound::Status(reply))
            .await
            .map_err(|_| ending())?;
        let status = answer.await.map_err(|_| ending())?;
        let status = Some(varuna_wire::status::to_wire(&status));
        Ok(Response::new(StatusReply { status }))
    }

    async fn scale(&self, request: Request<ScaleRequest>) -> Result<Response<ScaleReply>, Status> {
        let ScaleRequest { workers } = request.into_inner();
        let (reply, answer) = oneshot::channel();
        self.inbound
            .send(Inbound::Scale(workers, reply))
            .await
            .map_err(|_| ending())?;
        let message = answer
            .await
            .map_err(|_| ending())?
            .map_err(Status::failed_precondition)?;
        Ok(Response::new(ScaleReply { message }))
    }

    async fn save(&self, _: Request<SaveRequest>) -> Result<Response<SaveReply>, Status> {
        let (reply, answer) = oneshot::channel();
        self.inbound
            .send(Inbound::Save(Some(reply)))
            .await
            .map_err(|_| ending())?;
        let step = answer.await.map_err(|_| ending())?;
        let step = step.map_err(Status::failed_precondition)?;
        Ok(Response::new(SaveReply { step }))
    }

    async fn process_ended(
        &self,
        request: Request<ProcessEndedRequest>,
    ) -> Result<Response<ProcessEndedReply>, Status> {
        let ProcessEndedRequest { host, process } = request.into_inner();
        self.inbound
            .send(Inbound::ProcessEnded(Process { host, id: process }))
            .await
            .map_err(|_| ending())?;
        Ok(Response::new(ProcessEndedReply {}))
    }

    async fn stop(&self, _: Request<StopRequest>) -> Result<Response<StopReply>, Status> {
        self.inbound.send(Inbound::Stop).await.map_err(|_| ending())?;
        Ok(Response::new(StopReply {}))
    }
}
