//! Runs whose gradients are no longer finite come to an end.

use super::*;
use varuna_plan::{LossScaling, ScaleFactor};

#[test]
fn too_many_failed_steps_end_the_run() {
    let scaling = LossScaling::Dynamic {
        initial: ScaleFactor::two_to(1),
        minimum: ScaleFactor::ONE,
        window: 100,
    };
    let config = CoordinatorConfig {
        loss_scaling: scaling,
        skip_limit: Some(2),
        ..config()
    };
    let mut rig = Rig::training_with(config, &[A]);
    let (mut at, mut before) = (StateId::INITIAL, OptimizerProgress::initial(&scaling));
    // The first failed step only halves the scale. A finite step resets the count.
    let finite = [true, false, false, false, true, false, false];
    for finite in finite {
        let norm2 = if finite { 1.0 } else { f64::NAN };
        let part = UnitNorm::new(norm2, 1.0, None, before);
        let decision = Decision::conclude(at, Generation(1), &[part], None);
        (at, before) = (decision.id, decision.after(&scaling));
        rig.say(A, Report::Committed { decision });
    }
    let ended = |rig: &Rig| rig.events.iter().any(|e| matches!(e, Event::Diverged(_)));
    assert!(!ended(&rig) && rig.sent.is_empty(), "{:?}", rig.events);
    let part = UnitNorm::new(f64::INFINITY, 1.0, None, before);
    let decision = Decision::conclude(at, Generation(1), &[part], None);
    rig.say(A, Report::Committed { decision });
    assert!(ended(&rig));
    assert_eq!(rig.sent, vec![(A, Order::Fence { upto: Generation(1) })]);
    rig.answer(A, &[]);
    rig.put(CoordinatorInput::StreamDown { from: A });
    let divergence = Divergence {
        step: Step(8),
        failed_in_a_row: 3,
        loss_scale: ScaleFactor::ONE,
    };
    assert_eq!(rig.finished, Some(Outcome::Diverged(divergence)));
    assert!(!rig.store.done);
}

/// A step of generation 1 without a finite gradient, the first of the run.
fn failed_step() -> Report {
    let part = UnitNorm::new(f64::NAN, 1.0, None, OptimizerProgress::START);
    let decision = Decision::conclude(StateId::INITIAL, Generation(1), &[part], None);
    Report::Committed { decision }
}

/// The run's divergence at that step, where no step may fail.
fn at_once() -> Outcome {
    Outcome::Diverged(Divergence {
        step: Step(1),
        failed_in_a_row: 1,
        loss_scale: ScaleFactor::ONE,
    })
}

#[test]
fn a_stop_after_divergence_leaves_the_outcome() {
    let config = CoordinatorConfig {
        skip_limit: Some(0),
        ..config()
    };
    let mut rig = Rig::training_with(config, &[A]);
    rig.say(A, failed_step());
    rig.put(CoordinatorInput::Stop);
    rig.answer(A, &[]);
    rig.put(CoordinatorInput::Stop);
    rig.put(CoordinatorInput::StreamDown { from: A });
    assert_eq!(rig.finished, Some(at_once()));
    assert!(!rig.store.is_stopped(), "nobody stopped it");
}

#[test]
fn a_run_that_diverged_during_a_write_is_not_stopped() {
    let mut rig = Rig::training(&[A]);
    rig.machine.shared.config.skip_limit = Some(0);
    rig.wait(100);
    rig.manual = true;
    rig.join(B);
    let record = rig.written.clone().expect("a change is written");
    rig.say(A, failed_step());
    assert_eq!(rig.machine.snapshot().run.mode, RunMode::Persisting);
    rig.put(CoordinatorInput::Stop);
    rig.put(CoordinatorInput::Written { ok: true, record });
    for worker in [A, B] {
        rig.answer(worker, &[]);
        rig.put(CoordinatorInput::StreamDown { from: worker });
    }
    assert_eq!(rig.finished, Some(at_once()));
    let said = |e: &&Event| matches!(e, Event::Diverged(_));
    assert_eq!(rig.events.iter().filter(said).count(), 1);
}
