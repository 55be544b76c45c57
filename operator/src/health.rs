//! `/healthz`, `/readyz` and `/metrics` over plain HTTP/1.1. Answers nothing else.

use crate::context::lock;
use crate::metrics::Metrics;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A probe that takes longer is cut off.
const PATIENCE: Duration = Duration::from_secs(5);
/// The lease is looked at every two seconds. Without an answer for so long, this process is of no use to anyone.
const SILENCE: Duration = Duration::from_secs(15);
/// Without even a try for so long, it hangs.
const STUCK: Duration = Duration::from_secs(60);

/// What the process knows of its own health.
#[derive(Debug)]
pub struct Health {
    /// Everything that is measured.
    pub metrics: Arc<Metrics>,
    tried: Mutex<Instant>,
    answered: Mutex<Option<Instant>>,
    filled: AtomicBool,
}

impl Health {
    /// Of a process that has just started.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Health {
        Health {
            metrics,
            tried: Mutex::new(Instant::now()),
            answered: Mutex::new(None),
            filled: AtomicBool::new(false),
        }
    }

    /// The lease was asked for, and the API server answered or not.
    pub fn lease(&self, answered: bool) {
        *lock(&self.tried) = Instant::now();
        if answered {
            *lock(&self.answered) = Some(Instant::now());
        }
    }

    /// This process leads, and knows all pods and nodes.
    pub fn filled(&self) {
        self.filled.store(true, Ordering::Relaxed);
    }

    /// Whether the process is alive: its own loop turns, whatever the API server does.
    ///
    /// # Errors
    /// Why not.
    pub fn alive(&self) -> Result<&'static str, String> {
        let silent = lock(&self.tried).elapsed();
        if silent > STUCK {
            return Err(format!("the lease was not looked at for {} s", silent.as_secs()));
        }
        Ok("alive")
    }

    /// Whether the process looks after jobs, or could at once.
    ///
    /// # Errors
    /// Why not.
    pub fn ready(&self) -> Result<&'static str, String> {
        match *lock(&self.answered) {
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
        if leads && !self.filled.load(Ordering::Relaxed) {
            return Err("the caches are not filled yet".into());
        }
        Ok(if leads { "leads" } else { "waits to take over" })
    }
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, health: Arc<Health>) {
    while let Ok((stream, _)) = listener.accept().await {
        let health = Arc::clone(&health);
        tokio::spawn(async move {
            // A probe that went away needs no answer.
            let _ = tokio::time::timeout(PATIENCE, answer(stream, &health)).await;
        });
    }
}

async fn answer(mut stream: TcpStream, health: &Health) -> std::io::Result<()> {
    let mut request = [0; 1024];
    let read = stream.read(&mut request).await?;
    let line = String::from_utf8_lossy(&request[..read]);
    let probe = |result: Result<&'static str, String>| match result {
        Ok(word) => ("200 OK", "text/plain", word.to_owned()),
        Err(why) => ("503 Service Unavailable", "text/plain", why),
    };
    let (code, kind, body) = match line.split(' ').nth(1) {
        Some("/healthz") => probe(health.alive()),
        Some("/readyz") => probe(health.ready()),
        Some("/metrics") => (
            "200 OK",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            health.metrics.render(),
        ),
        _ => (
            "404 Not Found",
            "text/plain",
            "/healthz, /readyz or /metrics".into(),
        ),
    };
    let head = format!(
        "HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn get(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn probes_say_what_is_missing_and_a_scrape_gives_all_metrics() {
        let health = Arc::new(Health::new(Arc::default()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, Arc::clone(&health)));
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/readyz").await.contains("has not answered yet"));
        health.lease(true);
        assert!(get(address, "/readyz").await.ends_with("waits to take over"));
        health.metrics.leader.set(1);
        assert!(get(address, "/readyz").await.contains("caches are not filled"));
        health.filled();
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
}
