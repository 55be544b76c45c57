//! Google's XML interface in front of a fake-gcs-server, which has only the JSON interface (it answers 400 to an XML upload).
//!
//! It translates the requests of `object_store`, and stores only the parts of uploads in progress.

use crate::loopback::address;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone)]
struct Translator {
    behind: String,
    client: reqwest::Client,
    parts: Arc<Mutex<HashMap<String, BTreeMap<u32, Bytes>>>>,
}

type Words = Query<HashMap<String, String>>;

/// Starts it, and returns its address.
pub(crate) async fn start(behind: String) -> (String, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind(format!("{}:0", address()))
        .await
        .expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("a bound socket"));
    let state = Translator {
        behind,
        client: reqwest::Client::new(),
        parts: Arc::default(),
    };
    let app = Router::new()
        .route("/{bucket}", axum::routing::get(list))
        .route("/{bucket}/{*object}", axum::routing::any(object))
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(state);
    let serving = tokio::spawn(async move {
        let _ = axum::serve(listener, app).await;
    });
    (endpoint, serving)
}

/// A name, escaped for use as one part of a path.
fn escaped(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn failed(error: &reqwest::Error) -> Response {
    (StatusCode::BAD_GATEWAY, error.to_string()).into_response()
}

async fn list(
    State(translator): State<Translator>,
    Path(bucket): Path<String>,
    Query(words): Words,
) -> Response {
    let prefix = words.get("prefix").map_or("", String::as_str);
    let url = format!(
        "{}/storage/v1/b/{bucket}/o?prefix={}",
        translator.behind,
        escaped(prefix)
    );
    let answer = match translator.client.get(url).send().await {
        Ok(answer) => answer.text().await.unwrap_or_default(),
        Err(error) => return failed(&error),
    };
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap_or_default();
    let mut xml = String::from("<ListBucketResult>");
    for item in answer["items"].as_array().into_iter().flatten() {
        let text = |key: &str| item[key].as_str().unwrap_or_default().to_owned();
        let _ = write!(
            xml,
            "<Contents><Key>{}</Key><Size>{}</Size><LastModified>{}</LastModified><ETag>{}</ETag></Contents>",
            text("name"),
            text("size"),
            text("updated"),
            text("generation")
        );
    }
    xml.push_str("</ListBucketResult>");
    xml.into_response()
}

async fn object(
    State(translator): State<Translator>,
    method: Method,
    Path((bucket, name)): Path<(String, String)>,
    Query(words): Words,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Some(part) = words.get("partNumber") {
        let upload = words.get("uploadId").cloned().unwrap_or_default();
        let number = part.parse().unwrap_or(0);
        let mut parts = translator.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.entry(upload).or_default().insert(number, body);
        return [(header::ETAG, format!("\"{number}\""))].into_response();
    }
    match (method, words.get("uploadId")) {
        (Method::POST, None) => {
            let upload = format!("{bucket}/{name}");
            let xml = format!(
                "<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            );
            xml.into_response()
        }
        (Method::POST, Some(upload)) => {
            let parts = translator
                .parts
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(upload);
            let whole: Vec<u8> = parts
                .into_iter()
                .flat_map(BTreeMap::into_values)
                .flatten()
                .collect();
            let stored = translator.put(&bucket, &name, &headers, whole.into()).await;
            if stored.status().is_success() {
                return "<CompleteMultipartUploadResult><ETag>\"1\"</ETag></CompleteMultipartUploadResult>"
                    .into_response();
            }
            stored
        }
        (Method::PUT, _) => translator.put(&bucket, &name, &headers, body).await,
        (method, _) => translator.pass(method, &bucket, &name, &headers).await,
    }
}

impl Translator {
    async fn put(&self, bucket: &str, name: &str, headers: &HeaderMap, body: Bytes) -> Response {
        let condition = headers
            .get("x-goog-if-generation-match")
            .and_then(|v| v.to_str().ok());
        let condition = condition.map_or(String::new(), |c| format!("&ifGenerationMatch={c}"));
        let url = format!(
            "{}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={}{condition}",
            self.behind,
            escaped(name)
        );
        match self.client.post(url).body(body).send().await {
            Ok(answer) => {
                let status =
                    StatusCode::from_u16(answer.status().as_u16()).unwrap_or(StatusCode::BAD_GATEWAY);
                (
                    status,
                    [
                        (header::ETAG, "\"1\""),
                        (header::HeaderName::from_static("x-goog-generation"), "1"),
                    ],
                )
                    .into_response()
            }
            Err(error) => failed(&error),
        }
    }

    /// GET and HEAD of the content, and DELETE.
    async fn pass(&self, method: Method, bucket: &str, name: &str, headers: &HeaderMap) -> Response {
        let url = format!("{}/storage/v1/b/{bucket}/o/{}", self.behind, escaped(name));
        if method == Method::DELETE {
            return match self.client.delete(url).send().await {
                Ok(answer) => StatusCode::from_u16(answer.status().as_u16())
                    .unwrap_or(StatusCode::BAD_GATEWAY)
                    .into_response(),
                Err(error) => failed(&error),
            };
        }
        let facts = match self.client.get(&url).send().await {
            Ok(answer) if answer.status() == StatusCode::NOT_FOUND => {
                return StatusCode::NOT_FOUND.into_response();
            }
            Ok(answer) => answer.text().await.unwrap_or_default(),
            Err(error) => return failed(&error),
        };
        let facts: serde_json::Value = serde_json::from_str(&facts).unwrap_or_default();
        let mut request = self.client.get(format!("{url}?alt=media"));
        if let Some(range) = headers.get(header::RANGE) {
            request = request.header(header::RANGE, range.clone());
        }
        let answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) => return failed(&error),
        };
        let mut response = Response::builder().status(answer.status().as_u16());
        for name in [header::CONTENT_LENGTH, header::CONTENT_RANGE] {
            if let Some(value) = answer.headers().get(&name) {
                response = response.header(name, value.clone());
            }
        }
        response = response
            .header(
                header::LAST_MODIFIED,
                http_date(facts["updated"].as_str().unwrap_or_default()),
            )
            .header(header::ETAG, facts["generation"].as_str().unwrap_or("1"));
        let body = if method == Method::HEAD {
            Body::empty()
        } else {
            Body::from_stream(answer.bytes_stream())
        };
        response.body(body).expect("valid headers")
    }
}

/// Converts a time such as `2026-11-21T13:00:00.123Z` into the form `Sat, 21 Nov 2026 13:00:00 GMT`.
fn http_date(time: &str) -> String {
    chrono::DateTime::parse_from_rfc3339(time)
        .map(|t| {
            t.with_timezone(&chrono::Utc)
                .format("%a, %d %b %Y %H:%M:%S GMT")
                .to_string()
        })
        .unwrap_or_default()
}
