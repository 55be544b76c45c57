//! A client of which some requests fail, as they do if an API server is busy or its connection breaks.

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::json;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// How a request fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The API server answers with this status code, reason and message.
    Answer(u16, &'static str, &'static str),
    /// The connection breaks.
    NoAnswer,
}

/// Requests that fail: their method, a part of their path, and how they fail.
type Failing = (Method, &'static str, Fault);

#[derive(Debug, Default)]
struct State {
    failing: Option<Failing>,
    failed_at: Vec<Instant>,
}

/// Controls which requests of a client fail, and records when they did.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<State>>);

impl Faults {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes requests with this method fail from now on. Their path must contain `part`, followed by exactly one name if `part` ends in a
    /// slash, or else by nothing.
    pub fn begin(&self, method: Method, part: &'static str, fault: Fault) {
        *self.state() = State {
            failing: Some((method, part, fault)),
            failed_at: vec![],
        };
    }

    /// Lets all requests pass from now on.
    pub fn end(&self) {
        self.state().failing = None;
    }

    /// Times of the requests that failed since the last `begin`.
    #[must_use]
    pub fn failed_at(&self) -> Vec<Instant> {
        self.state().failed_at.clone()
    }

    /// How a request fails; none if it passes.
    fn meets(&self, request: &Request<Body>) -> Option<Fault> {
        let mut state = self.state();
        let (method, part, fault) = state.failing.clone()?;
        let (before, name) = request.uri().path().rsplit_once(part)?;
        let is_whole = !before.is_empty() && !name.contains('/') && name.is_empty() != part.ends_with('/');
        (method == *request.method() && is_whole).then(|| {
            state.failed_at.push(Instant::now());
            fault
        })
    }

    /// A client that sends requests through `client`, except for those that fail here.
    #[must_use]
    pub fn client(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let faults = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (fault, client) = (faults.meets(&request), client.clone());
            async move {
                match fault {
                    None => client.send(request).await,
                    Some(Fault::Answer(code, reason, message)) => Ok(answer(code, reason, message)),
                    Some(Fault::NoAnswer) => {
                        let error = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                        Err(kube::Error::Service(Box::new(error)))
                    }
                }
            }
        });
        Client::new(service, namespace)
    }
}

fn answer(code: u16, reason: &str, message: &str) -> Response<Body> {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message,
    });
    let mut response = Response::new(Body::from(status.to_string().into_bytes()));
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response
}
