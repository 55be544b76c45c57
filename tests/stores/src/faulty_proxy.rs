//! A proxy in front of a store, which can make the store slow, failing, hanging or unreachable, and shows the phases of a save.

use crate::loopback::address;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::serve::ListenerExt;
use futures::StreamExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// How a request is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The proxy answers with this status; the request does not reach the store.
    Status(u16),
    /// The connection is reset after a part of the body was read.
    Reset,
    /// The store answers, after this delay.
    Late(Duration),
    /// The request waits, before it reaches the store, until the rule changes.
    Held,
    /// The request reaches the store, whose answer is lost: the client gets this status instead, as from a gateway, or a reset connection.
    Lost(Option<u16>),
}

type Rule = Box<dyn Fn(&str, &str) -> Option<Answer> + Send + Sync>;

#[derive(Clone)]
struct Shared {
    behind: String,
    client: reqwest::Client,
    rule: Arc<Mutex<Rule>>,
    /// Counts changes of the rule; requests that are held check the rule again.
    changes: Arc<watch::Sender<u64>>,
    seen: Arc<Mutex<Vec<(String, String)>>>,
}

/// A running proxy.
pub struct FaultyProxy {
    /// URL of the proxy: `http://address:port`.
    pub endpoint: String,
    shared: Shared,
    serving: tokio::task::JoinHandle<()>,
}

impl FaultyProxy {
    /// Starts a proxy in front of the server at `behind`. At first all requests pass.
    ///
    /// # Panics
    /// The proxy cannot listen.
    pub async fn start(behind: &str) -> FaultyProxy {
        let listener = tokio::net::TcpListener::bind(format!("{}:0", address())).await;
        let listener = listener.expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("a bound socket"));
        let shared = Shared {
            behind: behind.to_owned(),
            client: reqwest::Client::new(),
            rule: Arc::new(Mutex::new(Box::new(|_, _| None))),
            changes: Arc::new(watch::channel(0).0),
            seen: Arc::default(),
        };
        let app = Router::new().fallback(pass).with_state(shared.clone());
        // A connection that is dropped is reset.
        let listener = listener.tap_io(|io| {
            let _ = io.set_zero_linger();
        });
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        FaultyProxy {
            endpoint,
            shared,
            serving,
        }
    }

    /// Sets the rule. From the method and the path (with the query) it decides how a request is answered; with none, it passes.
    pub fn rule(&self, rule: impl Fn(&str, &str) -> Option<Answer> + Send + Sync + 'static) {
        *self.shared.rule.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(rule);
        self.shared.changes.send_modify(|n| *n += 1);
    }

    /// Lets all requests pass from now on.
    pub fn pass(&self) {
        self.rule(|_, _| None);
    }

    /// Number of requests so far with this method and this text in their path.
    #[must_use]
    pub fn seen(&self, method: &str, part: &str) -> usize {
        let seen = self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter()
            .filter(|(m, p)| m == method && p.contains(part))
            .count()
    }
}

impl Drop for FaultyProxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn answer_with(status: u16) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, "for the test").into_response()
}

/// Ends the connection without an answer.
fn reset() -> ! {
    std::panic::resume_unwind(Box::new("the connection is reset"))
}

async fn pass(State(proxy): State<Shared>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let method = parts.method.to_string();
    let path = parts
        .uri
        .path_and_query()
        .map_or(String::new(), ToString::to_string);
    let mut changes = proxy.changes.subscribe();
    proxy
        .seen
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push((method.clone(), path.clone()));
    let mut body = body.into_data_stream();
    let mut lost = None;
    loop {
        let answer = proxy.rule.lock().unwrap_or_else(PoisonError::into_inner)(&method, &path);
        match answer {
            None => break,
            Some(Answer::Status(status)) => {
                // The body is read to its end, because a client that is still sending would see a reset instead of the status.
                while body.next().await.is_some() {}
                return answer_with(status);
            }
            Some(Answer::Reset) => {
                let _ = body.next().await;
                reset();
            }
            Some(Answer::Late(time)) => {
                tokio::time::sleep(time).await;
                break;
            }
            Some(Answer::Held) => {
                // The proxy exists longer than its requests.
                let _ = changes.changed().await;
            }
            Some(Answer::Lost(instead)) => {
                lost = Some(instead);
                break;
            }
        }
    }
    let mut content = Vec::new();
    while let Some(piece) = body.next().await {
        match piece {
            Ok(piece) => content.extend_from_slice(&piece),
            Err(_) => reset(),
        }
    }
    let response = forward(&proxy, parts, content.into()).await;
    match lost {
        None => response,
        Some(Some(status)) => answer_with(status),
        Some(None) => reset(),
    }
}

/// Forwards a request with unchanged headers, because the client has signed them, including Host.
async fn forward(proxy: &Shared, parts: axum::http::request::Parts, content: Bytes) -> Response {
    let path = parts.uri.path_and_query().map_or("/", |p| p.as_str());
    let request = proxy
        .client
        .request(parts.method, format!("{}{path}", proxy.behind))
        .headers(parts.headers)
        .body(content);
    let Ok(answer) = request.send().await else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    let mut response = Response::builder().status(answer.status());
    for (name, value) in answer.headers() {
        if name != "transfer-encoding" {
            response = response.header(name, value);
        }
    }
    let body = Body::from_stream(answer.bytes_stream());
    response.body(body).expect("headers that were valid")
}
