//! Plans for possible losses. They are made one by one while a run is quiet, and used by a recovery from exactly that loss. A plan is the
//! same whether it is made before or after the loss, since the planner is a function of its request; a plan made for a different request is
//! never used.

use crate::message::Time;
use std::collections::{BTreeMap, BTreeSet};
use varuna_plan::{Generation, PlanRequest, Shape, WorkerId};

/// Maximum number of losses that are planned for.
const LOSSES_MAX: usize = 1_024;
/// Maximum number of stages in all plans together: a few tens of megabytes.
const STAGES_MAX: usize = 1 << 19;

/// What the plans are made from. When any of it changes, all plans are dropped.
#[derive(PartialEq)]
struct MadeFrom {
    generation: Generation,
    /// The request with all workers that may be planned with.
    request: PlanRequest,
}

/// The prepared plans, and the losses that are still to be planned for.
#[derive(Default)]
pub(super) struct PreparedPlans {
    made_from: Option<MadeFrom>,
    /// The losses still to be planned for, the next one last.
    losses: Vec<BTreeSet<WorkerId>>,
    plans: Vec<(PlanRequestKey, Shape)>,
    due: Time,
    /// All are made; see [`PreparedPlans::complete`].
    complete: Option<Complete>,
}

/// The situation in which the last of the plans was made.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Complete {
    generation: Generation,
    /// The roster's change counter.
    changes: u64,
    /// When this is checked again: a quarantine, a bad link or a horizon may have changed with time.
    until: Time,
}

/// The workers and the planning horizon of a request; everything else is in [`MadeFrom`].
type PlanRequestKey = (Vec<WorkerId>, Option<u64>);

fn key(request: &PlanRequest) -> PlanRequestKey {
    let workers = request.workers.iter().map(|w| w.id).collect();
    (workers, request.horizon_ms.map(f64::to_bits))
}

impl PreparedPlans {
    pub(super) fn forget(&mut self) {
        *self = PreparedPlans {
            due: self.due,
            ..PreparedPlans::default()
        };
    }

    pub(super) fn is_due(&self, now: Time) -> bool {
        now >= self.due
    }

    /// All plans are made for this generation and these workers: nothing needs to be checked before `until`.
    pub(super) fn complete(&mut self, generation: Generation, changes: u64, until: Time) {
        self.complete = Some(Complete {
            generation,
            changes,
            until,
        });
    }

    /// Whether all plans are made, as far as this can be decided without checking each worker.
    pub(super) fn is_complete(&self, generation: Generation, changes: u64, now: Time) -> bool {
        let same = |c: Complete| (c.generation, c.changes) == (generation, changes) && now < c.until;
        self.complete.is_some_and(same)
    }

    /// The next loss to plan for, from a generation with these members. `request` has all workers that may be planned with; the loss after
    /// this one is due at `due`.
    pub(super) fn next_loss(
        &mut self,
        due: Time,
        generation: Generation,
        request: PlanRequest,
        members: &[WorkerId],
    ) -> Option<BTreeSet<WorkerId>> {
        self.due = due;
        let made_from = MadeFrom { generation, request };
        if self.made_from.as_ref() != Some(&made_from) {
            self.forget();
            self.losses = losses(&made_from.request, members);
            self.made_from = Some(made_from);
        }
        self.losses.pop()
    }

    pub(super) fn add(&mut self, request: &PlanRequest, shape: Shape) {
        self.plans.push((key(request), shape));
    }

    /// The plan for the request, if one was made.
    pub(super) fn take(&mut self, request: &PlanRequest) -> Option<Shape> {
        let made_from = self.made_from.as_ref()?;
        let all = &made_from.request;
        let info: BTreeMap<WorkerId, _> = all.workers.iter().map(|w| (w.id, w)).collect();
        let stay: BTreeSet<WorkerId> = request.workers.iter().map(|w| w.id).collect();
        let held = all.held.iter().filter(|(id, _)| stay.contains(id));
        let same = request.workers.iter().all(|w| info.get(&w.id) == Some(&w))
            && request.held.iter().eq(held)
            && (request.layout, request.global_batch_size) == (all.layout, all.global_batch_size)
            && request.parent == all.parent;
        let key = key(request);
        let at = self.plans.iter().position(|(k, _)| same && *k == key)?;
        Some(self.plans.swap_remove(at).1)
    }

    pub(super) fn len(&self) -> usize {
        self.plans.len()
    }
}

/// Each member alone, then the members of each node that has several, but never all of them.
fn losses(request: &PlanRequest, members: &[WorkerId]) -> Vec<BTreeSet<WorkerId>> {
    let mut nodes: BTreeMap<&str, BTreeSet<WorkerId>> = BTreeMap::new();
    for worker in request.workers.iter().filter(|w| !w.node.is_empty()) {
        nodes.entry(&worker.node).or_default().insert(worker.id);
    }
    let trains = |ids: &BTreeSet<WorkerId>| members.iter().any(|m| ids.contains(m));
    let several = |ids: &BTreeSet<WorkerId>| ids.len() > 1 && ids.len() < request.workers.len();
    let whole = nodes.into_values().filter(|ids| several(ids) && trains(ids));
    let alone = members.iter().map(|m| BTreeSet::from([*m]));
    let mut all: Vec<BTreeSet<WorkerId>> = alone.chain(whole).collect();
    all.truncate(LOSSES_MAX.min(STAGES_MAX / members.len().max(1)));
    all.reverse();
    all
}
