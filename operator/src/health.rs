//! Whether the process is alive and ready, and `/healthz`, `/readyz` and `/metrics` over HTTP.

use crate::metrics::Metrics;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::{Router, routing};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use varuna_limited_listener::LimitedListener;

/// The lease is read every two seconds. Without an answer for this time the process is not ready.
const SILENCE: Duration = Duration::from_secs(15);
/// After this time without a try the process is considered stuck.
const STUCK: Duration = Duration::from_secs(60);

/// The state of this process.
#[derive(Debug)]
pub struct Health {
    /// Metrics of the operator.
    pub metrics: Arc<Metrics>,
    tried: Mutex<Instant>,
    worked: Mutex<Instant>,
    answered: Mutex<Option<Instant>>,
    caches_filled: AtomicBool,
}

impl Health {
    /// The state of a process that has just started.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Health {
        Health {
            metrics,
            tried: Mutex::new(Instant::now()),
            worked: Mutex::new(Instant::now()),
            answered: Mutex::new(None),
            caches_filled: AtomicBool::new(false),
        }
    }

    /// The lease was read, and the API server answered or not.
    pub fn lease_tried(&self, answered: bool) {
        *self.tried.lock() = Instant::now();
        if answered {
            *self.answered.lock() = Some(Instant::now());
        }
    }

    /// The task that does the work has made progress, whether this process leads or not. The lease has its own thread.
    pub fn worked(&self) {
        *self.worked.lock() = Instant::now();
    }

    /// The caches are filled.
    pub fn caches_filled(&self) {
        self.caches_filled.store(true, Ordering::Relaxed);
    }

    /// Whether the process is alive: it still tries to read its lease, and its work makes progress, whatever the API server does.
    ///
    /// # Errors
    /// Why not.
    pub fn alive(&self) -> Result<&'static str, String> {
        self.alive_at(Instant::now())
    }

    fn alive_at(&self, now: Instant) -> Result<&'static str, String> {
        let silent = now.duration_since(*self.tried.lock());
        if silent > STUCK {
            return Err(format!("the lease was not read for {} s", silent.as_secs()));
        }
        let stands = now.duration_since(*self.worked.lock());
        if stands > STUCK {
            return Err(format!("the work stands still for {} s", stands.as_secs()));
        }
        Ok("alive")
    }

    /// Whether the process reconciles jobs, or could as soon as it leads.
    ///
    /// # Errors
    /// Why not.
    pub fn ready(&self) -> Result<&'static str, String> {
        match *self.answered.lock() {
            None => return Err("the API server has not answered yet".into()),
            Some(at) if at.elapsed() > SILENCE => {
                return Err(format!(
                    "no answer from the API server for {} s",
                    at.elapsed().as_secs()
                ));
            }
            Some(_) => {}
        }
        let leads = self.metrics.leader.get() == 1;
        // One that waits fills them as well, so that it takes over at once.
        if !self.caches_filled.load(Ordering::Relaxed) {
            return Err("the caches are not filled yet".into());
        }
        Ok(if leads { "leads" } else { "waits to take over" })
    }
}

/// Serves probes and metrics. The number of connections is limited, and silent ones end.
///
/// # Errors
/// The listener has failed.
pub async fn serve(listener: TcpListener, health: Arc<Health>) -> std::io::Result<()> {
    let router = Router::new()
        .route(
            "/healthz",
            routing::get(|State(health): State<Arc<Health>>| async move { probe(health.alive()) }),
        )
        .route(
            "/readyz",
            routing::get(|State(health): State<Arc<Health>>| async move { probe(health.ready()) }),
        )
        .route("/metrics", routing::get(metrics))
        .with_state(health);
    axum::serve(LimitedListener::new(listener), router).await
}

fn probe(result: Result<&'static str, String>) -> Result<&'static str, (StatusCode, String)> {
    result.map_err(|why| (StatusCode::SERVICE_UNAVAILABLE, why))
}

async fn metrics(State(health): State<Arc<Health>>) -> impl IntoResponse {
    let content = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, content)], health.metrics.render())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use varuna_limited_listener::CONNECTIONS_MAX;

    async fn start(health: &Arc<Health>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, Arc::clone(health)));
        address
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[test]
    fn a_process_is_alive_while_both_its_lease_and_its_work_go_on() {
        let health = Health::new(Arc::default());
        let late = Instant::now() + 2 * STUCK;
        assert!(health.alive().is_ok());
        *health.tried.lock() = late;
        assert!(
            health
                .alive_at(late)
                .unwrap_err()
                .contains("the work stands still")
        );
        *health.worked.lock() = late;
        assert!(health.alive_at(late).is_ok());
        assert!(
            health
                .alive_at(late + 2 * STUCK)
                .unwrap_err()
                .contains("the lease")
        );
    }

    #[tokio::test]
    async fn probes_say_what_is_missing_and_a_scrape_gives_all_metrics() {
        let health = Arc::new(Health::new(Arc::default()));
        let address = start(&health).await;
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let unready = get(address, "/readyz").await;
        assert!(
            unready.starts_with("HTTP/1.1 503") && unready.contains("has not answered yet"),
            "{unready}"
        );
        health.lease_tried(true);
        assert!(get(address, "/readyz").await.contains("caches are not filled"));
        health.caches_filled();
        assert!(get(address, "/readyz").await.ends_with("waits to take over"));
        health.metrics.leader.set(1);
        assert!(get(address, "/readyz").await.ends_with("leads"));
        let scraped = get(address, "/metrics").await;
        assert!(scraped.contains("application/openmetrics-text"), "{scraped}");
        assert!(
            scraped.lines().any(|l| l == "varuna_operator_leader 1"),
            "{scraped}"
        );
        assert!(scraped.trim_end().ends_with("# EOF"), "{scraped}");
        assert!(get(address, "/else").await.starts_with("HTTP/1.1 404"));
    }

    #[tokio::test]
    async fn silent_connections_make_room_for_probes() {
        let address = start(&Arc::new(Health::new(Arc::default()))).await;
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let mut byte = [0];
        let ended = tokio::time::timeout(STUCK, silent[0].read(&mut byte)).await;
        assert_eq!(ended.unwrap().unwrap(), 0, "the oldest one is closed");
    }

    /// A proxy may split a request at any place.
    #[tokio::test]
    async fn a_request_may_come_in_several_segments() {
        let address = start(&Arc::new(Health::new(Arc::default()))).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(b"GET /hea").await.unwrap();
        // When the server answers a later connection, it has read the first part.
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let rest = b"lthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(rest).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}
