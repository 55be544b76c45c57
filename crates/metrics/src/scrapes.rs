//! `/metrics` over HTTP: the metrics of a run in OpenMetrics' text form.

use crate::metrics::Metrics;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::{Router, routing};
use std::sync::Arc;
use tokio::net::TcpListener;
use varuna_limited_listener::LimitedListener;

/// Answers scrapes of `/metrics`.
pub fn routes(metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/metrics", routing::get(scrape))
        .with_state(metrics)
}

/// Answers them, and nothing else, until the listener fails. The number of connections is limited.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>) {
    if let Err(error) = axum::serve(LimitedListener::new(listener), routes(metrics)).await {
        tracing::error!(%error, "scrapes are not answered any more");
    }
}

async fn scrape(State(metrics): State<Arc<Metrics>>) -> impl IntoResponse {
    let content = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, content)], metrics.render())
}
