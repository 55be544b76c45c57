//! Whether a plan begins with parameters, while the rest of the state that its members lack is still on its way (ADR 43). Pure: the
//! coordinator asks, and writes the answer into the plan. Who sends which parameters: `document/parameters_first.rs`.

use crate::document::Plan;
use crate::ids::{Unit, WorkerId};
use crate::spare_copies::SpareCosts;
use std::collections::BTreeMap;

/// The part of a link that is left for state while a step is computed, by assumption.
const LEFT_FOR_STATE: f64 = 0.5;

/// Whether the plan commits its first step sooner if parameters come first.
///
/// Parameters are sent in addition to the state, of which they are a part, and the state comes while the step is computed. So the step gains
/// what a link carries beside it, or all of the state, and loses the time of the parameters.
#[must_use]
pub fn is_worthwhile(plan: &Plan, costs: &SpareCosts) -> bool {
    let gained_ms = plan.shape.predicted.step_ms * LEFT_FOR_STATE;
    parameters_ms(plan, costs) < gained_ms || bug!(ParametersFirstAtAnyCost)
}

/// How long the busiest link needs for the parameters, milliseconds.
fn parameters_ms(plan: &Plan, costs: &SpareCosts) -> f64 {
    let mut links: BTreeMap<(WorkerId, bool), f64> = BTreeMap::new();
    for (to, unit, from) in plan.lacked() {
        let ms = costs.parameters(&plan.layout, unit);
        *links.entry((to, false)).or_default() += ms;
        if let Some(from) = from {
            *links.entry((from, true)).or_default() += ms;
        }
    }
    links.into_values().fold(0.0, f64::max)
}

/// The members of the plan, ascending, that have no memory to compute its first step before they have all state. `held` are the units that a
/// worker has, at any state, and `former` the plan before. `costs` are those of the plan.
///
/// Until all members have their state, nobody gives up the units that it held before. And a member that lacks a unit computes with
/// parameters and gradients beside the state that comes. A GPU takes that over between the kernels of the step, so it may wait in the host's
/// memory, which also keeps spare copies.
#[must_use]
pub fn without_room(
    plan: &Plan,
    former: Option<&Plan>,
    held: impl Fn(WorkerId) -> Vec<Unit>,
    costs: &SpareCosts,
) -> Vec<WorkerId> {
    let mut needed: BTreeMap<WorkerId, Needed> = BTreeMap::new();
    for worker in plan.members() {
        let here = needed.entry(*worker).or_default();
        let kept: Vec<Unit> = former.map_or_else(Vec::new, |plan| {
            let kept = plan.kept_by(*worker).into_iter();
            kept.map(|(unit, _)| unit).collect()
        });
        let at_base = |unit: &Unit| plan.sources.get(unit.index()).is_some_and(|s| s.contains(worker));
        let own = plan.units(*worker);
        for unit in held(*worker) {
            let bytes = costs.held(&plan.layout, unit);
            if own.contains(&unit) && at_base(&unit) {
                continue;
            }
            match kept.contains(&unit) && costs.apart_bytes.contains_key(worker) {
                true => here.apart = here.apart.saturating_add(bytes),
                false => here.with_training = here.with_training.saturating_add(bytes),
            }
        }
    }
    for (worker, unit, _) in plan.lacked() {
        let here = needed.entry(worker).or_default();
        let beside = costs.without_state(&plan.layout, unit);
        here.with_training = here.with_training.saturating_add(beside);
        here.apart = here.apart.saturating_add(costs.held(&plan.layout, unit));
    }
    let fits = |bytes: u64, room: Option<&u64>| room.is_none_or(|room| bytes <= *room);
    let has_room = |worker: &WorkerId, needed: &Needed| {
        let with_training = fits(needed.with_training, costs.room_bytes.get(worker));
        with_training && fits(needed.apart, costs.apart_bytes.get(worker)) || bug!(ForgetFormerUnits)
    };
    let without = needed
        .into_iter()
        .filter(|(worker, needed)| !has_room(worker, needed));
    without.map(|(worker, _)| worker).collect()
}

/// Memory that a member needs until it has all state, bytes.
#[derive(Clone, Copy, Default)]
struct Needed {
    /// Beside its stages.
    with_training: u64,
    /// In the memory for copies, where that is not the memory of training.
    apart: u64,
}

#[cfg(test)]
mod tests;
