//! The gRPC service: turns streams into inbound messages for the driver. Keeps no state but a counter of streams.

use crate::driver::{Inbound, StreamNumber};
use std::pin::Pin;
use std::sync::Arc;
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
    Down, SaveReply, SaveRequest, ScaleReply, ScaleRequest, StatusReply, StatusRequest, StopReply,
    StopRequest, Up,
};
use varuna_wire::{Downward, Hello, Upward};

/// A stream that does not say Hello for so long is closed.
const HELLO: Duration = Duration::from_secs(5);
/// Orders that may wait for one worker; one that takes none for so long is cut off.
const ORDERS: usize = 256;

pub(crate) struct Service {
    pub(crate) inbound: Sender<Inbound>,
    pub(crate) token: String,
    pub(crate) job_hash: String,
    pub(crate) streams: Arc<AtomicU64>,
}

fn gone() -> Status {
    Status::unavailable("the run is ending")
}

impl Service {
    fn authorise(&self, token: &str) -> Result<(), Status> {
        let same = token.len() == self.token.len()
            && token
                .bytes()
                .zip(self.token.bytes())
                .fold(0, |d, (a, b)| d | (a ^ b))
                == 0;
        if same {
            Ok(())
        } else {
            Err(Status::unauthenticated("the token is not this run's"))
        }
    }

    /// Why a worker is not taken in, and whether trying again is of no use.
    fn objection(&self, hello: &Hello) -> Option<(String, bool)> {
        if self.authorise(&hello.token).is_err() {
            return Some(("the token is not this run's".into(), true));
        }
        let other = !hello.job_hash.is_empty() && hello.job_hash != self.job_hash;
        other.then(|| ("this coordinator runs another job now".into(), true))
    }

    async fn take_in(&self, hello: Hello, mut ups: Streaming<Up>, orders: Sender<Result<Down, Status>>) {
        let worker = hello.worker;
        let number = StreamNumber(self.streams.fetch_add(1, Ordering::Relaxed));
        let inbound = self.inbound.clone();
        if inbound
            .send(Inbound::Attached {
                number,
                hello,
                orders: orders.clone(),
            })
            .await
            .is_err()
        {
            return;
        }
        tokio::spawn(async move {
            let why = follow(&mut ups, worker, number, &inbound).await;
            tracing::debug!(%worker, why, "a worker's stream ended");
            // A driver that is gone needs no word.
            let _ = inbound.send(Inbound::Detached { worker, number }).await;
        });
    }
}

/// Passes on what a worker says until its stream ends; returns why.
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
                Ok(word) => {
                    if inbound
                        .send(Inbound::Said { worker, number, word })
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
        let (orders, stream) = channel(ORDERS);
        let first = tokio::time::timeout(HELLO, ups.next()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no Hello came"))?;
        let first = first
            .transpose()?
            .ok_or_else(|| Status::invalid_argument("no Hello"))?;
        let refusal = match Upward::from_wire(first) {
            Ok(Upward::Hello(hello)) => match self.objection(&hello) {
                Some(refusal) => Some(refusal),
                None => {
                    self.take_in(hello, ups, orders.clone()).await;
                    None
                }
            },
            Ok(_) => Some(("the first message of a stream must be Hello".into(), true)),
            Err(error) => Some((error.to_string(), true)),
        };
        if let Some((reason, is_final)) = refusal {
            tracing::warn!(reason, "a worker is refused");
            let down = Downward::Refused { reason, is_final }.to_wire(0);
            let down = down.map_err(|e| Status::internal(e.to_string()))?;
            let _ = orders.send(Ok(down)).await;
        }
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusReply>, Status> {
        self.authorise(&request.get_ref().token)?;
        let (tell, answer) = oneshot::channel();
        self.inbound
            .send(Inbound::Status(tell))
            .await
            .map_err(|_| gone())?;
        let json = answer.await.map_err(|_| gone())?;
        Ok(Response::new(StatusReply { json }))
    }

    async fn scale(&self, request: Request<ScaleRequest>) -> Result<Response<ScaleReply>, Status> {
        let request = request.into_inner();
        self.authorise(&request.token)?;
        let (tell, answer) = oneshot::channel();
        self.inbound
            .send(Inbound::Scale(request.workers, tell))
            .await
            .map_err(|_| gone())?;
        let message = answer
            .await
            .map_err(|_| gone())?
            .map_err(Status::failed_precondition)?;
        Ok(Response::new(ScaleReply { message }))
    }

    async fn save(&self, request: Request<SaveRequest>) -> Result<Response<SaveReply>, Status> {
        self.authorise(&request.get_ref().token)?;
        let (tell, answer) = oneshot::channel();
        self.inbound.send(Inbound::Save(tell)).await.map_err(|_| gone())?;
        let step = answer.await.map_err(|_| gone())?;
        let step = step.map_err(Status::failed_precondition)?;
        Ok(Response::new(SaveReply { step }))
    }

    async fn stop(&self, request: Request<StopRequest>) -> Result<Response<StopReply>, Status> {
        self.authorise(&request.get_ref().token)?;
        self.inbound.send(Inbound::Stop).await.map_err(|_| gone())?;
        Ok(Response::new(StopReply {}))
    }
}
