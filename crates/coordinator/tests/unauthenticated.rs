//! A client without the token cannot hold resources at the coordinator's port: no connection for long, no stream, no memory for a message.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

mod server;

use server::{TOKEN, coordinator, status};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::channel;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;
use varuna_coordinator::Identity;
use varuna_wire::MESSAGE_BYTES_MAX;
use varuna_wire::v1::{StatusRequest, Up};

/// An unauthenticated connection ends after 5 s.
const SOON: Duration = Duration::from_secs(10);

/// Whether the other side has closed the connection.
async fn ended(mut socket: TcpStream) -> bool {
    let mut said = Vec::new();
    tokio::time::timeout(SOON, socket.read_to_end(&mut said))
        .await
        .is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_are_bounded_keep_no_one_out_and_end() {
    for identity in [None, Some(Identity::self_signed().unwrap())] {
        let temp = tempfile::TempDir::new().unwrap();
        let certificate = identity.as_ref().map(|i| i.certificate.clone());
        let (control, address) = coordinator(&temp, identity).await;
        let mut silent = Vec::new();
        for i in 0..400 {
            let mut socket = TcpStream::connect(&address).await.unwrap();
            if i % 2 == 0 && certificate.is_none() {
                // Some of them start an HTTP/2 connection and then answer nothing.
                let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
                socket.write_all(preface).await.unwrap();
            }
            silent.push(socket);
        }
        let start = Instant::now();
        status(&address, certificate.as_deref(), TOKEN).await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        let last = silent.split_off(399);
        // The oldest connections were closed in favour of new ones, long before their timeout.
        let start = Instant::now();
        for socket in silent.drain(..140) {
            assert!(ended(socket).await);
        }
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
        for socket in silent.into_iter().chain(last) {
            assert!(ended(socket).await, "it may not stay");
        }
        control.outcome.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_without_token_is_refused_unread() {
    let temp = tempfile::TempDir::new().unwrap();
    let (control, address) = coordinator(&temp, None).await;
    let mut client = varuna_wire::connect(&address, None, "wrong").await.unwrap();
    // A stream whose first message never comes. The call does not wait for it.
    let (_open, requests) = channel::<Up>(1);
    let start = Instant::now();
    let refused = client.attach(ReceiverStream::new(requests)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    // A message of half of the maximum length.
    let long = "x".repeat(MESSAGE_BYTES_MAX / 2);
    let refused = call(&address, "Status", Some("wrong"), long).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    control.outcome.abort();
}

/// The methods of the published protocol, read from its descriptor.
fn methods() -> Vec<&'static str> {
    let proto = include_str!("../../wire/proto/varuna/v1/coordinator.proto");
    let rpcs = proto.lines().filter_map(|line| line.trim().strip_prefix("rpc "));
    rpcs.map(|rpc| rpc.split_once('(').unwrap().0).collect()
}

/// Calls a method by its published name, with the token under its published name. The message is a string in a field that all requests lack
/// or ignore here.
async fn call(
    address: &str,
    method: &str,
    token: Option<&str>,
    message: String,
) -> Result<(), tonic::Status> {
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = Grpc::new(channel.connect().await.unwrap());
    client.ready().await.unwrap();
    let mut request = Request::new(message);
    if let Some(token) = token {
        let token = MetadataValue::from_bytes(token.as_bytes());
        request.metadata_mut().insert_bin("varuna-token-bin", token);
    }
    let path = format!("/varuna.v1.Coordinator/{method}").parse().unwrap();
    let codec = ProstCodec::<String, ()>::default();
    client.unary(request, path, codec).await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_requires_the_token() {
    let methods = methods();
    assert!(
        methods.contains(&"Attach") && methods.contains(&"Stop"),
        "{methods:?}"
    );
    let longer = format!("{TOKEN}x");
    let wrong = [None, Some(""), Some("wrong"), Some(&TOKEN[1..]), Some(&longer)];
    let temp = tempfile::TempDir::new().unwrap();
    let (control, address) = coordinator(&temp, None).await;
    for method in &methods {
        for token in wrong {
            // The right token within a message has no effect.
            let refused = call(&address, method, token, TOKEN.into()).await;
            let code = refused.expect_err(method).code();
            assert_eq!(code, tonic::Code::Unauthenticated, "{method} with {token:?}");
        }
    }
    // None of this has ended the run. With the token each call is let in, whatever happens to its empty message.
    status(&address, None, TOKEN).await.unwrap();
    for method in methods {
        let temp = tempfile::TempDir::new().unwrap();
        let (control, address) = coordinator(&temp, None).await;
        let code = call(&address, method, Some(TOKEN), String::new())
            .await
            .map_or_else(|refused| refused.code(), |()| tonic::Code::Ok);
        let not_reached = [tonic::Code::Unauthenticated, tonic::Code::Unimplemented];
        assert!(!not_reached.contains(&code), "{method}: {code}");
        control.outcome.abort();
    }
    control.outcome.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_shown_the_token_may_stay() {
    for identity in [None, Some(Identity::self_signed().unwrap())] {
        let temp = tempfile::TempDir::new().unwrap();
        let certificate = identity.as_ref().map(|i| i.certificate.clone());
        let (control, address) = coordinator(&temp, identity).await;
        let mut client = varuna_wire::connect(&address, certificate.as_deref(), TOKEN)
            .await
            .unwrap();
        let (_open, requests) = channel::<Up>(1);
        let start = Instant::now();
        client.status(StatusRequest {}).await.unwrap();
        // This client has the token but sends no hello: its stream ends after its own deadline, and its connection stays.
        let late = client.attach(ReceiverStream::new(requests)).await.unwrap_err();
        assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
        assert!(start.elapsed() >= Duration::from_secs(5));
        client.status(StatusRequest {}).await.unwrap();
        control.outcome.abort();
    }
}
