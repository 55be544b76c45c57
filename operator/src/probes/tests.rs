use super::*;
use crate::resource::job_ref;
use axum::http::StatusCode;
use axum::{Router, routing};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc::channel;

const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

#[test]
fn a_silence_is_known_after_some_seconds_and_reported_once() {
    let (job, start) = (job_ref("n", "j"), Instant::now());
    let mut target = Target::new(start, &job, 3, ADDRESS);
    let answer = |target: &Target, now| target.probe(now).map(|p| (p.number, p.answer));
    assert_eq!(target.failed(start + RETRY, start + RETRY), None);
    assert_eq!(answer(&target, start + RETRY), None, "it may answer yet");
    let late = start + SILENCE_MAX;
    assert_eq!(target.failed(late, late), Some(job.clone()));
    assert_eq!(answer(&target, late), Some((3, ProbeAnswer::NeverAnswered)));
    target.answered();
    let later = late + INTERVAL * 10;
    assert_eq!(
        answer(&target, later),
        Some((3, ProbeAnswer::Answers)),
        "for as long as the connection is held"
    );
    // The operating system has retried for some seconds already.
    let since = later - Duration::from_secs(6);
    assert_eq!(target.failed(later, since), None);
    assert_eq!(answer(&target, later), Some((3, ProbeAnswer::Answers)));
    let silent = since + SILENCE_MAX;
    assert_eq!(
        target.failed(silent, silent),
        Some(job),
        "counted from the first silence"
    );
    assert_eq!(answer(&target, silent), Some((3, ProbeAnswer::Silent)));
    assert_eq!(target.failed(silent + RETRY, silent), None, "reported before");
}

/// A coordinator whose node is disconnected is found silent within this time, so that it is replaced within 15 s of the disconnection.
#[test]
fn a_cut_is_noticed_in_time() {
    let noticed = KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_TRIES;
    let tried_again = noticed + RETRY + DEADLINE;
    assert!(tried_again.max(SILENCE_MAX) + RETRY + DEADLINE <= Duration::from_secs(12));
}

async fn serve(status: StatusCode) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let answer = move || async move {
        count.fetch_add(1, Ordering::Relaxed);
        (status, "alive")
    };
    let router = Router::new().route("/healthz", routing::get(answer));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, asked)
}

#[tokio::test]
async fn only_the_right_answer_is_one() {
    let answers = AtomicUsize::new(0);
    let count = || {
        answers.fetch_add(1, Ordering::Relaxed);
    };
    let (address, asked) = serve(StatusCode::SERVICE_UNAVAILABLE).await;
    hold(address, INTERVAL, count).await;
    assert_eq!(
        (answers.load(Ordering::Relaxed), asked.load(Ordering::Relaxed)),
        (0, 1)
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = listener.local_addr().unwrap();
    drop(listener);
    let error = hold(closed, INTERVAL, count).await;
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    // All probes use the same connection.
    let (address, asked) = serve(StatusCode::OK).await;
    let held = hold(address, Duration::from_millis(1), count);
    let _ = timeout(Duration::from_secs(5), async {
        tokio::select! {
            _ = held => {}
            () = async { while asked.load(Ordering::Relaxed) < 3 { tokio::task::yield_now().await } } => {}
        }
    })
    .await;
    assert!(asked.load(Ordering::Relaxed) >= 3 && answers.load(Ordering::Relaxed) >= 2);
}

/// Probes a coordinator that accepts one connection, answers this many times, and then sends `last`. Returns the error and the number of
/// answers.
async fn held_by_one_connection(answers: usize, last: &[u8]) -> (ErrorKind, usize) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let once = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 512];
        for _ in 0..answers {
            assert!(stream.read(&mut request).await.unwrap() > 0);
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            stream.write_all(answer).await.unwrap();
        }
        stream.write_all(last).await.unwrap();
    };
    let answered = AtomicUsize::new(0);
    let interval = if answers > 1 {
        Duration::from_millis(1)
    } else {
        INTERVAL
    };
    let held = hold(address, interval, || {
        answered.fetch_add(1, Ordering::Relaxed);
    });
    let (error, ()) = tokio::join!(held, once);
    (error.kind(), answered.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_coordinator_that_ends_is_known_by_its_connection() {
    assert_eq!(
        held_by_one_connection(1, b"").await,
        (ErrorKind::UnexpectedEof, 1)
    );
}

#[tokio::test]
async fn a_coordinator_is_asked_over_one_connection() {
    let (_, answered) = held_by_one_connection(5, b"").await;
    assert_eq!(answered, 5);
}

#[tokio::test]
async fn what_nobody_asked_for_ends_a_connection() {
    let (error, answered) = held_by_one_connection(1, b"HTTP/1.1 200 OK\r\n\r\n").await;
    // The additional bytes may come together with the answer, while HTTP is reading, or after it.
    let is_known = matches!(error, ErrorKind::Other | ErrorKind::InvalidData);
    assert!(is_known && answered <= 1, "{error:?}, {answered} answers");
}

#[tokio::test]
async fn who_is_asked_changes_with_the_coordinator() {
    let (changed, _jobs) = channel(8);
    let (probes, job) = (Probes::new(changed), job_ref("n", "j"));
    let (first, _) = serve(StatusCode::OK).await;
    let answers = async |number| {
        let known = || probes.probe("u").map(|p| (p.number, p.answer));
        let wait = async {
            while known() != Some((number, ProbeAnswer::Answers)) {
                tokio::task::yield_now().await
            }
        };
        timeout(Duration::from_secs(10), wait).await.unwrap();
    };
    probes.follow("u", &job, Some((3, first)));
    answers(3).await;
    let (second, _) = serve(StatusCode::OK).await;
    probes.follow("u", &job, Some((4, second)));
    assert_eq!(probes.probe("u"), None, "another one has not answered yet");
    answers(4).await;
    probes.follow("u", &job, None);
    assert_eq!(probes.probe("u"), None);
}
