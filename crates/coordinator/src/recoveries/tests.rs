use super::*;
use varuna_plan::{OptimizerProgress, StateId, Step};

fn committed(generation: u64, step: u64) -> Event {
    Event::Committed {
        id: StateId::INITIAL,
        generation: Generation(generation),
        step: Step(step),
        loss: Some(1.0),
        eval_loss: None,
        gradient_norm: 1.0,
        overflow: false,
        progress: OptimizerProgress::START,
    }
}

fn fenced(upto: u64) -> Event {
    Event::Fenced {
        upto: Generation(upto),
        because: "w2 is gone".into(),
    }
}

fn planned() -> Event {
    Event::Planned {
        generation: Generation(2),
        plan: "P1xD1".into(),
        workers: 1,
        predicted_ms: 1.0,
        change: false,
        reason: "lost w2".into(),
    }
}

fn lost() -> Event {
    Event::WorkerLost {
        worker: WorkerId(2),
        name: "w2".into(),
    }
}

fn collected() -> Event {
    Event::Collected {
        answered: vec![WorkerId(1)],
        missing: vec![WorkerId(2)],
    }
}

fn recorded(events: impl IntoIterator<Item = (u64, Event)>) -> Vec<(Phase, Cause, u128)> {
    let mut recoveries = Recoveries::default();
    let measured = events
        .into_iter()
        .flat_map(|(ms, event)| recoveries.observe(Duration::from_millis(ms), &event));
    measured.map(|m| (m.phase, m.cause, m.took.as_millis())).collect()
}

/// A step that was running at the fence, or that the new plan finishes, is committed by a fenced generation.
#[test]
fn a_step_of_a_fenced_generation_ends_no_recovery() {
    let running = Event::Running {
        generation: Generation(2),
    };
    let expected = [
        (Phase::Collect, Cause::Lost, 30),
        (Phase::Plan, Cause::Lost, 60),
        (Phase::Transfer, Cause::Lost, 200),
        (Phase::Step, Cause::Lost, 200),
        (Phase::Total, Cause::Lost, 490),
    ];
    for late in [110, 115, 250] {
        let mut events = vec![
            (0, committed(1, 1)),
            (100, lost()),
            (110, fenced(1)),
            (140, collected()),
            (200, planned()),
            (400, running.clone()),
            (600, committed(2, 3)),
        ];
        let after = events.iter().position(|(at, _)| *at > late).unwrap();
        events.insert(after, (late, committed(1, 2)));
        assert_eq!(recorded(events), expected, "{late}");
    }
}

#[test]
fn a_left_out_worker_that_went_is_no_cause_of_a_later_change() {
    let change = Event::Planned {
        generation: Generation(2),
        plan: "P1xD2".into(),
        workers: 2,
        predicted_ms: 1.0,
        change: true,
        reason: "w3 joined".into(),
    };
    let joined = Event::WorkerJoined {
        worker: WorkerId(3),
        name: "w3".into(),
        address: String::new(),
    };
    let switched = Event::Switched {
        generation: Generation(2),
    };
    let mut recoveries = Recoveries::default();
    let mut measured = Vec::new();
    let events = [
        committed(1, 1),
        lost(),
        committed(1, 2),
        joined,
        change,
        switched,
        // The lost one does not count for what comes after the change either.
        fenced(2),
        committed(3, 3),
    ];
    for event in &events {
        measured.extend(recoveries.observe(Duration::ZERO, event));
    }
    measured.retain(|m| m.phase == Phase::Total);
    let found: Vec<_> = measured.iter().map(|m| (m.cause, m.workers)).collect();
    assert_eq!(found, [(Cause::Joined, 0), (Cause::Other, 0)]);
}

#[test]
fn workers_of_a_stopped_run_are_no_cause_of_a_recovery() {
    let events = [
        (0, committed(1, 1)),
        (100, lost()),
        (60_000, Event::TookOver { term: 2 }),
        (60_100, fenced(1)),
        (60_400, committed(2, 2)),
    ];
    let expected = [
        (Phase::Step, Cause::Takeover, 300),
        (Phase::Total, Cause::Takeover, 300),
    ];
    assert_eq!(recorded(events), expected);
}

#[test]
fn recovery_that_a_coordinator_left_is_begun_anew() {
    let events = [
        (0, committed(1, 1)),
        (100, fenced(1)),
        (200, collected()),
        (60_000, Event::TookOver { term: 2 }),
        (60_100, fenced(1)),
        (60_400, committed(2, 2)),
    ];
    let measured = recorded(events);
    let last = measured.last().copied();
    assert_eq!(last, Some((Phase::Total, Cause::Takeover, 300)));
    // Where the workers went on with what the earlier coordinator had planned, it is the same recovery.
    let events = [
        (0, committed(1, 1)),
        (100, fenced(1)),
        (200, Event::TookOver { term: 2 }),
        (400, committed(2, 2)),
    ];
    let measured = recorded(events);
    let last = measured.last().copied();
    assert_eq!(last, Some((Phase::Total, Cause::Takeover, 300)));
}
