//! Whether coordinators answer. They are asked over HTTP, because Kubernetes takes 40 s to notice that a node is cut off: a coordinator
//! that has answered and then is silent for some seconds is replaced on another node. A false alarm costs a change of coordinators, during
//! which training continues.
//!
//! A connection is held to each coordinator. The system's keep-alive finds that the other end is gone, so that a thousand coordinators cost
//! no work while they answer; they are asked again now and then, since a process that hangs keeps its connections.

use crate::decide::{CoordinatorProbe, ProbeAnswer};
use crate::resource::JobRef;
use http_body_util::{BodyExt as _, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::mpsc::Sender;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// A coordinator to which a connection is held is asked this often. If its process hangs, its kubelet finds that sooner, by the liveness
/// probe; this is for a coordinator whose kubelet does not probe it. It must be shorter than `varuna_limited_listener`'s `SILENCE_MAX` (180 s), after which
/// a coordinator ends a silent connection.
const INTERVAL: Duration = Duration::from_secs(120);
/// A connection or an answer that takes longer does not come.
const DEADLINE: Duration = Duration::from_secs(2);
/// The time without a packet after which the system asks the other end, the time between questions, and their number before it gives the
/// connection up.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(3);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_TRIES: u32 = 3;
/// A coordinator that was silent for this time is replaced.
const SILENCE_MAX: Duration = Duration::from_secs(8);
/// After a connection has failed another one is tried: soon while the silence may still end in time, later from then on.
const RETRY: Duration = Duration::from_millis(500);
const RETRY_SILENT: Duration = Duration::from_secs(15);
/// Bytes of an answer.
const ANSWER_MAX: usize = 4096;

/// Whether a coordinator is heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Contact {
    /// A connection is held, and it has answered over that.
    Held,
    /// There is no connection since this time.
    Lost(Instant),
}

/// What is asked on behalf of one job.
#[derive(Debug)]
struct Target {
    job: JobRef,
    number: i64,
    address: SocketAddr,
    contact: Contact,
    has_answered: bool,
    /// Whether its silence was reported.
    is_reported: bool,
    asking: Option<AbortHandle>,
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(asking) = &self.asking {
            asking.abort();
        }
    }
}

impl Target {
    fn new(now: Instant, job: &JobRef, number: i64, address: SocketAddr) -> Target {
        Target {
            job: job.clone(),
            number,
            address,
            contact: Contact::Lost(now),
            has_answered: false,
            is_reported: false,
            asking: None,
        }
    }

    fn probe(&self, now: Instant) -> Option<CoordinatorProbe> {
        let answer = match (self.contact, self.has_answered) {
            (Contact::Held, _) => ProbeAnswer::Answers,
            (Contact::Lost(since), true) if now.duration_since(since) < SILENCE_MAX => ProbeAnswer::Answers,
            (Contact::Lost(since), false) if now.duration_since(since) < SILENCE_MAX => return None,
            (Contact::Lost(_), true) => ProbeAnswer::Silent,
            (Contact::Lost(_), false) => ProbeAnswer::NeverAnswered,
        };
        Some(CoordinatorProbe {
            number: self.number,
            answer,
        })
    }

    fn answered(&mut self) {
        self.contact = Contact::Held;
        self.has_answered = true;
        self.is_reported = false;
    }

    /// There was no answer at this time, and none since `since`. Returns the job where its coordinator has become silent by that.
    fn failed(&mut self, now: Instant, since: Instant) -> Option<JobRef> {
        if self.contact == Contact::Held {
            self.contact = Contact::Lost(since);
        }
        let answer = self.probe(now).map(|probe| probe.answer);
        let is_silent = matches!(answer, Some(ProbeAnswer::Silent | ProbeAnswer::NeverAnswered));
        (is_silent && !std::mem::replace(&mut self.is_reported, is_silent)).then(|| self.job.clone())
    }
}

type Targets = Mutex<BTreeMap<String, Target>>;

/// The coordinators that are asked, by their jobs' uids.
#[derive(Debug)]
pub struct Probes {
    targets: Arc<Targets>,
    changed: Sender<JobRef>,
}

impl Probes {
    /// Asks no coordinator yet. `changed`: where jobs are named whose coordinators have become silent.
    #[must_use]
    pub fn new(changed: Sender<JobRef>) -> Probes {
        Probes {
            targets: Arc::default(),
            changed,
        }
    }

    /// Asks a job's coordinator from now on, at this address; with another address it starts again from the beginning. None = the job
    /// has no coordinator to ask. Must be called within a runtime.
    pub fn follow(&self, uid: &str, job: &JobRef, coordinator: Option<(i64, SocketAddr)>) {
        let mut targets = self.targets.lock();
        let Some((number, address)) = coordinator else {
            targets.remove(uid);
            return;
        };
        let is_same = |t: &Target| (t.number, t.address) == (number, address);
        if targets.get(uid).is_some_and(is_same) {
            return;
        }
        let mut target = Target::new(Instant::now(), job, number, address);
        let ask = ask(
            Arc::clone(&self.targets),
            uid.to_owned(),
            number,
            address,
            self.changed.clone(),
        );
        target.asking = Some(tokio::spawn(ask).abort_handle());
        targets.insert(uid.to_owned(), target);
    }

    /// Whether a job's coordinator answers; none before that is known.
    #[must_use]
    pub fn probe(&self, uid: &str) -> Option<CoordinatorProbe> {
        self.targets.lock().get(uid)?.probe(Instant::now())
    }

    /// Forgets deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.targets.lock().retain(|uid, _| exists(uid));
    }
}

/// Asks one coordinator until it is aborted.
async fn ask(targets: Arc<Targets>, uid: String, number: i64, address: SocketAddr, changed: Sender<JobRef>) {
    let with = |act: &dyn Fn(&mut Target) -> Option<JobRef>| {
        let mut targets = targets.lock();
        let target = targets
            .get_mut(&uid)
            .filter(|t| t.number == number && t.address == address);
        target.and_then(act)
    };
    loop {
        let answered = || {
            with(&|target| {
                target.answered();
                None
            });
        };
        let error = hold(address, INTERVAL, answered).await;
        let now = Instant::now();
        // The system has tried for a while before it reported the end.
        let silent_for = match error.kind() {
            ErrorKind::TimedOut => KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_TRIES,
            _ => Duration::ZERO,
        };
        let since = now.checked_sub(silent_for).unwrap_or(now);
        let job = with(&|target| target.failed(now, since));
        let is_silent = job.is_some() || with(&|t| t.is_reported.then(|| t.job.clone())).is_some();
        if let Some(job) = job {
            tracing::warn!(%job, number, %address, %error, "the coordinator does not answer");
            // Nobody reads only when the controller has ended.
            let _ = changed.send(job).await;
        }
        sleep(if is_silent { RETRY_SILENT } else { RETRY }).await;
    }
}

/// Holds a connection to a coordinator for as long as it answers over that; calls `answered` each time. Returns how it ended.
async fn hold(address: SocketAddr, interval: Duration, answered: impl Fn()) -> Error {
    let held = async {
        let mut stream = timeout(DEADLINE, TcpStream::connect(address)).await??;
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE_IDLE)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_TRIES);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        loop {
            // The memory for HTTP exists only during a request, because there is a connection for each job.
            stream = timeout(DEADLINE, Box::pin(exchange(stream, address))).await??;
            answered();
            tokio::select! {
                () = sleep(interval) => {}
                ended = ended(&stream) => return Err(ended),
            }
        }
    };
    let result: Result<()> = held.await;
    result.err().unwrap_or_else(|| ErrorKind::Other.into())
}

/// Asks `/healthz` over a connection, and gives it back for the next time.
async fn exchange(stream: TcpStream, address: SocketAddr) -> Result<TcpStream> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(cause)?;
    let ask = async move {
        let request = Request::get("/healthz").header(HOST, address.to_string());
        let request = request.body(String::new()).map_err(Error::other)?;
        let answer = sender.send_request(request).await.map_err(cause)?;
        let is_well = answer.status().is_success();
        // To its end: only then can the connection be used again.
        let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
        body.map_err(Error::other)?;
        if is_well {
            Ok(())
        } else {
            Err(Error::from(ErrorKind::Other))
        }
    };
    // It ends when its sender is dropped.
    let connection = async { connection.without_shutdown().await.map_err(cause) };
    let ((), parts) = tokio::try_join!(ask, connection)?;
    if parts.read_buf.is_empty() {
        Ok(parts.io.into_inner())
    } else {
        Err(ErrorKind::InvalidData.into())
    }
}

/// How a connection ends over which nothing is asked.
async fn ended(stream: &TcpStream) -> Error {
    loop {
        let read = match stream.readable().await {
            Ok(()) => stream.try_read(&mut [0]),
            Err(error) => return error,
        };
        match read {
            Ok(0) => return ErrorKind::UnexpectedEof.into(),
            Ok(_) => return ErrorKind::InvalidData.into(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return error,
        }
    }
}

/// What the system has said, where that is why a connection has failed.
fn cause(error: hyper::Error) -> Error {
    let of_system = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<Error>());
    Error::new(of_system.map_or(ErrorKind::Other, Error::kind), error)
}

#[cfg(test)]
mod tests;
