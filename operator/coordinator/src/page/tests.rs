//! The page as a browser gets it over HTTP.

use super::*;
use crate::health::{Shown, Startup, serve};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use varuna_api::crd::{Recovery, RunMessage};
use varuna_metrics::Metrics;
use varuna_plan::spare_copies::SpareCopyDecision;
use varuna_plan::{Generation, SegmentRange, Step, WorkerId};
use varuna_protocol::coordinator::{LeftOut, LeftOutReason, RunMode, Snapshot, SpareCopiesVerdict};

fn worker(name: &str, pipeline: Option<usize>) -> WorkerView {
    WorkerView {
        id: WorkerId(1),
        name: name.into(),
        node: "n-7".into(),
        up: true,
        phase: None,
        generation: Generation(3),
        step: Step(176),
        draining: false,
        speed: 1.0,
        segments: vec![SegmentRange { start: 2, end: 4 }],
        pipeline,
        left_out: None,
    }
}

fn report() -> RunStatus {
    let run = RunView {
        mode: RunMode::Training,
        term: 1,
        generation: Generation(3),
        next: None,
        step: Step(176),
        last_step: Step(600),
        plan: Some("P2xD2".into()),
        predicted_ms: None,
        observed_ms: Some(81.6),
        compute_factor: None,
        members: 4,
        min_workers: 2,
        max_workers: None,
        spare_copies: Some(SpareCopiesView {
            units: 5,
            kept: 4,
            in_step: 3,
            verdict: Some(SpareCopiesVerdict {
                reason: SpareCopyDecision::KeptInPart,
                why: "no worker has memory".into(),
            }),
        }),
    };
    let gone = WorkerView {
        up: false,
        ..worker("j-w2", None)
    };
    let left_out = WorkerView {
        left_out: Some(LeftOut {
            reason: LeftOutReason::NoData,
            why: "it could not read its data".into(),
        }),
        ..worker("j-w3", None)
    };
    RunStatus {
        coordinator: 2,
        state: Some(Snapshot {
            run,
            workers: vec![worker("j-w1", Some(1)), gone, left_out],
        }),
        loss: Some(2.345_67),
        messages: vec![RunMessage {
            number: 1,
            resumed: false,
            text: "lost worker j-w2".into(),
        }],
        recoveries: vec![Recovery {
            at: Time(Timestamp::from_second(1_700_000_000).unwrap()),
            cause: "lost".into(),
            workers_lost: 1,
            pause_ms: 420,
            steps_lost: 3,
        }],
        ..RunStatus::default()
    }
}

/// The response of a server to a GET request for this path: head and body.
async fn answer(address: SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: c\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

/// Starts a server that shows these reports.
async fn server(reports: watch::Receiver<Option<RunStatus>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let title = Title {
        namespace: "team-a".into(),
        job: "j".into(),
        number: 2,
    };
    let metrics = Arc::new(Metrics::new("team-a", "j"));
    tokio::spawn(serve(
        listener,
        Shown {
            metrics,
            title,
            reports,
            startup: Arc::new(Startup::default()),
        },
    ));
    address
}

#[tokio::test]
async fn page_shows_run_workers_and_recoveries() {
    let (tell, reports) = watch::channel(None);
    let address = server(reports).await;
    let (head, early) = answer(address, "/").await;
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    assert!(head.contains("content-type: text/html"), "{head}");
    assert!(
        head.contains("content-security-policy: default-src 'none'"),
        "{head}"
    );
    assert!(
        early.contains("team-a/j") && early.contains("waits for its turn"),
        "{early}"
    );
    tell.send_replace(Some(report()));
    let (_, page) = answer(address, "/").await;
    for text in [
        "training",
        "176 of 600",
        "2.3457 nats per token",
        "P2xD2 (generation 3)",
        "82 ms",
        "4 of 5 units that one worker alone holds, 3 in step: no worker has memory",
        "j-w1",
        "n-7",
        "pipeline 1, segments 2..4",
        "attached",
        "gone",
        "left out: it could not read its data",
        "2023-11-14T22:13:20Z",
        "420 ms",
        "lost worker j-w2",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    for outside in ["src=", "href=", "<script", "@import", "url("] {
        assert!(!page.contains(outside), "it needs nothing else: {outside}");
    }
    let (head, _) = answer(address, "/healthz").await;
    assert!(head.starts_with("http/1.1 200 "), "probes are answered as before");
}

#[tokio::test]
async fn texts_of_others_are_texts_and_nothing_else() {
    let hostile = "</td><script>alert(1)</script>\"'&";
    let mut report = report();
    report.messages[0].text = hostile.into();
    report.recoveries[0].cause = hostile.into();
    report.end = Some(RunEnd::Failed(hostile.into()));
    let state = report.state.as_mut().unwrap();
    state.workers[0].name = hostile.into();
    state.workers[0].node = hostile.into();
    state.run.plan = Some(hostile.into());
    let (_tell, reports) = watch::channel(Some(report));
    let (_, page) = answer(server(reports).await, "/").await;
    assert!(!page.contains("<script"), "{page}");
    let escaped = page.matches("&lt;script&gt;alert(1)&lt;/script&gt;").count();
    assert_eq!(escaped, 6, "each is shown: {page}");
}

#[test]
fn of_very_many_workers_some_are_listed() {
    let mut report = report();
    let state = report.state.as_mut().unwrap();
    state.workers = vec![worker("j-w", Some(0)); WORKERS_MAX + 7];
    let title = Title {
        namespace: "n".into(),
        job: "j".into(),
        number: 1,
    };
    let page = page(&title, Some(&report));
    assert_eq!(page.matches("<td>j-w</td>").count(), WORKERS_MAX);
    assert!(page.contains("and 7 more"), "{page}");
}
