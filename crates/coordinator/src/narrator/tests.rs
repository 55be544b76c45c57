use super::*;
use std::collections::BTreeSet;
use varuna_plan::Unit;
use varuna_plan::state::Chain;

const LAYOUT: Layout = Layout {
    segments: 4,
    tied: true,
};

fn state(step: u64) -> StateId {
    StateId {
        run_gen: Generation(2),
        step: Step(step),
        chain: Chain(7),
    }
}

fn worker(number: u64) -> (WorkerId, String) {
    (WorkerId(number), format!("w{number}"))
}

fn joined(number: u64) -> Event {
    let (worker, name) = worker(number);
    Event::WorkerJoined {
        worker,
        name,
        address: format!("10.88.3.{number}:4000"),
    }
}

fn resumed(step: u64, finished: bool, restored: bool) -> Event {
    Event::Resumed {
        generation: Generation(3),
        base: state(step),
        finished,
        restored,
    }
}

fn planned(change: bool) -> Event {
    Event::Planned {
        generation: Generation(3),
        plan: "P3xD1".into(),
        workers: 3,
        predicted_ms: 153.6,
        change,
        reason: "lost w2".into(),
    }
}

fn fenced() -> Event {
    Event::Fenced {
        upto: Generation(2),
        because: "w1 lost w2".into(),
    }
}

fn running() -> Event {
    Event::Running {
        generation: Generation(3),
    }
}

/// Entries about workers, and what they say.
fn of_workers() -> Vec<(Event, &'static str)> {
    let (worker, name) = worker(3);
    let lost = Event::WorkerLost {
        worker,
        name: name.clone(),
    };
    let draining = Event::WorkerDraining {
        worker,
        name: name.clone(),
    };
    let collected = Event::Collected {
        answered: vec![WorkerId(1)],
        missing: vec![WorkerId(2), WorkerId(3)],
    };
    vec![
        (joined(3), "w3 has joined from 10.88.3.3:4000"),
        (lost, "lost w3: its connection closed or fell silent"),
        (draining, "w3 has notice that it will go: it is planned around"),
        (
            Event::WorkerReleased { worker, name },
            "w3 is released: it may go",
        ),
        (
            collected,
            "1 worker answered with what it holds; 0000000000000002, w3 did not",
        ),
        (
            Event::BelowMinimum { have: 1, need: 2 },
            "training waits for workers: 1 there, 2 needed",
        ),
    ]
}

/// Entries about plans.
fn of_plans() -> Vec<(Event, &'static str)> {
    let generation = Generation(3);
    let off = Event::StepTimeOff {
        generation,
        predicted_ms: 80.0,
        observed_ms: 1510.0,
        calibrated: true,
    };
    let cancelled = Event::Cancelled {
        generation,
        because: "connecting took too long".into(),
    };
    let none = Event::NoPlan {
        reason: "2 stages at least".into(),
    };
    vec![
        (
            planned(false),
            "planned P3xD1 for 3 workers (plan 3, about 154 ms a step): lost w2",
        ),
        (fenced(), "training is stopped under plan 2: w1 lost w2"),
        (
            resumed(100, false, true),
            "plan 3 starts at step 100, from a checkpoint",
        ),
        (
            Event::Connected { generation },
            "the workers of plan 3 have reached each other",
        ),
        (
            running(),
            "resumed at step 100 in 0.0 ms with 0 steps lost, under plan 3",
        ),
        (
            Event::Switched { generation },
            "plan 3 has taken over; training did not stop",
        ),
        (
            cancelled,
            "plan 3 is dropped before it began: connecting took too long",
        ),
        (
            off,
            "steps of plan 3 take 1.5 s, not 80 ms as predicted from measured costs",
        ),
        (
            none,
            "training waits: there is no plan for these workers: 2 stages at least",
        ),
    ]
}

/// Entries about the run as a whole.
fn of_the_run() -> Vec<(Event, &'static str)> {
    let committed = Event::Committed {
        id: state(120),
        generation: Generation(3),
        step: Step(120),
        loss: 2.269_12,
        eval_loss: None,
        gradient_norm: 1.0,
        overflow: false,
    };
    let lost = Event::Lost {
        units: vec![Unit(1), Unit(4)],
    };
    vec![
        (
            Event::TookOver { term: 2 },
            "took over as the run's coordinator, term 2",
        ),
        (committed, "step 120 is committed, loss 2.2691 nats per token"),
        (
            Event::WriteFailed { version: 7 },
            "version 7 of the run's record could not be written: no plan changes until it can",
        ),
        (
            lost,
            "the state of segment 1 and the tied embedding is lost: no worker and no checkpoint holds it",
        ),
        (Event::Done { step: Step(600) }, "training is done with step 600"),
        (
            Event::Deposed { by_term: 3 },
            "gave way to another coordinator, of term 3",
        ),
    ]
}

/// A number for each kind of event: a kind that is added does not compile here before it has one.
fn kind(event: &Event) -> u8 {
    match event {
        Event::TookOver { .. } => 0,
        Event::WorkerJoined { .. } => 1,
        Event::WorkerLost { .. } => 2,
        Event::WorkerDraining { .. } => 3,
        Event::WorkerReleased { .. } => 4,
        Event::Planned { .. } => 5,
        Event::Fenced { .. } => 6,
        Event::Collected { .. } => 7,
        Event::Resumed { .. } => 8,
        Event::Connected { .. } => 9,
        Event::Running { .. } => 10,
        Event::Switched { .. } => 11,
        Event::Cancelled { .. } => 12,
        Event::Committed { .. } => 13,
        Event::StepTimeOff { .. } => 14,
        Event::BelowMinimum { .. } => 15,
        Event::NoPlan { .. } => 16,
        Event::WriteFailed { .. } => 17,
        Event::Lost { .. } => 18,
        Event::Done { .. } => 19,
        Event::Deposed { .. } => 20,
    }
}

#[test]
fn each_kind_of_event_is_a_sentence_for_people() {
    let mut narrator = Narrator::new(LAYOUT);
    let mut kinds = BTreeSet::new();
    for (event, want) in [of_workers(), of_plans(), of_the_run()].concat() {
        kinds.insert(kind(&event));
        let said = narrator.sentence(Duration::ZERO, &event, 0);
        assert_eq!(said, want);
        let document = serde_json::to_value(&event).unwrap();
        let name = document["event"].as_str().unwrap();
        // A word of one piece, as `planned`, may be the sentence's own.
        let code = name.contains(char::is_uppercase) && said.contains(name);
        assert!(!said.contains('=') && !code, "{said}");
    }
    assert_eq!(kinds, (0..=20).collect(), "a kind of event has no sentence here");
}

#[test]
fn what_the_store_shows_is_a_sentence_for_people_and_the_same_document_as_ever() {
    let stored = [
        (
            Stored::Checkpointed {
                step: Step(100),
                state: state(100),
            },
            "checkpoint of step 100 is complete",
            r#"{"event":"checkpointed","state":{"chain":"0000000000000007","run_gen":2,"step":100},"step":100}"#,
        ),
        (
            Stored::CheckpointsFail {
                why: "403 Forbidden".into(),
                newest_step: Some(Step(100)),
            },
            "checkpoints fail, the newest is of step 100: 403 Forbidden",
            r#"{"event":"checkpointsFail","newestStep":100,"why":"403 Forbidden"}"#,
        ),
        (
            Stored::CheckpointsFail {
                why: "403 Forbidden".into(),
                newest_step: None,
            },
            "checkpoints fail, there is none yet: 403 Forbidden",
            r#"{"event":"checkpointsFail","newestStep":null,"why":"403 Forbidden"}"#,
        ),
        (
            Stored::CheckpointStale {
                newest_step: Step(20),
                steps_behind: 61,
            },
            "checkpoints fall behind: the newest is of step 20, 61 steps ago",
            r#"{"event":"checkpointStale","newestStep":20,"stepsBehind":61}"#,
        ),
        (
            Stored::CheckpointStale {
                newest_step: Step(0),
                steps_behind: 61,
            },
            "there is no checkpoint after 61 steps",
            r#"{"event":"checkpointStale","newestStep":0,"stepsBehind":61}"#,
        ),
        (
            Stored::CheckpointsTaken {
                by: "default/other".into(),
            },
            "the place of the checkpoints is another run's, default/other: this run ends",
            r#"{"by":"default/other","event":"checkpointsTaken"}"#,
        ),
    ];
    for (stored, sentence, document) in stored {
        assert_eq!(stored.sentence(), sentence);
        let document: serde_json::Value = serde_json::from_str(document).unwrap();
        assert_eq!(serde_json::to_value(&stored).unwrap(), document);
    }
}

#[test]
fn a_recovery_says_how_long_it_took_and_what_it_lost() {
    let mut narrator = Narrator::new(LAYOUT);
    let mut tell = |ms, event: &Event, lost| narrator.sentence(Duration::from_millis(ms), event, lost);
    assert_eq!(
        tell(10, &resumed(0, false, true), 0),
        "plan 3 starts at step 0, from the job's seed"
    );
    assert_eq!(tell(20, &running(), 0), "training begins at step 0 under plan 3");
    // Another loss overtakes the first recovery: the time counts from the first.
    tell(1_000, &fenced(), 0);
    tell(1_300, &fenced(), 0);
    assert_eq!(
        tell(1_500, &resumed(100, false, true), 20),
        "plan 3 starts at step 100, from a checkpoint; 20 steps are trained again"
    );
    assert_eq!(
        tell(1_800, &running(), 0),
        "resumed at step 100 in 0.8 s with 20 steps lost, under plan 3"
    );
    tell(9_000, &fenced(), 0);
    assert_eq!(
        tell(9_040, &resumed(179, true, false), 0),
        "plan 3 starts at step 179, which was interrupted and is finished, from the workers' memory"
    );
    assert_eq!(
        tell(9_120, &running(), 0),
        "resumed at step 179 in 120 ms with 0 steps lost, under plan 3"
    );
    assert_eq!(
        tell(20_000, &planned(true), 0),
        "planned a change to P3xD1 for 3 workers (plan 3, about 154 ms a step): lost w2"
    );
    assert_eq!(
        tell(20_500, &running(), 0),
        "all workers train under plan 3",
        "a planned change stops nothing"
    );
}

#[test]
fn a_worker_that_may_go_is_not_lost() {
    let mut narrator = Narrator::new(LAYOUT);
    let mut tell = |event: &Event| narrator.sentence(Duration::ZERO, event, 0);
    let (worker, name) = worker(3);
    let lost = Event::WorkerLost {
        worker,
        name: name.clone(),
    };
    tell(&joined(3));
    tell(&Event::WorkerReleased { worker, name });
    assert_eq!(tell(&lost), "w3 has gone");
    tell(&joined(3));
    assert_eq!(tell(&lost), "lost w3: its connection closed or fell silent");
}

#[test]
fn many_workers_are_counted_rather_than_named() {
    let mut narrator = Narrator::new(LAYOUT);
    for number in 1..=11 {
        narrator.sentence(Duration::ZERO, &joined(number), 0);
    }
    let mut collected = |answered: u64, missing: std::ops::Range<u64>| {
        let event = Event::Collected {
            answered: (0..answered).map(WorkerId).collect(),
            missing: missing.map(WorkerId).collect(),
        };
        narrator.sentence(Duration::ZERO, &event, 0)
    };
    assert_eq!(
        collected(3, 1..1),
        "3 workers answered with what they hold; nobody is missing"
    );
    assert_eq!(
        collected(2, 1..12),
        "2 workers answered with what they hold; w1, w2, w3, w4, w5, w6, w7, w8 and 3 more did not"
    );
}
