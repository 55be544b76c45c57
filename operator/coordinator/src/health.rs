//! `/healthz` and `/metrics` over HTTP. The operator asks whether the process answers; what it does is in its reports.

use crate::metrics::Metrics;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::{Router, routing};
use std::sync::Arc;
use tokio::net::TcpListener;

/// Serves probes and scrapes.
///
/// # Errors
/// The listener is of no use any more.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>) -> std::io::Result<()> {
    let router = Router::new()
        .route("/healthz", routing::get(|| async { "alive" }))
        .route("/metrics", routing::get(scrape))
        .with_state(metrics);
    axum::serve(listener, router).await
}

async fn scrape(State(metrics): State<Arc<Metrics>>) -> impl IntoResponse {
    let content = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, content)], metrics.render())
}
