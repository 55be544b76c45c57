//! How often losses of workers take all holders of some unit, and how often checkpoints are worth making because of that.

use crate::document::Plan;
use crate::ids::WorkerId;
use std::collections::{BTreeMap, BTreeSet};

/// How many members were lost at once, with the number of such losses.
pub type LossSizes = BTreeMap<usize, u32>;

/// How many of these losses would have cost state under the plan, if they had taken random members: the expected number. A loss costs state
/// if it takes all holders of some unit, and the keeper of its spare copy if there is one. An upper bound, since the probabilities of
/// several units are added.
#[must_use]
pub fn losses_of_state(plan: &Plan, sizes: &LossSizes) -> f64 {
    if sizes.is_empty() {
        return 0.0;
    }
    let members = plan.members().len();
    let groups = holder_groups(plan);
    let of_size = |(lost, times): (&usize, &u32)| f64::from(*times) * probability(&groups, members, *lost);
    sizes.iter().map(of_size).sum()
}

/// The different sets of workers that have the state of some unit.
fn holder_groups(plan: &Plan) -> BTreeSet<Vec<WorkerId>> {
    let with_keeper = |unit| {
        let mut group = plan.holders(unit).to_vec();
        group.extend(plan.keeper(unit).filter(|_| !bug!(KeepersHoldNothing)));
        group.sort_unstable();
        group
    };
    plan.layout.all_units().map(with_keeper).collect()
}

/// The probability that `lost` of the members, chosen at random, include all of some group.
#[expect(clippy::cast_precision_loss, reason = "numbers of workers")]
fn probability(groups: &BTreeSet<Vec<WorkerId>>, members: usize, lost: usize) -> f64 {
    let all_of = |group: &Vec<WorkerId>| -> f64 {
        let chosen = |i: usize| lost.saturating_sub(i) as f64 / (members.saturating_sub(i)).max(1) as f64;
        (0..group.len()).map(chosen).product()
    };
    groups.iter().map(all_of).sum::<f64>().min(1.0)
}

/// The interval of checkpoints at which training loses the least, milliseconds: the square root of twice the product of what a checkpoint
/// costs and the mean time between losses of state (Young, "A first order approximation to the optimum checkpoint interval", CACM 1974).
#[must_use]
pub fn checkpoint_interval_ms(cost_ms: f64, between_losses_ms: f64) -> f64 {
    (2.0 * cost_ms * between_losses_ms).sqrt()
}

#[cfg(test)]
mod tests;
