//! JSON documents: plans, records, the files of a run folder, parts of recoveries.

use super::conversation;
use super::machines::{CoordinatorRun, coordinator_kind};
use super::plans::use_plan;
use super::recording::recorded;
use super::sequence::Item;
use super::{ID, LITTLE, MORE, Seeds, json, messages, round_trip, text};
use crate::{Form, Target};
use varuna_coordinator::record_format;
use varuna_plan::{Generation, Plan, ScheduleKind, StateId, Step, Unit, WorkerId};
use varuna_protocol::{ComparisonRecord, Event, Record, Rollback};
use varuna_run_folder::{CheckpointEvent, Contact, EventEntry, LoggedEvent, Metric, RunStatus, StepFigures};
use varuna_sim::replay::RecoveryParts;

pub(super) const PLAN: Target = Target {
    name: "plan",
    what: "plans (JSON), and what is made of them",
    form: Form::Json,
    words: &[
        "0000000000000001",
        "interleaved",
        "gpipe",
        "1f1b",
        "full",
        "fixed",
        "atSwitch",
        "NaN",
        "inf",
        "host:1",
    ],
    memory: MORE,
    seeds: plan_seeds,
    run: run_plan,
};

pub(super) const RECORD: Target = Target {
    name: "record",
    what: "the record of a coordinator (JSON), and a coordinator that takes it over",
    form: Form::Json,
    words: PLAN.words,
    memory: MORE,
    seeds: record_seeds,
    run: run_record,
};

pub(super) const STORED_RECORD: Target = Target {
    name: "stored-record",
    what: "the record of a coordinator as it is stored, compressed where it is long",
    form: Form::Bytes,
    words: &[],
    memory: MORE,
    seeds: stored_record_seeds,
    run: run_stored_record,
};

pub(super) const RUN_FOLDER: Target = Target {
    name: "run-folder",
    what: "status, metrics, events and contact of a run folder (JSON)",
    form: Form::Json,
    words: &[
        "committed",
        "resumed",
        "lost",
        "checkpointed",
        "training",
        "0000000000000001",
        "NaN",
    ],
    memory: LITTLE,
    seeds: run_folder_seeds,
    run: run_run_folder,
};

pub(super) const PARTS: Target = Target {
    name: "recovery-parts",
    what: "measured parts of a recovery (JSON)",
    form: Form::Json,
    words: &["goneMs", "version"],
    memory: LITTLE,
    seeds: parts_seeds,
    run: run_parts,
};

fn plan_seeds() -> Seeds {
    let mut interleaved = conversation::plan();
    interleaved.layout.segments = 4;
    interleaved.sources = vec![Vec::new(); 4];
    interleaved.shape.schedule.kind = ScheduleKind::Interleaved { chunks: 2 };
    let stages = &mut interleaved.shape.pipelines[0].stages;
    stages.extend(stages.clone());
    for (stage, start) in stages.iter_mut().zip(0..) {
        (stage.segments.start, stage.segments.end) = (start, start + 1);
    }
    let mut diverged = conversation::plan();
    diverged.base = varuna_plan::Base::Fixed {
        id: ID,
        decision: Some(conversation::decision(ID)),
        checkpoint: true,
    };
    vec![
        ("two-stages", json(&conversation::plan())),
        ("interleaved", json(&interleaved)),
        ("finishes-a-step", json(&diverged)),
    ]
}

fn run_plan(input: &[u8]) -> Result<String, String> {
    let plan: Plan = serde_json::from_slice(input).map_err(|e| e.to_string())?;
    round_trip(&plan);
    Ok(use_plan(&plan))
}

fn record_seeds() -> Seeds {
    let changing = Record {
        version: 3,
        term: 2,
        highest: Generation(3),
        plan: Some(conversation::plan().into()),
        next: Some(
            Plan {
                generation: Generation(3),
                base: varuna_plan::Base::AtSwitch { from: Generation(2) },
                ..conversation::plan()
            }
            .into(),
        ),
        done: false,
        trust: ComparisonRecord::default(),
        last_step: Step(0),
        waited_ms: 0,
        puts_anew: 0,
        stopped: Generation(0),
    };
    let mut rolled_back = recorded().record;
    rolled_back.trust.compared.push(ID);
    rolled_back.trust.rollbacks.push(Rollback {
        to: ID,
        generation: Generation(3),
    });
    vec![
        ("rolled-back", json(&rolled_back)),
        ("of-a-run", json(&recorded().record)),
        ("changing", json(&changing)),
        ("empty", json(&Record::default())),
    ]
}

/// A coordinator reads the record, and the workers of its plan attach again.
fn run_record(input: &[u8]) -> Result<String, String> {
    let record = record_format::decode(input).map_err(|e| e.to_string())?;
    round_trip(&record);
    let recorded = recorded();
    let mut run = CoordinatorRun::new(3);
    let item = |kind, argument, payload| Item {
        kind,
        argument,
        payload,
    };
    run.take(&item(coordinator_kind::RECORD, 0, input.to_vec()));
    for _ in 0..8 {
        run.take(&item(coordinator_kind::TICK, 12, Vec::new()));
    }
    for item in recorded.coordinator.iter().take(40) {
        run.take(item);
    }
    Ok(run.said())
}

/// A record that is long enough to be compressed.
fn stored_record_seeds() -> Seeds {
    let mut plan = conversation::plan();
    let addresses = (1..=2_000).map(|w| (WorkerId(w), format!("host-{w}:1")));
    plan.addresses.extend(addresses);
    let long = Record {
        version: 3,
        term: 2,
        highest: Generation(2),
        plan: Some(plan.into()),
        next: None,
        done: false,
        trust: ComparisonRecord::default(),
        last_step: Step(40),
        waited_ms: 0,
        puts_anew: 0,
        stopped: Generation(0),
    };
    let stored = |record| record_format::encode(record).expect("a seed can be written");
    vec![
        ("compressed", stored(&long)),
        ("text", stored(&recorded().record)),
    ]
}

fn run_stored_record(input: &[u8]) -> Result<String, String> {
    let record = record_format::decode(input).map_err(|e| e.to_string())?;
    let stored = record_format::encode(&record).map_err(|e| e.to_string())?;
    let again = record_format::decode(&stored).map_err(|e| e.to_string())?;
    // The texts are compared, because some numbers are not equal to themselves.
    assert_eq!(
        json(&again),
        json(&record),
        "what is stored is read as something else"
    );
    Ok(format!("version {}", record.version))
}

fn run_folder_seeds() -> Seeds {
    let metric = Metric {
        step: Step(5),
        loss: 2.5,
        no_targets: false,
        eval_loss: None,
        gradient_norm: 1.5,
        overflow: false,
        skipped_steps: 0,
        loss_scale: None,
        generation: Generation(2),
        workers: 2,
        plan: "P2xD1".into(),
        tokens: 2048,
        step_ms: 12.5,
        time_ms: 1_700_000_000_000,
        state: ID,
        figures: StepFigures {
            learning_rate: Some(3e-4),
            ..StepFigures::default()
        },
    };
    let entry = |event| EventEntry {
        event,
        steps_lost: Some(2),
        time_ms: 1_700_000_000_000,
    };
    let resumed = Event::Resumed {
        generation: Generation(2),
        base: StateId::INITIAL,
        finished: false,
        restored: true,
    };
    let lost = Event::Lost { units: vec![Unit(1)] };
    let joined = Event::WorkerJoined {
        worker: WorkerId(1),
        name: "w1".into(),
        address: "host:1".into(),
    };
    let checkpointed = CheckpointEvent::Checkpointed {
        step: Step(5),
        state: ID,
    };
    let contact = Contact {
        address: "127.0.0.1:7000".into(),
        token: "t".into(),
        certificate: None,
        pid: 7,
    };
    vec![
        ("metric", json(&metric)),
        ("resumed", json(&entry(LoggedEvent::Protocol(resumed)))),
        ("lost", json(&entry(LoggedEvent::Protocol(lost)))),
        ("joined", json(&entry(LoggedEvent::Protocol(joined)))),
        (
            "checkpointed",
            json(&entry(LoggedEvent::Checkpoint(checkpointed))),
        ),
        ("status", json(&messages::status_document())),
        ("contact", json(&contact)),
    ]
}

/// Tries to read the document as each type of the run folder's files.
fn run_run_folder(input: &[u8]) -> Result<String, String> {
    let mut read = Vec::new();
    if let Ok(metric) = serde_json::from_slice::<Metric>(input) {
        round_trip(&metric);
        read.push("metric");
    }
    if let Ok(entry) = serde_json::from_slice::<EventEntry>(input) {
        round_trip(&entry);
        read.push("event");
    }
    if let Ok(contact) = serde_json::from_slice::<Contact>(input) {
        round_trip(&contact);
        read.push("contact");
    }
    match serde_json::from_slice::<RunStatus>(input) {
        Ok(status) => {
            round_trip(&status);
            read.push("status");
        }
        Err(error) if read.is_empty() => return Err(error.to_string()),
        Err(_) => {}
    }
    Ok(read.join(" "))
}

fn parts_seeds() -> Seeds {
    let text = r#"{"version":1,"source":"x","detectMs":70,"planMs":100,"connectMs":4,"transferMs":40,
        "transferBytes":66e6,"goneMs":1000,"firstStepExtraMs":0,"stateBytesPerParameter":16}"#;
    vec![("measured", text.as_bytes().to_vec())]
}

fn run_parts(input: &[u8]) -> Result<String, String> {
    let parts = RecoveryParts::read("parts.json", text(input)?).map_err(|e| e.to_string())?;
    let speed = parts.bytes_per_ns(1e9);
    assert!((0.0..=1.0).contains(&speed), "{speed} bytes a nanosecond");
    Ok(String::new())
}
