use super::*;
use varuna_plan::spare_copies::SpareCopyDecision;
use varuna_plan::state::Chain;
use varuna_plan::{ScaleFactor, Unit};
use varuna_protocol::coordinator::Divergence;
use varuna_run_folder::CheckpointEvent;

const LAYOUT: Layout = Layout::new(4, true);
const GENERATION: Generation = Generation(3);

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

fn lost(number: u64) -> Event {
    let (worker, name) = worker(number);
    Event::WorkerLost { worker, name }
}

fn released(number: u64) -> Event {
    let (worker, name) = worker(number);
    Event::WorkerReleased { worker, name }
}

fn draining(number: u64) -> Event {
    let (worker, name) = worker(number);
    Event::WorkerDraining { worker, name }
}

fn collected(answered: u64, missing: std::ops::Range<u64>) -> Event {
    Event::Collected {
        answered: (0..answered).map(WorkerId).collect(),
        missing: missing.map(WorkerId).collect(),
    }
}

fn resumed(step: u64, finished: bool, restored: bool) -> Event {
    Event::Resumed {
        generation: GENERATION,
        base: if step == 0 { StateId::INITIAL } else { state(step) },
        finished,
        restored,
    }
}

fn planned(workers: usize, change: bool) -> Event {
    Event::Planned {
        generation: GENERATION,
        plan: format!("P{workers}xD1"),
        workers,
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
        generation: GENERATION,
    }
}

fn step_time_off(observed_ms: f64, calibrated: bool) -> Event {
    Event::StepTimeOff {
        generation: GENERATION,
        predicted_ms: 80.0,
        observed_ms,
        calibrated,
    }
}

fn costs_corrected(observed_ms: f64, factor: f64) -> Event {
    Event::CostsCorrected {
        generation: GENERATION,
        predicted_ms: 80.0,
        observed_ms,
        factor,
    }
}

fn differ(replaced: Vec<WorkerId>) -> Event {
    Event::StatesDiffer {
        step: Step(120),
        units: vec![Unit(1), Unit(4)],
        replaced,
    }
}

fn committed() -> Event {
    Event::Committed {
        id: state(120),
        generation: GENERATION,
        step: Step(120),
        loss: Some(2.269_12),
        eval_loss: None,
        gradient_norm: 1.0,
        overflow: false,
        progress: varuna_plan::OptimizerProgress::START,
    }
}

fn skipped() -> Event {
    let mut event = committed();
    if let Event::Committed { overflow, .. } = &mut event {
        *overflow = true;
    }
    event
}

fn without_targets() -> Event {
    let mut event = committed();
    if let Event::Committed { loss, .. } = &mut event {
        *loss = None;
    }
    event
}

fn diverged(loss_scale: ScaleFactor) -> Event {
    Event::Diverged(Divergence {
        step: Step(120),
        failed_in_a_row: 21,
        loss_scale,
    })
}

/// Milliseconds, the event at this time, and the number of steps that it costs.
type TimedEvent = (u64, Event, u64);

/// Runs, each with its title.
#[expect(clippy::too_many_lines, reason = "a table")]
fn runs() -> Vec<(&'static str, Vec<TimedEvent>)> {
    let now = |event| (0, event, 0);
    vec![
        (
            "a run from its start to its end",
            vec![
                now(Event::TookOver { term: 2 }),
                now(joined(3)),
                now(Event::BelowMinimum { have: 1, need: 2 }),
                now(planned(1, false)),
                now(planned(3, false)),
                now(Event::Connected {
                    generation: GENERATION,
                }),
                (10, resumed(0, false, true), 0),
                (20, running(), 0),
                now(committed()),
                now(without_targets()),
                now(step_time_off(1510.0, true)),
                now(step_time_off(2.54, false)),
                now(costs_corrected(8_120.0, 104.2)),
                now(costs_corrected(150.0, 2.04)),
                now(costs_corrected(1.5, 0.0031)),
                now(planned(4, true)),
                (20_500, running(), 0),
                now(Event::Switched {
                    generation: GENERATION,
                }),
                now(Event::Done { step: Step(600) }),
                now(lost(3)),
            ],
        ),
        (
            "recoveries; the second loss of the first one prolongs it",
            vec![
                now(joined(3)),
                now(lost(3)),
                (1_000, fenced(), 0),
                (1_300, fenced(), 0),
                now(collected(3, 1..1)),
                now(collected(1, 2..4)),
                (1_500, resumed(100, false, true), 20),
                (1_800, running(), 0),
                (9_000, fenced(), 0),
                (9_040, resumed(179, true, false), 0),
                (9_120, running(), 0),
            ],
        ),
        (
            "a worker that is told to end is not lost, unless it joins again",
            vec![
                now(joined(3)),
                now(draining(3)),
                now(released(3)),
                now(lost(3)),
                now(joined(3)),
                now(lost(3)),
            ],
        ),
        (
            "of many workers eight are named",
            (1..=11)
                .map(|number| now(joined(number)))
                .chain([now(collected(2, 1..12))])
                .collect(),
        ),
        (
            "trouble",
            vec![
                now(Event::NoPlan {
                    reason: "2 stages at least".into(),
                }),
                now(Event::Cancelled {
                    generation: GENERATION,
                    because: "connecting took too long".into(),
                }),
                now(Event::FollowersCaughtUp {
                    generation: GENERATION,
                    workers: vec![WorkerId(3)],
                }),
                now(Event::FollowersLate {
                    generation: GENERATION,
                    workers: vec![WorkerId(3)],
                }),
                now(spare_copies(SpareCopyDecision::Kept, 4)),
                now(spare_copies(SpareCopyDecision::KeptInPart, 1)),
                now(spare_copies(SpareCopyDecision::KeptWhereLinksAllow, 3)),
                now(spare_copies(SpareCopyDecision::NotWanted, 0)),
                now(spare_copies(SpareCopyDecision::NothingAlone, 0)),
                now(spare_copies(SpareCopyDecision::NoKeeper, 0)),
                now(spare_copies(SpareCopyDecision::LinksTooSlow, 0)),
                now(spare_copies(SpareCopyDecision::LossesTooRare, 0)),
                now(Event::CheckpointInterval { seconds: Some(12.4) }),
                now(Event::CheckpointInterval { seconds: None }),
                now(Event::WriteFailed { version: 7 }),
                now(Event::Lost {
                    units: vec![Unit(1), Unit(4)],
                }),
                now(Event::Deposed { by_term: 3 }),
            ],
        ),
        (
            "no gradient is finite any more",
            vec![
                now(skipped()),
                now(diverged(ScaleFactor::ONE)),
                now(diverged(ScaleFactor::two_to(7))),
            ],
        ),
        (
            "the last checkpoint is damaged",
            [true, false]
                .map(|again| {
                    now(Event::FinalCheckpointDamaged {
                        state: state(600),
                        again,
                    })
                })
                .into(),
        ),
        (
            "holders of the same state differ",
            vec![
                now(joined(3)),
                now(differ(vec![WorkerId(3)])),
                now(differ(vec![])),
            ],
        ),
    ]
}

fn of_checkpoints() -> Vec<CheckpointEvent> {
    let failing = |newest_step| CheckpointEvent::CheckpointsFail {
        why: "403 Forbidden".into(),
        newest_step,
    };
    let awaited = |why: Option<&str>| CheckpointEvent::LastCheckpointAwaited {
        step: Step(600),
        why: why.map(str::to_owned),
    };
    let stale = |step| CheckpointEvent::CheckpointStale {
        newest_step: Step(step),
        steps_behind: 61,
    };
    vec![
        CheckpointEvent::Checkpointed {
            step: Step(100),
            state: state(100),
        },
        failing(Some(Step(100))),
        failing(None),
        CheckpointEvent::CheckpointsWork {
            newest_step: Some(Step(100)),
        },
        awaited(None),
        awaited(Some(
            "w1 cannot upload to /data/checkpoints: No space left on device",
        )),
        stale(20),
        stale(0),
        CheckpointEvent::ShardMisread {
            state: state(100),
            unit: "segment-001".into(),
            by: "w7 on node-3".into(),
        },
        CheckpointEvent::CheckpointsTaken {
            by: "default/other".into(),
        },
    ]
}

/// The name of an event's kind in `events.jsonl`.
fn kind(event: &impl serde::Serialize) -> String {
    let document = serde_json::to_value(event).unwrap();
    document["event"].as_str().unwrap().to_owned()
}

fn spare_copies(verdict: SpareCopyDecision, kept: usize) -> Event {
    Event::SpareCopies {
        generation: GENERATION,
        verdict,
        kept,
    }
}

/// A number for each kind of event. A new kind does not compile here before it has one.
fn number(event: &Event) -> usize {
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
        Event::StatesDiffer { .. } => 21,
        Event::Diverged(_) => 22,
        Event::CostsCorrected { .. } => 23,
        Event::FinalCheckpointDamaged { .. } => 24,
        Event::FollowersLate { .. } => 25,
        Event::FollowersCaughtUp { .. } => 26,
        Event::SpareCopies { .. } => 27,
        Event::CheckpointInterval { .. } => 28,
    }
}

#[test]
fn the_sentence_of_each_event_is_the_one_that_was_reviewed() {
    let mut table = String::new();
    let mut numbers = BTreeSet::new();
    for (title, events) in runs() {
        let mut text = EventText::new(LAYOUT, BTreeMap::new());
        table.push_str(&format!("# {title}\n"));
        for (ms, event, steps_lost) in events {
            numbers.insert(number(&event));
            let sentence = text.sentence(Duration::from_millis(ms), &event, steps_lost);
            table.push_str(&format!("{:<16} {sentence}\n", kind(&event)));
        }
    }
    assert!(
        numbers.into_iter().eq(0..=28),
        "a kind of event has no sentence in the table"
    );
    table.push_str("# checkpoints\n");
    for event in of_checkpoints() {
        table.push_str(&format!("{:<16} {}\n", kind(&event), of_checkpoint(&event)));
    }
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/src/event_text/sentences.txt");
    if std::env::var_os("VARUNA_UPDATE_GOLDEN").is_some() {
        std::fs::write(golden, &table).unwrap();
    }
    assert_eq!(table, std::fs::read_to_string(golden).unwrap());
}

#[test]
fn only_names_of_workers_long_gone_are_forgotten() {
    let mut text = EventText::new(LAYOUT, BTreeMap::new());
    let last = GONE_MAX as u64 + 3;
    let mut events = vec![joined(1), lost(1), joined(1)];
    for number in 2..=last {
        events.extend([joined(number), lost(number)]);
    }
    for event in &events {
        text.sentence(Duration::ZERO, event, 0);
    }
    assert_eq!(
        text.names.len(),
        GONE_MAX + 1,
        "those that have gone, and one that has not"
    );
    let said = text.names(&[WorkerId(1), WorkerId(3), WorkerId(4), WorkerId(last)]);
    assert_eq!(said, format!("w1, {}, w4, w{last}", WorkerId(3)));
}

#[test]
fn the_workers_of_a_run_that_is_stopped_are_not_lost() {
    let mut text = EventText::new(LAYOUT, BTreeMap::new());
    for worker in 1..3 {
        text.sentence(Duration::ZERO, &joined(worker), 0);
    }
    let before = text.sentence(Duration::ZERO, &lost(1), 0);
    assert!(before.starts_with("lost worker w1"), "{before}");
    text.note_stop();
    assert_eq!(text.sentence(Duration::ZERO, &lost(2), 0), "worker w2 has ended");
}

#[test]
fn workers_of_an_earlier_coordinator_have_their_names() {
    let mut text = EventText::new(LAYOUT, BTreeMap::from([worker(1), worker(2)]));
    let said = text.sentence(Duration::ZERO, &collected(1, 1..4), 0);
    assert!(
        said.ends_with(&format!("no report from w1, w2, {}", WorkerId(3))),
        "{said}"
    );
    // One that joins again has not gone.
    text.sentence(Duration::ZERO, &joined(2), 0);
    assert_eq!(text.gone, [WorkerId(1)]);
}

#[test]
fn a_start_with_another_jobs_weights_is_not_one_from_the_seed() {
    let event = Event::Resumed {
        generation: GENERATION,
        base: state(0),
        finished: false,
        restored: true,
    };
    let said = EventText::new(LAYOUT, BTreeMap::new()).sentence(Duration::ZERO, &event, 0);
    assert_eq!(said, "plan 3 starts at step 0 from a checkpoint");
}
