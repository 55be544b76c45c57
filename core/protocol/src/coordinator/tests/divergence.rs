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
