use super::*;
use varuna_plan::state::Chain;
use varuna_run_folder::StepFigures;

const A: WorkerId = WorkerId(1);
const B: WorkerId = WorkerId(2);

fn state(generation: u64, step: u64) -> StateId {
    StateId {
        run_gen: Generation(generation),
        step: Step(step),
        chain: Chain(step),
    }
}

fn metric(generation: u64, step: u64, time_ms: u64) -> Metric {
    Metric {
        step: Step(step),
        loss: 5.0 - step as f64 / 10.0,
        no_targets: false,
        eval_loss: None,
        gradient_norm: 1.0,
        overflow: false,
        skipped_steps: 0,
        loss_scale: None,
        generation: Generation(generation),
        workers: 2,
        plan: "P2xD1".into(),
        tokens: 64,
        step_ms: 10.0,
        time_ms,
        state: state(generation, step),
        figures: StepFigures::default(),
    }
}

fn event(time_ms: u64, event: Event) -> EventEntry {
    EventEntry {
        event: LoggedEvent::Protocol(event),
        steps_lost: None,
        time_ms,
    }
}

fn resumed(time_ms: u64, generation: u64, base: StateId) -> EventEntry {
    let generation = Generation(generation);
    event(
        time_ms,
        Event::Resumed {
            generation,
            base,
            finished: false,
            restored: true,
        },
    )
}

fn undisturbed() -> Vec<Metric> {
    (1..=4).map(|step| metric(1, step, 0)).collect()
}

/// Two workers with one stage each train four steps, without faults.
fn quiet() -> Evidence {
    let life = |worker| Life {
        worker: Some(worker),
        ..Life::default()
    };
    Evidence {
        steps: 4,
        exit: Some(0),
        published: (1..=4).map(|step| metric(1, step, 100 * step)).collect(),
        events: vec![
            event(50, Event::TookOver { term: 1 }),
            resumed(60, 1, StateId::INITIAL),
            event(
                70,
                Event::Running {
                    generation: Generation(1),
                },
            ),
        ],
        holders: (1..=2).map(|g| (Generation(g), vec![vec![A], vec![B]])).collect(),
        record: Some(Record {
            term: 1,
            highest: Generation(1),
            done: true,
            ..Record::default()
        }),
        lives: vec![life(A), life(B)],
        ..Evidence::default()
    }
}

/// Like `quiet`, but the second plan goes back from step 3 to step 1. B ends at this time, or stays alive.
fn rolled_back(b_ends: Option<u64>) -> Evidence {
    let mut evidence = quiet();
    evidence.events.push(event(
        350,
        Event::Fenced {
            upto: Generation(1),
            because: String::new(),
        },
    ));
    evidence.events.push(resumed(400, 2, state(1, 1)));
    evidence.published.truncate(3);
    evidence
        .published
        .extend((2..=4).map(|step| metric(2, step, 500 + 100 * step)));
    evidence.lives[1].ended_ms = b_ends;
    evidence.lives[1].killed = b_ends.is_some();
    evidence
}

fn problems(evidence: &Evidence) -> Vec<String> {
    let problems = judge(evidence, &undisturbed()).problems;
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_quiet_run_is_sound() {
    assert_eq!(judge(&quiet(), &undisturbed()).problems, []);
}

#[test]
fn steps_may_be_run_again_only_where_a_units_holders_are_gone() {
    let verdict = judge(&rolled_back(Some(340)), &undisturbed());
    assert_eq!(verdict.problems, []);
    assert_eq!((verdict.figures.steps_lost, verdict.figures.steps_again), (0, 2));
    assert_eq!(verdict.figures.pauses_ms, [360]);
    let verdict = judge(&rolled_back(None), &undisturbed());
    assert_eq!(
        verdict.problems,
        [Problem::StepsLost {
            lost: 2,
            reached: 3,
            base: 1,
            generation: 2
        }]
    );
    assert_eq!((verdict.figures.steps_lost, verdict.figures.steps_again), (2, 0));
}

#[test]
fn a_holder_that_could_not_answer_excuses_a_rollback() {
    let mut evidence = rolled_back(None);
    evidence.lives[0].impaired_ms = vec![(300, 390)];
    assert_eq!(problems(&evidence), [""; 0]);
}

#[test]
fn a_step_that_only_a_worker_knows_counts_as_committed() {
    let mut evidence = quiet();
    evidence.events.push(resumed(450, 2, state(1, 3)));
    evidence.commits = vec![Commit {
        time_ms: 410,
        step: Step(4),
        loss: 4.6,
    }];
    let problems = problems(&evidence);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].contains("1 committed steps were lost"),
        "{problems:?}"
    );
}

#[test]
fn unreportable_steps_are_allowed_only_before_a_restore() {
    let mut evidence = rolled_back(Some(340));
    evidence.published = [1, 3, 4]
        .iter()
        .map(|step| metric(1, *step, 100 * step))
        .collect();
    evidence.events[3] = resumed(250, 2, state(1, 2));
    evidence.events.truncate(4);
    assert_eq!(problems(&evidence), ["after step 1 the next published step is 3"]);
    evidence.events.push(event(240, Event::TookOver { term: 2 }));
    if let Some(record) = &mut evidence.record {
        record.term = 2;
    }
    let verdict = judge(&evidence, &undisturbed());
    assert_eq!(verdict.problems, []);
    assert_eq!(verdict.figures.unpublished, 1);
}

#[test]
fn a_missing_step_a_repeated_one_and_another_loss_are_found() {
    let mut missing = quiet();
    missing.published.remove(1);
    assert_eq!(problems(&missing), ["after step 1 the next published step is 3"]);
    let mut end = quiet();
    end.published.pop();
    assert_eq!(problems(&end), ["after step 3 the next published step is 5"]);
    let mut again = quiet();
    again.published.insert(3, metric(2, 3, 350));
    again.published[4].state = state(2, 4);
    assert_eq!(
        problems(&again),
        ["step 3 is published again, although no recovery went back before it"]
    );
    let mut loss = quiet();
    loss.published[1].loss += 1e-3;
    assert_eq!(problems(&loss).len(), 1);
    loss.published[1].loss = f64::NAN;
    assert_eq!(problems(&loss).len(), 1);
}

#[test]
fn unexpected_comparison_result_is_a_problem() {
    let mut evidence = quiet();
    evidence.events.push(event(
        80,
        Event::StatesDiffer {
            step: Step(3),
            units: vec![varuna_plan::Unit(1)],
            replaced: vec![A],
        },
    ));
    let expected = "the holders of units [1] had different bits after step 3, although no fault changed any";
    assert_eq!(problems(&evidence), [expected]);
}

#[test]
fn shrinking_numbers_and_unfinished_record_are_found() {
    let mut evidence = quiet();
    evidence.events.push(event(80, Event::TookOver { term: 1 }));
    assert_eq!(problems(&evidence), ["the term 1 comes after 1"]);
    let mut evidence = quiet();
    evidence.exit = None;
    assert_eq!(problems(&evidence).len(), 1);
    evidence.exit = Some(0);
    if let Some(record) = &mut evidence.record {
        record.done = false;
    }
    assert_eq!(
        problems(&evidence),
        ["the record does not belong to a job that has ended: it is not done"]
    );
}
