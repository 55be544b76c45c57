//! `/healthz` and `/metrics` over HTTP. The operator asks whether the process answers; what it does is in its reports.

use crate::metrics::Metrics;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::{Router, routing};
use std::sync::Arc;
use tokio::net::TcpListener;

/// Serves probes and scrapes, until the listener is of no use any more: the operator then puts another coordinator in charge.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>) {
    let router = Router::new()
        .route("/healthz", routing::get(|| async { "alive" }))
        .route("/metrics", routing::get(scrape))
        .with_state(metrics);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "probes and scrapes are not answered any more");
    }
}

async fn scrape(State(metrics): State<Arc<Metrics>>) -> impl IntoResponse {
    let content = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, content)], metrics.render())
}
