//! Who has no token holds nothing at the coordinator's port: no connection for long, no stream, no memory for a message.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

mod server;

use server::{TOKEN, coordinator, status};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::channel;
use tokio_stream::wrappers::ReceiverStream;
use varuna_coordinator::Identity;
use varuna_wire::MESSAGE_BYTES_MAX;
use varuna_wire::v1::{StatusRequest, Up};

/// A stranger's connection has 5 s.
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
                // Some begin a conversation, and answer nothing.
                let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
                socket.write_all(preface).await.unwrap();
            }
            silent.push(socket);
        }
        let start = Instant::now();
        status(&address, certificate.as_deref(), TOKEN).await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        let last = silent.split_off(399);
        // The oldest had to make room, long before their time was up.
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
async fn a_request_without_the_token_is_refused_before_its_message_is_read() {
    let temp = tempfile::TempDir::new().unwrap();
    let (control, address) = coordinator(&temp, None).await;
    let mut client = varuna_wire::connect(&address, None, "wrong").await.unwrap();
    // A stream whose first message never comes, and which is not waited for.
    let (_open, requests) = channel::<Up>(1);
    let start = Instant::now();
    let refused = client.attach(ReceiverStream::new(requests)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    // As long a message as there may be; its own token is right.
    let long = TOKEN.repeat(MESSAGE_BYTES_MAX / TOKEN.len() / 2);
    let refused = client.status(StatusRequest { token: long }).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    let right = StatusRequest { token: TOKEN.into() };
    let refused = client.status(right).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
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
        let request = || StatusRequest { token: TOKEN.into() };
        client.status(request()).await.unwrap();
        // It has a token and says no hello: its stream ends after its own deadline, and its connection stays.
        let late = client.attach(ReceiverStream::new(requests)).await.unwrap_err();
        assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
        assert!(start.elapsed() >= Duration::from_secs(5));
        client.status(request()).await.unwrap();
        control.outcome.abort();
    }
}
