//! An API server for tests, in memory: it gives prepared answers, and keeps what it was asked.

use axum::Router;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::StatusCode;
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;

/// A request that the server has received.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    /// The path, with what follows it.
    pub(crate) path: String,
    /// Null where there is none.
    pub(crate) body: Value,
}

/// All that was asked, in the order in which it was answered.
pub(crate) type ReceivedRequests = Arc<Mutex<Vec<ReceivedRequest>>>;

/// A client of a server that answers so: a code and a document, or nothing at all.
pub(crate) fn server(
    answer: impl Fn(&ReceivedRequest) -> Option<(u16, Value)> + Clone + Send + Sync + 'static,
) -> (Client, ReceivedRequests) {
    let all = ReceivedRequests::default();
    let kept = Arc::clone(&all);
    let handler = move |request: Request| {
        let (answer, kept) = (answer.clone(), Arc::clone(&kept));
        async move {
            let (parts, body) = request.into_parts();
            let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
            let asked = ReceivedRequest {
                method: parts.method.to_string(),
                path: parts.uri.to_string(),
                body: serde_json::from_slice(&body).unwrap_or_default(),
            };
            let answered = answer(&asked);
            kept.lock().push(asked);
            match answered {
                Some((code, document)) => (StatusCode::from_u16(code).unwrap(), document.to_string()),
                None => std::future::pending().await,
            }
        }
    };
    let router: Router = Router::new().fallback(handler);
    (Client::new(router, "default"), all)
}

/// A refusal as an API server words it.
pub(crate) fn refusal(code: u16, reason: &str) -> Option<(u16, Value)> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "in its words", "reason": reason, "code": code,
    });
    Some((code, status))
}
