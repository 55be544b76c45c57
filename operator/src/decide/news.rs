//! What is new in a report, and whether the next decision may differ because of it.

use varuna_api::ConditionType;
use varuna_api::crd::{Condition, Status};

/// What a report says that the status before did not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum News {
    /// Only time has passed. That is not worth a write; the next write includes it.
    Nothing,
    /// How far the job has come and how fast it is. The reconciliation that reports them has decided with them.
    Figures,
    /// More: the next decision may be another one.
    Facts,
}

/// What a status says that the one before did not.
#[must_use]
pub fn news(before: &Status, after: &Status) -> News {
    if before.time.is_some() != after.time.is_some() {
        return News::Facts;
    }
    let mut with_figures_of_before = Status {
        time: before.time.clone(),
        goodput: before.goodput.clone(),
        ..after.clone()
    };
    if with_figures_of_before == *before {
        return News::Nothing;
    }
    set_figures(&mut with_figures_of_before, before);
    if with_figures_of_before == *before {
        News::Figures
    } else {
        News::Facts
    }
}

/// Replaces the figures: the reconciliation that reports them has decided with them.
pub(super) fn set_figures(of: &mut Status, by: &Status) {
    of.step = by.step;
    of.progress.clone_from(&by.progress);
    of.progressed_at.clone_from(&by.progressed_at);
    of.tokens_per_second = by.tokens_per_second;
    of.eta.clone_from(&by.eta);
    of.loss.clone_from(&by.loss);
    of.skipped_steps = by.skipped_steps;
    of.loss_scale = by.loss_scale;
    of.checkpoint.clone_from(&by.checkpoint);
    // Its sentence names the newest checkpoint.
    let stale = of.conditions.iter_mut().zip(&by.conditions);
    for (condition, by) in stale.filter(|(of, by)| is_stale(of) && is_stale(by)) {
        condition.clone_from(by);
    }
    if let (Some(plan), Some(by)) = (&mut of.plan, &by.plan) {
        plan.observed_step_ms = by.observed_step_ms;
    }
}

fn is_stale(condition: &Condition) -> bool {
    condition.type_ == ConditionType::CheckpointStale.as_str()
}
