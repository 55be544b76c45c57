//! The messages of gRPC.

use super::conversation;
use super::{ID, LITTLE, Seeds};
use crate::{Form, Target};
use prost::Message;
use std::sync::Arc;
use varuna_plan::{Generation, Step, Unit, WorkerId};
use varuna_protocol::coordinator::{RunView, SpareCopiesView, WorkerView};
use varuna_protocol::{Digests, Order, Phase, Report, RunMode, Suspicion};
use varuna_run_folder::{CheckpointStatus, RunStatus, StepTimings, WorkerStatus};
use varuna_wire::{Downward, StepMetrics, Upward, Welcome, status, v1};

pub(super) const UP: Target = Target {
    name: "up",
    what: "gRPC messages of workers",
    form: Form::Proto,
    words: &["host:1", "w"],
    memory: LITTLE,
    seeds: up_seeds,
    run: run_up,
};

pub(super) const DOWN: Target = Target {
    name: "down",
    what: "gRPC messages of the coordinator, plans among them",
    form: Form::Proto,
    words: &["host:1"],
    memory: LITTLE,
    seeds: down_seeds,
    run: run_down,
};

pub(super) const STATUS: Target = Target {
    name: "status",
    what: "the status of a run by gRPC",
    form: Form::Proto,
    words: &["P2xD4"],
    memory: LITTLE,
    seeds: status_seeds,
    run: run_status,
};

fn up_seeds() -> Seeds {
    let encode = |up: &Upward| up.to_wire().encode_to_vec();
    let report = |report| encode(&Upward::Report(report));
    let commits = Report::Commits {
        after: Step(4),
        decisions: vec![conversation::decision(ID)],
    };
    let digests = Digests {
        id: ID,
        saved: true,
        units: vec![(Unit(0), 7), (Unit(2), u64::MAX)],
    };
    let suspect = Report::Suspect {
        generation: Generation(2),
        about: WorkerId(2),
        why: Suspicion::Unreachable,
    };
    vec![
        ("hello", encode(&Upward::Hello(conversation::hello(WorkerId(1))))),
        (
            "status",
            report(Report::Status(conversation::status(Phase::Running))),
        ),
        ("suspect", report(suspect)),
        ("inventory", report(Report::Inventory(conversation::inventory()))),
        ("commits", report(commits)),
        ("digests", report(Report::Digests(digests))),
        ("metrics", encode(&Upward::Metrics(StepMetrics::default()))),
    ]
}

/// Reads, writes and reads a message. The bytes of both are compared, because some numbers are not equal to themselves.
fn run_up(input: &[u8]) -> Result<String, String> {
    let message = v1::Up::decode(input).map_err(|e| e.to_string())?;
    let up = Upward::from_wire(message).map_err(|e| e.to_string())?;
    let written = up.to_wire();
    let again = Upward::from_wire(written.clone()).expect("a message that was written can be read");
    assert_eq!(again.to_wire().encode_to_vec(), written.encode_to_vec());
    Ok(kind(&up))
}

/// The name of the variant.
fn kind(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}")
        .split('{')
        .next()
        .unwrap_or_default()
        .chars()
        .take(40)
        .collect()
}

fn down_seeds() -> Seeds {
    let encode = |down: &Downward| down.to_wire(3).encode_to_vec();
    let order = |order| encode(&Downward::Order(order));
    let welcome = Downward::Welcome(Welcome {
        job: "kind: VarunaJob".into(),
        run: "ab".into(),
        data_fingerprint: String::new(),
    });
    let refused = Downward::Refused {
        reason: "no".into(),
        is_final: true,
    };
    let prepare = Order::Prepare(Arc::new(conversation::plan()));
    // A plan that is long enough to be compressed.
    let mut long = conversation::plan();
    let addresses = (1..=300).map(|w| (WorkerId(w), format!("host-{w}:1")));
    long.addresses.extend(addresses);
    let compressed = Order::Prepare(Arc::new(long));
    let generation = Generation(2);
    vec![
        ("welcome", encode(&welcome)),
        ("refused", encode(&refused)),
        ("prepare", order(prepare)),
        ("prepare-compressed", order(compressed)),
        ("fence", order(Order::Fence { upto: generation })),
        ("arm", order(Order::Arm { generation })),
        ("go", order(Order::Go { generation })),
        ("save", order(Order::Save { after: Step(4) })),
        ("tell", order(Order::Tell { after: Step(4) })),
        ("last-step", order(Order::LastStep { step: Step(40) })),
        ("release", order(Order::Release)),
    ]
}

fn run_down(input: &[u8]) -> Result<String, String> {
    let message = v1::Down::decode(input).map_err(|e| e.to_string())?;
    let (term, down) = Downward::from_wire(message).map_err(|e| e.to_string())?;
    let written = down.to_wire(term);
    let again = Downward::from_wire(written.clone()).expect("a message that was written can be read");
    assert_eq!(again.1.to_wire(again.0).encode_to_vec(), written.encode_to_vec());
    if let Downward::Order(Order::Prepare(plan)) = &down {
        return Ok(super::plans::use_plan(plan));
    }
    Ok(kind(&down))
}

fn status_seeds() -> Seeds {
    vec![("training", reply(&status_document()).encode_to_vec())]
}

fn run_status(input: &[u8]) -> Result<String, String> {
    let message = v1::StatusReply::decode(input).map_err(|e| e.to_string())?;
    let status = status::from_wire(message).map_err(|e| e.to_string())?;
    let written = reply(&status);
    let again = status::from_wire(written.clone()).expect("a status that was written can be read");
    assert_eq!(reply(&again).encode_to_vec(), written.encode_to_vec());
    Ok(format!("{:?}", status.run.mode))
}

/// The status of a run with one worker.
pub(super) fn status_document() -> RunStatus {
    let view = WorkerView {
        id: WorkerId(1),
        name: "w1".into(),
        node: "n".into(),
        up: true,
        phase: Some(Phase::Running),
        generation: Generation(2),
        step: Step(5),
        draining: false,
        speed: 1.0,
        segments: vec![conversation::LAYOUT.whole()],
        pipeline: Some(0),
        left_out: None,
    };
    let run = RunView {
        mode: RunMode::Training,
        term: 1,
        generation: Generation(2),
        next: None,
        step: Step(5),
        last_step: Step(20),
        plan: Some("P1xD1".into()),
        predicted_ms: Some(12.5),
        observed_ms: Some(13.0),
        compute_factor: None,
        members: 1,
        min_workers: 1,
        max_workers: None,
        spare_copies: Some(SpareCopiesView {
            units: 2,
            kept: 2,
            in_step: 1,
            verdict: None,
        }),
    };
    RunStatus {
        job: "demo".into(),
        run,
        loss: Some(2.5),
        skipped_steps: Some(3),
        loss_scale: Some(1024),
        checkpoint: Some(CheckpointStatus {
            newest: Some(varuna_checkpoint::folder_name(ID)),
            newest_step: Some(ID.step),
            steps_behind: Some(0),
            failing: None,
        }),
        workers: vec![WorkerStatus {
            view,
            pid: 7,
            host: "h".into(),
            device: "cpu".into(),
            timings: Some(StepTimings {
                step: Step(4),
                step_ms: 12.0,
                forward_ms: 4.0,
                backward_ms: 8.0,
                recompute_ms: 0.0,
                wait_ms: 0.0,
                reduce_ms: 0.0,
                apply_ms: 0.0,
                apply_cpu_ms: None,
            }),
        }],
    }
}

fn reply(status: &RunStatus) -> v1::StatusReply {
    v1::StatusReply {
        status: Some(status::to_wire(status)),
    }
}
