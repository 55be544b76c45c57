use super::*;
use crate::orders::tests::written;
use varuna_api::crd::RunGoal;
use varuna_plan::{SegmentRange, Step, WorkerId};
use varuna_protocol::coordinator::{RunView, Snapshot, WorkerView};

fn by(number: i64) -> Reporter {
    Reporter {
        number,
        address: Some("10.0.0.1:7070".into()),
        health_address: "10.0.0.1:8081".into(),
    }
}

fn view(step: u64) -> View {
    let run = RunView {
        mode: RunMode::Training,
        term: 1,
        generation: Generation(2),
        next: None,
        step: Step(step),
        last_step: Step(100),
        plan: None,
        predicted_ms: None,
        observed_ms: None,
        compute_factor: None,
        members: 1,
        min_workers: 1,
        max_workers: None,
        spare_copies: None,
    };
    let worker = WorkerView {
        id: WorkerId(1),
        name: "j-w1".into(),
        node: "n".into(),
        up: true,
        phase: None,
        generation: Generation(2),
        step: Step(step),
        draining: false,
        speed: 1.0,
        segments: vec![SegmentRange { start: 0, end: 2 }],
        pipeline: Some(0),
        left_out: None,
    };
    View {
        snapshot: Some(Snapshot {
            run,
            workers: vec![worker],
        }),
        checkpoints: Some(CheckpointHealth {
            newest: Some(Step(5)),
            ..CheckpointHealth::default()
        }),
        ..View::default()
    }
}

#[test]
fn messages_keep_their_order_and_their_numbers_and_are_bounded() {
    let mut messages = Messages::new(2);
    let mut log: VecDeque<(u64, String)> = VecDeque::new();
    for number in 1..=100 {
        log.push_back((number, format!("entry {number}")));
        // Each view has only the newest few messages, so consecutive views overlap.
        if log.len() > 10 {
            log.pop_front();
        }
        messages.take(&log);
        if number == 99 {
            messages.resumed("training goes on".into());
        }
    }
    let status = report(&by(2), &view(1), &messages, None);
    assert_eq!(status.messages.len(), MESSAGES_MAX);
    let numbers: Vec<i64> = status.messages.iter().map(|m| m.number).collect();
    assert!(numbers.windows(2).all(|two| two[1] == two[0] + 1), "{numbers:?}");
    let last: Vec<(&str, bool)> = status
        .messages
        .iter()
        .rev()
        .take(3)
        .map(|m| (m.text.as_str(), m.resumed))
        .collect();
    assert_eq!(
        last,
        [
            ("entry 100", false),
            ("training goes on", true),
            ("entry 99", false)
        ]
    );
    let mut next = Messages::new(3);
    next.resumed("first".into());
    let first = report(&by(3), &view(1), &next, None).messages[0].number;
    assert!(
        first > *numbers.last().unwrap(),
        "a later coordinator's are greater"
    );
}

#[test]
fn a_report_reads_back_as_it_was_written() {
    let status = report(
        &by(1),
        &view(7),
        &Messages::new(1),
        Some(RunEnd::StateLost("segments 2..4".into())),
    );
    let text = serde_json::to_string(&status).unwrap();
    assert_eq!(serde_json::from_str::<RunStatus>(&text).unwrap(), status);
    assert_eq!(status.checkpoints.unwrap().newest_step, Some(5));
    let unread = View {
        snapshot: None,
        ..view(7)
    };
    let early = report(&by(1), &unread, &Messages::new(1), None);
    assert_eq!(early.checkpoints, None, "it may not know them all yet");
}

/// A report of a run with this many workers; every tenth of them has no place in the plan.
fn with_workers(count: u64) -> RunStatus {
    let mut view = view(123_456);
    let state = view.snapshot.as_mut().unwrap();
    let first = state.workers[0].clone();
    let worker = |i: u64| WorkerView {
        id: WorkerId(i),
        name: format!("a-job-of-many-workers-w{i}-0a1b2c3d"),
        node: format!("gke-pool-of-accelerators-{i}-0a1b2c3d"),
        speed: 0.987_654_321,
        pipeline: (!i.is_multiple_of(10)).then_some(7),
        ..first.clone()
    };
    state.workers = (1..=count).map(worker).collect();
    report(&by(1), &view, &Messages::new(1), None)
}

#[test]
fn large_report_fits_an_api_server() {
    let few = with_workers(DETAILED_MAX as u64);
    let room = room_beside(None);
    assert_eq!(*bounded(&few, room), few, "nothing is left out");
    let some = with_workers(5000);
    let written = bounded(&some, room).into_owned();
    let workers = |report: &RunStatus| report.state.clone().unwrap().workers;
    let read = |w: &WorkerView| (w.name.clone(), w.up, w.draining, w.pipeline, w.segments.clone());
    let all = |report: &RunStatus| workers(report).iter().map(read).collect::<Vec<_>>();
    assert_eq!(all(&written), all(&some), "all that the operator reads");
    assert!(
        workers(&written)
            .iter()
            .all(|w| w.node.is_empty() && w.speed == 0.99)
    );
    let bytes = |report: &RunStatus| serde_json::to_string(report).unwrap().len();
    assert!(bytes(&written) < bytes(&some) * 9 / 10, "{}", bytes(&written));
    // The previous release needs all fields to read it.
    let text = serde_json::to_string(&written).unwrap();
    assert_eq!(serde_json::from_str::<RunStatus>(&text).unwrap(), written);

    let written = bounded(&with_workers(20_000), room).into_owned();
    assert!(bytes(&written) <= room, "{}", bytes(&written));
    assert!(workers(&written).len() > 5000);
    assert!(workers(&written).iter().all(|w| w.pipeline.is_some()));
}

#[test]
fn large_report_leaves_room_for_its_orders() {
    let node = |i: u32| {
        let name = format!("ip-10-0-{i:04}.eu-west-1.compute.internal");
        (name, "eu-west-1a/nn-0a1b2c3d/nn-1a2b3c4d".to_owned())
    };
    let orders = RunSpec {
        domains: (0..4000).map(node).collect(),
        ..written(RunGoal::Run, 1)
    };
    let room = room_beside(Some(&orders));
    let written = bounded(&with_workers(20_000), room).into_owned();
    let bytes = serde_json::to_string(&written).unwrap().len();
    let keys: usize = orders.domains.keys().map(|key| key.len() + 8).sum();
    let ordered = serde_json::to_string(&orders).unwrap().len() + keys;
    assert!(
        bytes + ordered + NOTICES_BYTES_MAX <= RUN_BYTES_MAX,
        "{bytes} {ordered}"
    );
    assert!(bytes > room - 1000, "{bytes}: no more is left out than needed");
}

#[test]
fn a_message_that_names_all_workers_is_cut() {
    let mut messages = Messages::new(1);
    messages.resumed("ä".repeat(100_000));
    messages.resumed("short".into());
    let status = report(&by(1), &view(1), &messages, None);
    assert!(status.messages[0].text.len() <= MESSAGE_BYTES_MAX);
    assert!(status.messages[0].text.starts_with('ä'));
    assert_eq!(status.messages[1].text, "short");
}

#[test]
fn steps_may_wait_and_what_is_acted_on_may_not() {
    let messages = Messages::new(1);
    let part = |view: &View, messages: &Messages, end| ReportedPart::of(&report(&by(1), view, messages, end));
    let before = part(&view(7), &messages, None);
    let waits = |after: ReportedPart| after.may_wait(&before);
    assert_eq!(waits(part(&view(8), &messages, None)), None, "steps");
    let mut saved = view(7);
    saved.checkpoints.as_mut().unwrap().newest = Some(Step(7));
    assert_eq!(waits(part(&saved, &messages, None)), Some(Duration::ZERO));
    let end = Some(RunEnd::Done);
    assert_eq!(waits(part(&view(7), &messages, end)), Some(Duration::ZERO));
    let mut missed = view(7);
    let worker = &mut missed.snapshot.as_mut().unwrap().workers[0];
    (worker.up, worker.pipeline) = (false, Some(0));
    assert_eq!(waits(part(&missed, &messages, None)), Some(MISSED));
    let mut without = view(7);
    without.snapshot.as_mut().unwrap().workers[0].pipeline = None;
    let without = part(&without, &messages, None);
    assert_eq!(without.may_wait(&before), Some(MISSED), "its place is gone");
    assert_eq!(before.may_wait(&without), Some(SHOWN), "it has got one");
    let mut recovering = view(7);
    recovering.snapshot.as_mut().unwrap().run.mode = RunMode::Recovering;
    let mut draining = view(7);
    draining.snapshot.as_mut().unwrap().workers[0].draining = true;
    for shown in [recovering, draining] {
        assert_eq!(waits(part(&shown, &messages, None)), Some(SHOWN));
    }
    let mut failing = view(7);
    failing.checkpoints.as_mut().unwrap().failing = Some("403".into());
    assert_eq!(waits(part(&failing, &messages, None)), Some(SHOWN));
}

#[test]
fn minor_changes_wait_while_the_job_trains() {
    let messages = Messages::new(1);
    let mut said = messages.clone();
    said.resumed("worker j-w2 joined".into());
    let mut joined = view(7);
    let mut worker = joined.snapshot.as_ref().unwrap().workers[0].clone();
    (worker.name, worker.pipeline) = ("j-w2".into(), None);
    joined.snapshot.as_mut().unwrap().workers.push(worker);
    let part = |view: &View, messages: &Messages| ReportedPart::of(&report(&by(1), view, messages, None));
    let (alone, both) = (part(&view(7), &messages), part(&joined, &said));
    assert_eq!(both.may_wait(&alone), Some(WITH_STEPS), "it has come");
    assert_eq!(alone.may_wait(&both), Some(WITH_STEPS), "it has gone");
    let mut planned = joined.clone();
    let state = planned.snapshot.as_mut().unwrap();
    (state.workers[1].pipeline, state.run.generation, state.run.members) = (Some(1), Generation(3), 2);
    assert_eq!(part(&planned, &said).may_wait(&both), Some(SHOWN));
    // While the run waits for workers, users want to see them join.
    let waiting = |mut view: View| {
        view.snapshot.as_mut().unwrap().run.mode = RunMode::Waiting;
        view
    };
    let (alone, both) = (part(&waiting(view(7)), &messages), part(&waiting(joined), &said));
    assert_eq!(both.may_wait(&alone), Some(SHOWN));
}

#[test]
fn a_coordinator_that_was_deposed_says_nothing_of_the_end() {
    let model = varuna_api::parse_job(JOB).unwrap().model;
    let end = |outcome| run_end(Ok(outcome), &model.layout());
    assert_eq!(end(Outcome::Deposed), None);
    assert_eq!(end(Outcome::Done), Some(RunEnd::Done));
    let units = vec![varuna_plan::Unit(0)];
    assert!(matches!(end(Outcome::StateLost { units }), Some(RunEnd::StateLost(what)) if !what.is_empty()));
    let taken = CoordinatorError::CheckpointsTaken { run: "other".into() };
    let end = run_end(Err(taken), &model.layout());
    assert_eq!(end, Some(RunEnd::CheckpointsTaken("other".into())));
}

const JOB: &str = "apiVersion: varuna.dev/v1alpha1\nkind: VarunaJob\nmetadata: {name: j}\nspec:\n  model: {preset: gpt2-tiny}\n  data: {path: d}\n  training: {globalBatchSize: 8, steps: 10, optimizer: {learningRate: 1e-3}}\n";
