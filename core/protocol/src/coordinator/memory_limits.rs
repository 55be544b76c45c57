//! What follows if workers run out of memory: they are planned with less, and so are those that come in their place, unless there is no plan then.

use super::shared::Shared;
use std::collections::BTreeMap;
use varuna_plan::{Generation, PlanRequest, Shape, WorkerId};

impl Shared {
    /// A worker reports that its device had no memory for its step in this generation.
    pub(super) fn note_exhausted(&mut self, worker: WorkerId, generation: Generation) {
        let plan = self.record.plans().find(|p| p.generation == generation);
        let Some(plan) = plan.filter(|p| p.has(worker)).cloned() else {
            return;
        };
        // Members held more than the plan asks for, and the next plan does not begin so.
        if plan.parameters_first
            && !self.progress.is_known_since(generation)
            && !bug!(FirstStepsExhaustForGood)
        {
            return;
        }
        let planned = self.needed_bytes(&plan.shape).get(&worker).copied();
        self.quarantine.exhausted.note(generation, worker, planned);
    }

    /// A new worker has come. A worker that is started again has a new id; it is known by its name and its node. In a pod these are the pod's: all of
    /// its workers have the same, and the one that comes is taken for any that is gone.
    pub(super) fn inherit_limit(&mut self, worker: WorkerId) {
        let roster = &self.roster;
        let Some(new) = roster.hello(worker) else {
            return;
        };
        let was_here = |gone: WorkerId| {
            let before = roster.hello(gone).filter(|_| roster.is_disconnected(gone));
            before.is_some_and(|before| (&before.name, &before.node) == (&new.name, &new.node))
        };
        self.quarantine.exhausted.inherit(worker, was_here);
    }

    fn needed_bytes(&self, shape: &Shape) -> BTreeMap<WorkerId, u64> {
        let workers = self.infos(&shape.members());
        self.planner.needed_bytes(shape, &self.config.layout, &workers)
    }

    /// The same request with all the memory that workers reported, if some of them are planned with less. Without a plan nobody trains, and a
    /// worker that ran out of memory need not do so again.
    pub(super) fn with_all_memory(&self, request: PlanRequest) -> Option<PlanRequest> {
        let limit = |worker| self.quarantine.exhausted.limit(worker);
        if request.workers.iter().all(|w| limit(w.id).is_none()) {
            return None;
        }
        let mut all = request;
        for worker in &mut all.workers {
            worker.memory_bytes = self.roster.hello(worker.id).and_then(|h| h.memory_bytes);
        }
        Some(all)
    }

    /// The workers of the plan in force, or of this shape, that are planned with less memory than they reported, as text for people.
    pub(super) fn with_less_memory(&self, shape: &Shape) -> String {
        let before = self.record.stored.plan.iter();
        let mut workers = shape.members();
        workers.extend(before.flat_map(|p| p.members()));
        workers.sort_unstable();
        workers.dedup();
        let limit = |worker: WorkerId| Some((worker, self.quarantine.exhausted.limit(worker)?));
        let limited: Vec<(WorkerId, u64)> = workers.into_iter().filter_map(limit).collect();
        if limited.is_empty() {
            return String::new();
        }
        let needed = self.needed_bytes(shape);
        let sentence = |(worker, limit): (WorkerId, u64)| {
            let name = self.roster.name(worker);
            match needed.get(&worker).is_some_and(|takes| *takes > limit) {
                true => format!("; {name} ran out of memory, and there is no plan that takes less of it"),
                false => format!(
                    "; {name} ran out of memory and is planned with {} MiB",
                    limit >> 20
                ),
            }
        };
        limited.into_iter().map(sentence).collect()
    }
}
