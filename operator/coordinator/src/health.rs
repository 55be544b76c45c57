//! `/healthz`, `/metrics` and the coordinator's page at `/` over HTTP. The operator asks whether the process answers; what it does is in its
//! reports.

use crate::metrics::Metrics;
use crate::page::{Title, page};
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::IntoResponse;
use axum::{Router, routing};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use varuna_api::crd::RunStatus;

/// The page runs no script and loads nothing, whatever texts are on it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What is shown: figures for scrapes, and for people what is reported.
#[derive(Clone, Debug)]
pub struct Shown {
    /// What is measured.
    pub metrics: Arc<Metrics>,
    /// Whose page it is.
    pub title: Title,
    /// The newest report; none before the coordinator is in charge.
    pub reports: watch::Receiver<Option<RunStatus>>,
}

/// Serves probes, scrapes and the page, until the listener is of no use any more: the operator then puts another coordinator in charge.
pub async fn serve(listener: TcpListener, shown: Shown) {
    let router = Router::new()
        .route("/", routing::get(show))
        .route("/healthz", routing::get(|| async { "alive" }))
        .route("/metrics", routing::get(scrape))
        .with_state(shown);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "probes and scrapes are not answered any more");
    }
}

async fn scrape(State(shown): State<Shown>) -> impl IntoResponse {
    let content = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, content)], shown.metrics.render())
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
