//! What a run's losses must be.

use crate::Metric;
use std::collections::BTreeMap;

/// The last time that each step was published: what counts where a run went back to a checkpoint.
#[must_use]
pub fn last_of_each(metrics: &[Metric]) -> Vec<Metric> {
    let by_step: BTreeMap<u64, Metric> = metrics.iter().map(|m| (m.step, m.clone())).collect();
    by_step.into_values().collect()
}

/// Steps must be 1..=n, each once: nothing lost, nothing repeated; and the losses those of the undisturbed run.
///
/// # Panics
/// When they are not.
pub fn assert_same_curve(undisturbed: &[Metric], run: &[Metric], steps: u64) {
    let numbers: Vec<u64> = run.iter().map(|m| m.step).collect();
    let expected: Vec<u64> = (1..=steps).collect();
    assert_eq!(
        numbers, expected,
        "every committed step is published once, in order"
    );
    for (a, b) in undisturbed.iter().zip(run) {
        let off = (a.loss - b.loss).abs() / a.loss.abs();
        assert!(
            off <= 1e-5,
            "step {}: {} undisturbed, {} here ({off:.1e} off)",
            a.step,
            a.loss,
            b.loss
        );
        match (a.eval_loss, b.eval_loss) {
            (None, None) => {}
            (Some(x), Some(y)) => assert!(
                (x - y).abs() <= 1e-5 * x.abs(),
                "evaluation at {}: {x} and {y}",
                a.step
            ),
            other => panic!("evaluation at step {}: {other:?}", a.step),
        }
    }
    assert!(
        run.last().is_some_and(|m| m.loss < 0.8 * run[0].loss),
        "the model learns"
    );
}
