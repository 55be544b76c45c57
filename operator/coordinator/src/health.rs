//! `/healthz`, `/metrics` and the coordinator's page at `/` over HTTP. The operator asks whether the process answers, and its kubelet asks
//! whether it has started properly. The reports say what it does.

use crate::page::{Title, page};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::IntoResponse;
use axum::{Router, routing};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;
use varuna_api::crd::RunStatus;
use varuna_limited_listener::LimitedListener;
use varuna_metrics::{Metrics, scrapes};
use varuna_protocol::coordinator::RunMode;

/// A coordinator that is put in charge must read its record and write its first report within this time. If it does not, another process
/// may be able to. Until then no worker trains under it.
const START: Duration = Duration::from_secs(60);

/// The page runs no script and loads nothing, whatever texts are on it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What is shown: figures for scrapes, and for people what is reported.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Metrics of the coordinator.
    pub metrics: Arc<Metrics>,
    /// Title of the page.
    pub title: Title,
    /// The newest report; none before the coordinator is in charge.
    pub reports: watch::Receiver<Option<RunStatus>>,
    /// Progress of the start.
    pub startup: Arc<Startup>,
}

/// How the start of a coordinator goes.
#[derive(Debug, Default)]
pub struct Startup {
    /// Since when it is in charge.
    in_charge: OnceLock<Instant>,
    has_reported: AtomicBool,
}

impl Startup {
    /// Notes that this coordinator is in charge from now on.
    pub fn begin(&self, now: Instant) {
        self.in_charge.get_or_init(|| now);
    }

    /// A report is written.
    pub fn reported(&self) {
        self.has_reported.store(true, Ordering::Relaxed);
    }

    /// Whether the process is alive: a coordinator in charge must have started properly. `report`: its newest one.
    fn alive(&self, now: Instant, report: Option<&RunStatus>) -> Result<&'static str, String> {
        let is_over = |began: &Instant| now.duration_since(*began) > START;
        if !self.in_charge.get().is_some_and(is_over) {
            return Ok("alive");
        }
        if !self.has_reported.load(Ordering::Relaxed) {
            return Err(format!("no report was written within {} s", START.as_secs()));
        }
        let state = report.and_then(|report| report.state.as_ref());
        let reads_still = state.is_none_or(|state| state.run.mode == RunMode::Starting);
        let has_ended = report.is_some_and(|report| report.end.is_some());
        if reads_still && !has_ended {
            return Err(format!("the record was not read within {} s", START.as_secs()));
        }
        Ok("alive")
    }
}

/// Serves probes, scrapes and the page until the listener fails: the operator then puts another coordinator in charge. The number of
/// connections is limited, since anyone may reach the port, and workers need the process's files.
pub async fn serve(listener: TcpListener, shown: Shown) {
    let scrapes = scrapes::routes(Arc::clone(&shown.metrics));
    let router = Router::new()
        .route("/", routing::get(show))
        .route("/healthz", routing::get(probe))
        .with_state(shown)
        .merge(scrapes);
    if let Err(error) = axum::serve(LimitedListener::new(listener), router).await {
        tracing::error!(%error, "probes and scrapes are not answered any more");
    }
}

async fn probe(State(shown): State<Shown>) -> Result<&'static str, (StatusCode, String)> {
    let alive = shown
        .startup
        .alive(Instant::now(), shown.reports.borrow().as_ref());
    alive.map_err(|why| (StatusCode::SERVICE_UNAVAILABLE, why))
}

async fn show(State(shown): State<Shown>) -> impl IntoResponse {
    let report = shown.reports.borrow().clone();
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "no-store"),
    ];
    (headers, page(&shown.title, report.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpStream;
    use varuna_api::crd::RunEnd;
    use varuna_limited_listener::CONNECTIONS_MAX;
    use varuna_plan::{Generation, Step};
    use varuna_protocol::coordinator::{RunView, Snapshot};

    fn report(mode: RunMode) -> RunStatus {
        let run = RunView {
            mode,
            term: 1,
            generation: Generation(0),
            next: None,
            step: Step(0),
            last_step: Step(10),
            plan: None,
            predicted_ms: None,
            observed_ms: None,
            compute_factor: None,
            members: 0,
            min_workers: 1,
            max_workers: None,
            spare_copies: None,
        };
        RunStatus {
            state: Some(Snapshot { run, workers: vec![] }),
            ..RunStatus::default()
        }
    }

    #[test]
    fn one_that_waits_for_its_turn_is_alive_however_long_that_takes() {
        let startup = Startup::default();
        let late = Instant::now() + 100 * START;
        assert!(startup.alive(late, None).is_ok());
    }

    #[test]
    fn leader_is_alive_only_after_its_first_report() {
        let (startup, began) = (Startup::default(), Instant::now());
        startup.begin(began);
        startup.begin(began + START);
        let late = began + START + Duration::from_secs(1);
        let (starting, waiting) = (report(RunMode::Starting), report(RunMode::Waiting));
        assert!(startup.alive(began + START, None).is_ok(), "it may take a while");
        let why = startup.alive(late, Some(&waiting)).unwrap_err();
        assert!(why.contains("no report"), "{why}");
        startup.reported();
        for unread in [None, Some(&RunStatus::default()), Some(&starting)] {
            let why = startup.alive(late, unread).unwrap_err();
            assert!(why.contains("the record"), "{why}");
        }
        assert!(startup.alive(late, Some(&waiting)).is_ok());
        let ended = RunStatus {
            end: Some(RunEnd::Failed("the record is another job's".into())),
            ..RunStatus::default()
        };
        assert!(startup.alive(late, Some(&ended)).is_ok(), "it says so itself");
    }

    #[tokio::test]
    async fn silent_connections_make_room_for_probes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_publish, reports) = watch::channel(None);
        let shown = Shown {
            metrics: Arc::new(Metrics::new("space", "job")),
            title: Title {
                namespace: "space".into(),
                job: "job".into(),
                number: 1,
            },
            reports,
            startup: Arc::default(),
        };
        tokio::spawn(serve(listener, shown));
        let mut first = TcpStream::connect(address).await.unwrap();
        let mut others = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            others.push(TcpStream::connect(address).await.unwrap());
        }
        let mut byte = [0];
        let ended = tokio::time::timeout(START, first.read(&mut byte)).await;
        assert_eq!(ended.unwrap().unwrap(), 0, "the oldest one is closed");
    }
}
