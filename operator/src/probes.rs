//! Whether coordinators answer. Asked over HTTP, because Kubernetes takes 40 s to notice that a node is cut off: a coordinator that answered
//! and then is silent for some seconds is replaced elsewhere. A false alarm costs a change of coordinators, during which training goes on.

use crate::decide::{CoordinatorProbe, ProbeAnswer};
use crate::resource::JobRef;
use axum::body::Body;
use axum::http::StatusCode;
use futures::{StreamExt as _, stream};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;

/// Coordinators are asked this often.
const INTERVAL: Duration = Duration::from_secs(2);
/// An answer that takes longer does not come.
const DEADLINE: Duration = Duration::from_secs(2);
/// A coordinator that was silent for this time is replaced.
const SILENCE_MAX: Duration = Duration::from_secs(8);
/// Coordinators that are asked at the same time.
const CONCURRENCY: usize = 64;

type HttpClient = Client<HttpConnector, Body>;

/// What is asked on behalf of one job.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Target {
    job: JobRef,
    number: i64,
    address: SocketAddr,
    /// Since when it is asked.
    since: Instant,
    /// When it answered last; none before its first answer.
    answered: Option<Instant>,
    /// Its silence was reported.
    silent: bool,
}

impl Target {
    fn probe(&self, now: Instant) -> Option<CoordinatorProbe> {
        let is_silent = now.duration_since(self.answered.unwrap_or(self.since)) >= SILENCE_MAX;
        let answer = match (self.answered, is_silent) {
            (Some(_), false) => ProbeAnswer::Answers,
            (Some(_), true) => ProbeAnswer::Silent,
            (None, true) => ProbeAnswer::NeverAnswered,
            (None, false) => return None,
        };
        Some(CoordinatorProbe {
            number: self.number,
            answer,
        })
    }
}

/// The coordinators that are asked, by their jobs' uids.
#[derive(Debug, Default)]
pub struct Probes(Mutex<BTreeMap<String, Target>>);

impl Probes {
    /// Asks a job's coordinator from now on, at this address; another one than before begins anew. None = nobody.
    pub fn follow(&self, uid: &str, job: &JobRef, coordinator: Option<(i64, SocketAddr)>) {
        self.follow_at(Instant::now(), uid, job, coordinator);
    }

    fn follow_at(&self, now: Instant, uid: &str, job: &JobRef, coordinator: Option<(i64, SocketAddr)>) {
        let mut targets = self.0.lock();
        let Some((number, address)) = coordinator else {
            targets.remove(uid);
            return;
        };
        let is_same = |t: &Target| (t.number, t.address) == (number, address);
        if !targets.get(uid).is_some_and(is_same) {
            let target = Target {
                job: job.clone(),
                number,
                address,
                since: now,
                answered: None,
                silent: false,
            };
            targets.insert(uid.to_owned(), target);
        }
    }

    /// Whether a job's coordinator answers; none before that is known.
    #[must_use]
    pub fn probe(&self, uid: &str) -> Option<CoordinatorProbe> {
        self.0.lock().get(uid)?.probe(Instant::now())
    }

    /// Forgets deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.0.lock().retain(|uid, _| exists(uid));
    }

    /// Asks all of them again and again; a job whose coordinator has become silent is reconciled. Never ends.
    pub async fn run(&self, reconcile: Sender<JobRef>) {
        let client: &HttpClient = &Client::builder(TokioExecutor::new()).build_http();
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let targets: Vec<(String, SocketAddr)> = {
                let targets = self.0.lock();
                targets.iter().map(|(uid, t)| (uid.clone(), t.address)).collect()
            };
            let asked = stream::iter(targets)
                .map(|(uid, address)| async move { (uid, address, answers(client, address).await) });
            let mut answers = asked.buffer_unordered(CONCURRENCY);
            while let Some((uid, address, answered)) = answers.next().await {
                if let Some(job) = self.take(&uid, address, answered, Instant::now()) {
                    // Nobody reads only when the controller has ended.
                    let _ = reconcile.send(job).await;
                }
            }
        }
    }

    /// Takes an answer, or that there was none. Returns the job where its coordinator has become silent.
    fn take(&self, uid: &str, address: SocketAddr, answered: bool, now: Instant) -> Option<JobRef> {
        let mut targets = self.0.lock();
        let target = targets.get_mut(uid).filter(|t| t.address == address)?;
        if answered {
            target.answered = Some(now);
            target.silent = false;
        }
        let answer = target.probe(now).map(|probe| probe.answer);
        let is_silent = matches!(answer, Some(ProbeAnswer::Silent | ProbeAnswer::NeverAnswered));
        (is_silent && !std::mem::replace(&mut target.silent, is_silent)).then(|| target.job.clone())
    }
}

/// Whether a coordinator answers `/healthz` with 200 in time.
async fn answers(client: &HttpClient, address: SocketAddr) -> bool {
    let Ok(uri) = format!("http://{address}/healthz").parse() else {
        return false;
    };
    match tokio::time::timeout(DEADLINE, client.get(uri)).await {
        Ok(Ok(answer)) => answer.status() == StatusCode::OK,
        Ok(Err(_)) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::job_ref;
    use axum::{Router, routing};

    const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

    #[test]
    fn a_silence_is_known_after_some_seconds_and_reported_once() {
        let (probes, job, start) = (Probes::default(), job_ref("n", "j"), Instant::now());
        let answer = |now| probes.0.lock()["u"].probe(now).map(|p| (p.number, p.answer));
        probes.follow_at(start, "u", &job, Some((3, ADDRESS)));
        assert_eq!(probes.take("u", ADDRESS, false, start + INTERVAL), None);
        assert_eq!(answer(start + INTERVAL), None, "it may answer yet");
        let late = start + SILENCE_MAX;
        assert_eq!(probes.take("u", ADDRESS, false, late), Some(job.clone()));
        assert_eq!(answer(late), Some((3, ProbeAnswer::NeverAnswered)));
        assert_eq!(probes.take("u", ADDRESS, true, late), None);
        assert_eq!(answer(late + INTERVAL), Some((3, ProbeAnswer::Answers)));
        let silent = late + SILENCE_MAX;
        assert_eq!(probes.take("u", ADDRESS, false, silent - INTERVAL), None);
        assert_eq!(probes.take("u", ADDRESS, false, silent), Some(job.clone()));
        assert_eq!(answer(silent), Some((3, ProbeAnswer::Silent)));
        assert_eq!(
            probes.take("u", ADDRESS, false, silent + INTERVAL),
            None,
            "reported before"
        );
        // Another coordinator has not answered yet, whatever the one before it did.
        probes.follow_at(silent, "u", &job, Some((4, ADDRESS)));
        assert_eq!(answer(silent + INTERVAL), None);
        probes.follow_at(silent, "u", &job, None);
        assert_eq!(probes.take("u", ADDRESS, true, silent), None);
    }

    #[tokio::test]
    async fn only_the_right_answer_is_one() {
        let client: HttpClient = Client::builder(TokioExecutor::new()).build_http();
        let serve = |status: StatusCode| async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let router = Router::new().route("/healthz", routing::get(move || async move { status }));
            tokio::spawn(async move { axum::serve(listener, router).await });
            address
        };
        assert!(answers(&client, serve(StatusCode::OK).await).await);
        assert!(!answers(&client, serve(StatusCode::SERVICE_UNAVAILABLE).await).await);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = listener.local_addr().unwrap();
        drop(listener);
        assert!(!answers(&client, closed).await);
    }
}
