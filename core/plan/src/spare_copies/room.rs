//! Whether members have memory for the units that they would follow (ADR 26): until the switch these are kept in addition to the training
//! state and the spare copies. This module has no memory model of its own: all three values come from [`SpareCosts`].

use super::SpareCosts;
use crate::document::{Plan, Shape};
use crate::ids::WorkerId;
use std::collections::{BTreeMap, BTreeSet};

/// The members of the plan in force, ascending, that would follow units to get to `next` and have no memory for them. `costs` are those of
/// the plan in force.
///
/// A followed unit needs as much memory as a spare copy: the state, and as many gradients as may wait. A unit whose spare copy a member
/// already keeps needs nothing more. Copies that are kept in other memory than that of training leave room. A newcomer holds only what `next`
/// gives it, which was planned within its memory.
#[must_use]
pub fn without_room_to_follow(plan: &Plan, next: &Shape, costs: &SpareCosts) -> Vec<WorkerId> {
    let layout = &plan.layout;
    let mut kept: BTreeMap<WorkerId, u64> = BTreeMap::new();
    let mut followed: BTreeMap<WorkerId, u64> = BTreeMap::new();
    for unit in layout.all_units() {
        let bytes = costs.copy(layout, unit);
        let add = |to: &mut BTreeMap<WorkerId, u64>, worker: WorkerId| {
            let sum = to.entry(worker).or_default();
            *sum = sum.saturating_add(bytes);
        };
        let keeper = plan.keeper(unit);
        let beside = |keeper: &WorkerId| costs.takes_trainings_memory(*keeper);
        if let Some(keeper) = keeper.filter(beside).filter(|_| !bug!(ForgetKeptCopies)) {
            add(&mut kept, keeper);
        }
        let here: BTreeSet<WorkerId> = plan.holders(unit).iter().copied().chain(keeper).collect();
        let there: BTreeSet<WorkerId> = next.holders(layout, unit).into_iter().collect();
        for worker in there.difference(&here).filter(|w| plan.has(**w)) {
            add(&mut followed, *worker);
        }
    }
    let lacks_room = |(worker, bytes): (WorkerId, u64)| {
        let kept = kept.get(&worker).copied().unwrap_or(0);
        let room = costs.room_bytes.get(&worker);
        room.is_some_and(|room| bytes.saturating_add(kept) > *room)
            .then_some(worker)
    };
    followed.into_iter().filter_map(lacks_room).collect()
}
