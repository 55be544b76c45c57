//! The state at which a recovery resumes.

use super::super::resume::Evidence;
use super::*;

fn answer(units: &[StateId], prepared: &[u32], put_in: bool) -> Inventory {
    let run_gen = Generation(1);
    let step = Step(5);
    let prepared = prepared.iter().map(|u| {
        (
            Unit(*u),
            Prepared {
                run_gen,
                step,
                norm: norm(1.0),
            },
        )
    });
    Inventory {
        upto: Generation(2),
        units: (0..).map(Unit).zip(units.iter().copied()).collect(),
        prepared: prepared.collect(),
        ran: Some(Ran {
            generation: run_gen,
            step,
            norm_put_in: put_in,
        }),
        decision: None,
    }
}

fn resume(answers: Vec<Inventory>, persisted: Option<Decision>, saved: &[StateId]) -> Option<StateId> {
    let answers = (1..).map(WorkerId).zip(answers).collect();
    let evidence = Evidence {
        layout: Layout::new(2, false),
        answers: &answers,
        persisted,
        checkpoints: saved,
        reached: None,
    };
    evidence.resume().map(|r| r.id)
}

fn decided() -> Decision {
    Decision::conclude(state(1, 5), Generation(1), &[norm(1.0), norm(1.0)], None)
}

#[test]
fn a_step_that_somebody_may_have_committed_is_finished() {
    let parent = [state(1, 5); 2];
    let answers = vec![answer(&parent, &[0, 1], true)];
    assert_eq!(resume(answers, None, &[]), Some(decided().id));
}

#[test]
fn a_step_that_nobody_can_have_committed_is_run_again() {
    let parent = [state(1, 5); 2];
    let answers = vec![answer(&parent, &[0, 1], true), answer(&parent, &[], false)];
    assert_eq!(resume(answers, None, &[]), Some(state(1, 5)));
}

#[test]
fn fully_prepared_step_is_finished() {
    let parent = [state(1, 5); 2];
    let answers = vec![answer(&parent, &[0, 1], false)];
    assert_eq!(resume(answers, None, &[]), Some(decided().id));
}

/// Generation 1 reduced step 5. A recovery decided to finish the step; a worker applied it and died. Now a worker answers that had not sent
/// its norm: without the persisted decision, this would prove that nobody has committed the step.
#[test]
fn a_persisted_decision_binds_the_next_recovery() {
    let parent = [state(1, 5); 2];
    let answers = vec![answer(&parent, &[0, 1], true), answer(&parent, &[], false)];
    assert_eq!(resume(answers, Some(decided()), &[]), Some(decided().id));
}

#[test]
fn missing_holder_means_newest_checkpoint_or_nothing() {
    let answers = || vec![answer(&[state(1, 5)], &[], false)];
    assert_eq!(
        resume(answers(), None, &[state(1, 2), state(1, 4)]),
        Some(state(1, 4))
    );
    assert_eq!(resume(answers(), None, &[]), None);
}

#[test]
fn prepared_and_committed_workers_cover_the_model() {
    let committed = Inventory {
        decision: Some(decided()),
        ..answer(&[], &[], true)
    };
    let committed = Inventory {
        units: BTreeMap::from([(Unit(0), decided().id)]),
        ..committed
    };
    let prepared = answer(&[state(1, 5); 2], &[1], true);
    assert_eq!(resume(vec![committed, prepared], None, &[]), Some(decided().id));
}
