//! When reports are written, and how many of them.

use super::*;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use varuna_plan::{Generation, Step, WorkerId};
use varuna_protocol::coordinator::{RunMode, RunView, Snapshot, WorkerView};

fn report(address: &str, loss: f64) -> RunStatus {
    RunStatus {
        coordinator: 1,
        address: Some(address.into()),
        loss: Some(loss),
        ..RunStatus::default()
    }
}

#[test]
fn a_change_is_due_at_once_and_steps_less_and_less_often() {
    let (mut schedule, start) = (Schedule::default(), Instant::now());
    assert_eq!(schedule.due(start, &report("a", 1.0)), start, "the first");
    schedule.wrote(start, &report("a", 1.0));
    let mut at = start;
    for seconds in [15, 30, 60, 120, 240, 300, 300] {
        let next = at + Duration::from_secs(seconds);
        assert_eq!(schedule.due(at, &report("a", 0.5)), next, "after {seconds} s");
        schedule.wrote(next, &report("a", 0.5));
        at = next;
    }
    let burst = at + BURST;
    assert_eq!(schedule.due(at, &report("b", 0.5)), burst, "another address");
    let later = at + 2 * BURST;
    assert_eq!(schedule.due(later, &report("b", 0.5)), burst, "overdue");
    schedule.wrote(later, &report("b", 0.5));
    let steps = schedule.due(later, &report("b", 0.4));
    assert_eq!(steps, later + STEPS_INTERVAL, "soon again after a change");
}

fn report_with_messages(messages: i64) -> RunStatus {
    let message = |number| varuna_api::crd::RunMessage {
        number,
        resumed: false,
        text: String::new(),
    };
    RunStatus {
        messages: (1..=messages).map(message).collect(),
        ..report("a", 1.0)
    }
}

#[test]
fn display_changes_are_joined_within_a_limit() {
    let (mut schedule, start) = (Schedule::default(), Instant::now());
    schedule.wrote(start, &report_with_messages(0));
    let changed = start + Duration::from_secs(5);
    let due = schedule.due(changed, &report_with_messages(1));
    assert_eq!(due, changed + Duration::from_secs(3));
    let more = changed + Duration::from_secs(1);
    assert_eq!(schedule.due(more, &report_with_messages(2)), due);
    let end = RunStatus {
        end: Some(varuna_api::crd::RunEnd::Done),
        ..report_with_messages(2)
    };
    assert!(schedule.due(more, &end) <= more, "the end waits for nothing");
    assert_eq!(
        schedule.due(more, &report_with_messages(0)),
        start + STEPS_INTERVAL,
        "as it was"
    );
}

/// A run that trains. For each worker: its name, whether it has a place in the plan, and whether it will end.
fn trains(generation: u64, workers: &[(&str, bool, bool)], messages: i64) -> RunStatus {
    let placed = workers.iter().filter(|(_, placed, _)| *placed);
    let run = RunView {
        mode: RunMode::Training,
        term: 1,
        generation: Generation(generation),
        next: None,
        step: Step(40),
        last_step: Step(1000),
        plan: None,
        predicted_ms: None,
        observed_ms: None,
        compute_factor: None,
        members: placed.count(),
        min_workers: 1,
        max_workers: None,
        spare_copies: None,
    };
    let workers = workers
        .iter()
        .zip(1..)
        .map(|((name, placed, draining), id)| WorkerView {
            id: WorkerId(id),
            name: (*name).to_owned(),
            node: String::new(),
            up: true,
            phase: None,
            generation: Generation(generation),
            step: Step(40),
            draining: *draining,
            speed: 1.0,
            segments: vec![],
            pipeline: placed.then_some(0),
            left_out: None,
        });
    let workers = workers.collect();
    RunStatus {
        state: Some(Snapshot { run, workers }),
        ..report_with_messages(messages)
    }
}

/// The times at which reports are written, in milliseconds after the first change, until the next regular report of steps is due. `changes`
/// has the time of each change, and the report that is current from then on.
fn written(before: &RunStatus, changes: &[(u64, RunStatus)]) -> Vec<u64> {
    let (mut schedule, start) = (Schedule::default(), Instant::now());
    schedule.wrote(start, before);
    let first = start + STEPS_INTERVAL / 3;
    let mut written = vec![];
    for (i, (at, report)) in changes.iter().enumerate() {
        let mut now = first + Duration::from_millis(*at);
        let next = changes.get(i + 1).map_or(now + STEPS_INTERVAL, |(next, _)| {
            first + Duration::from_millis(*next)
        });
        // Checked as often as the coordinator publishes a view.
        while now < next {
            if schedule.due(now, report) <= now {
                schedule.wrote(now, report);
                written.push(u64::try_from(now.duration_since(first).as_millis()).unwrap());
            }
            now += Duration::from_millis(50);
        }
    }
    written
}

#[test]
fn preemption_and_replacement_are_two_reports() {
    let (a, b) = (("a", true, false), ("b", true, false));
    let before = trains(2, &[a, b], 0);
    let changes = |replaced: u64| {
        [
            (0, trains(2, &[a, ("b", true, true)], 1)),
            (60, trains(3, &[a, ("b", false, true)], 4)),
            (200, trains(3, &[a], 6)),
            (replaced, trains(3, &[a, ("c", false, false)], 7)),
            (replaced + 500, trains(4, &[a, ("c", true, false)], 11)),
            (replaced + 550, trains(4, &[a, ("c", true, false)], 12)),
        ]
    };
    // When the worker has no place any more, and when its replacement has one.
    assert_eq!(written(&before, &changes(4_000)), [600, 7_500]);
    assert_eq!(written(&before, &changes(250)), [600, 3_750]);
}

#[test]
fn failed_writes_back_off() {
    let mut pauses = RETRY.build();
    for least in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
        let pause = Failure::Late.pause(pauses.next());
        let least = Duration::from_secs(least);
        assert!(pause >= least && pause <= 2 * least, "{pause:?}, {least:?}");
    }
    let busy = |seconds| {
        let mut status = kube::core::Status::failure("too many requests", "TooManyRequests").with_code(429);
        let details = json!({ "retryAfterSeconds": seconds });
        status.details = Some(serde_json::from_value(details).unwrap());
        Failure::Api(kube::Error::Api(Box::new(status)))
    };
    let turn = Some(Duration::from_secs(2));
    assert_eq!(busy(5).pause(turn), Duration::from_secs(5));
    assert_eq!(busy(1).pause(turn), Duration::from_secs(2));
}

/// An API server that gives these answers to writes, one after the other. Also returns the times of the requests.
fn server(answers: Vec<(u16, serde_json::Value)>) -> (Client, Arc<Mutex<Vec<Instant>>>) {
    let (answers, asked) = (Mutex::new(VecDeque::from(answers)), Arc::new(Mutex::new(vec![])));
    let asked_too = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        assert_eq!(
            request.method(),
            http::Method::PUT,
            "a version is known: nothing is read"
        );
        asked_too.lock().push(Instant::now());
        let (code, body) = answers
            .lock()
            .pop_front()
            .expect("no write more than there are answers");
        let response = Response::builder().status(code);
        let response = response.body(Body::from(body.to_string().into_bytes()));
        std::future::ready(response)
    });
    (Client::new(service, "default"), asked)
}

#[tokio::test(start_paused = true)]
async fn report_is_kept_while_the_api_server_is_overloaded() {
    let busy = |seconds| {
        let details = json!({ "retryAfterSeconds": seconds });
        let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "too many requests", "reason": "TooManyRequests",
            "code": 429, "details": details });
        (429, status)
    };
    let written = json!({ "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaRun", "metadata": { "name": "r", "resourceVersion": "6" } });
    let (client, asked) = server(vec![busy(9), busy(1), busy(1), (200, written)]);
    let spec = serde_json::from_value(json!({ "uid": "u", "goal": "Run", "coordinator": 1 })).unwrap();
    let (_orders, seen) = watch::channel(Some(SeenOrders { spec, version: 5 }));
    let reports = Reports {
        runs: crate::orders::runs(&client, "n"),
        name: "r".into(),
        number: 1,
        seen,
    };
    let end = RunStatus {
        end: Some(varuna_api::crd::RunEnd::Done),
        ..report("a", 1.0)
    };
    let (_report, newest) = watch::channel(Some(end));
    assert_eq!(reports.write(newest).await, Ended::Reported);
    let asked = asked.lock();
    let pauses: Vec<Duration> = asked.windows(2).map(|two| two[1] - two[0]).collect();
    // The first delay is the one that the server requests; the others are the second and third of the backoff, with jitter.
    let bounds =
        [(9, 10), (2, 5), (4, 9)].map(|(least, most)| Duration::from_secs(least)..Duration::from_secs(most));
    assert_eq!(pauses.len(), bounds.len(), "{pauses:?}");
    assert!(
        bounds
            .iter()
            .zip(&pauses)
            .all(|(bounds, pause)| bounds.contains(pause)),
        "{pauses:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn it_is_told_that_a_report_is_written() {
    let written = |version: &str| {
        let metadata = json!({ "name": "r", "resourceVersion": version });
        let run = json!({ "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaRun", "metadata": metadata });
        (200, run)
    };
    let (client, asked) = server(vec![written("6"), written("7")]);
    let spec = serde_json::from_value(json!({ "uid": "u", "goal": "Run", "coordinator": 1 })).unwrap();
    let (_orders, seen) = watch::channel(Some(SeenOrders { spec, version: 5 }));
    let reports = Reports {
        runs: crate::orders::runs(&client, "n"),
        name: "r".into(),
        number: 1,
        seen,
    };
    let (report_next, newest) = watch::channel(Some(report("a", 1.0)));
    let told = Arc::new(Mutex::new(0));
    let count = Arc::clone(&told);
    let ended = reports.write_and_tell(newest, move || {
        *count.lock() += 1;
        let end = Some(varuna_api::crd::RunEnd::Done);
        let last = RunStatus {
            end,
            ..report("a", 1.0)
        };
        report_next.send_replace(Some(last));
    });
    assert_eq!(ended.await, Ended::Reported);
    assert_eq!((*told.lock(), asked.lock().len()), (1, 2));
}
