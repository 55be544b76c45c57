//! `/healthz` and `/readyz` over plain HTTP/1.1, for probes. Answers nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A probe that takes longer is cut off.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves until the process ends. `ready` = this process reads what it watches, or waits to take over.
pub async fn serve(listener: TcpListener, ready: Arc<AtomicBool>) {
    while let Ok((stream, _)) = listener.accept().await {
        let ready = ready.load(Ordering::Relaxed);
        tokio::spawn(async move {
            // A probe that went away needs no answer.
            let _ = tokio::time::timeout(PATIENCE, answer(stream, ready)).await;
        });
    }
}

async fn answer(mut stream: TcpStream, ready: bool) -> std::io::Result<()> {
    let mut request = [0; 1024];
    let read = stream.read(&mut request).await?;
    let line = String::from_utf8_lossy(&request[..read]);
    let (code, body) = match line.split(' ').nth(1) {
        Some("/healthz") => ("200 OK", "alive"),
        Some("/readyz") if ready => ("200 OK", "ready"),
        Some("/readyz") => ("503 Service Unavailable", "the caches are not filled yet"),
        _ => ("404 Not Found", "/healthz or /readyz"),
    };
    let text = format!(
        "HTTP/1.1 {code}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await
}
