//! Says why attached workers have no part in the plan in force. Nothing follows from it: whoever makes plans decides whom they use
//! (`planning`), and this only looks at the same facts, as they are now.

use super::left_out::{LeftOut, LeftOutReason};
use super::shared::Shared;
use std::collections::BTreeMap;
use varuna_plan::{Plan, WorkerId};

impl Shared {
    /// The workers whose stream is up that have no part in the plan in force, each with the reason; none while there is no plan.
    /// `refused`: a change to use idle workers was considered, and would not repay its cost.
    pub(super) fn left_out(&self, refused: bool) -> BTreeMap<WorkerId, LeftOut> {
        let Some(plan) = &self.record.stored.plan else {
            return BTreeMap::new();
        };
        let mut idle = self.roster.connected();
        idle.retain(|w| !plan.has(*w));
        if idle.is_empty() {
            return BTreeMap::new();
        }
        let spares = plan.shape.spares.iter();
        let spares: BTreeMap<WorkerId, &str> = spares.map(|s| (s.worker, s.reason.as_str())).collect();
        let left_out = |worker: WorkerId| {
            let found = self.excluded(plan, worker);
            let found = found.or_else(|| self.not_used(plan, worker, spares.get(&worker).copied(), refused));
            let (reason, why) = found.unwrap_or_else(|| {
                let why = "the plan was made before it could be used";
                (LeftOutReason::New, why.to_owned())
            });
            (worker, LeftOut { reason, why })
        };
        idle.into_iter().map(left_out).collect()
    }

    /// Why the planner is not offered the worker, if it is not. (If there are too few others, it is offered all the same.)
    fn excluded(&self, plan: &Plan, worker: WorkerId) -> Option<(LeftOutReason, String)> {
        let (now, name) = (self.ticked_at, self.roster.name(worker));
        let said = |reason, why: &str| Some((reason, why.to_owned()));
        if self.roster.is_corrupt(worker) {
            let why = "its state differed from that of the other holders";
            return said(LeftOutReason::WrongBits, why);
        }
        match self.roster.status(worker) {
            None => return said(LeftOutReason::New, "it has not reported yet"),
            Some(status) if status.draining => {
                return said(LeftOutReason::Leaving, "it will be stopped");
            }
            Some(_) => {}
        }
        if self.quarantine.cannot_read(now, &name) {
            let why = "it could not read its data or its model's code, which others can: it is not used for a while";
            return said(LeftOutReason::NoData, why);
        }
        if self.quarantine.is_unsound(now, &name) {
            let why = "workers of its name ended within their first steps, or had wrong bits: it is not used for a while";
            return said(LeftOutReason::Unsound, why);
        }
        let other = self.bad_links.other_end(now, worker, |other| plan.has(other))?;
        let other = self.roster.name(other);
        let why = format!("it and {other} could not reach one another: it is not used for a while");
        Some((LeftOutReason::BadLink, why))
    }

    /// Why a worker that the planner may use is not used, if that is known. `spare`: why the planner of the present plan left it out.
    fn not_used(
        &self,
        plan: &Plan,
        worker: WorkerId,
        spare: Option<&str>,
        refused: bool,
    ) -> Option<(LeftOutReason, String)> {
        let next = self.record.stored.next.as_ref();
        if next.is_some_and(|next| next.has(worker)) {
            let why = "the plan that is being prepared uses it";
            return Some((LeftOutReason::New, why.to_owned()));
        }
        if let Some(limit) = self.quarantine.exhausted.limit(worker) {
            let why = format!("it ran out of memory, and is planned with {} MiB", limit >> 20);
            return Some((LeftOutReason::NoMemory, why));
        }
        if let Some(why) = spare {
            let reason = match self.speeds.is_slow(worker) {
                true => LeftOutReason::Slow,
                false => LeftOutReason::NotNeeded,
            };
            return Some((reason, why.to_owned()));
        }
        if let Some(most) = self.max_workers.filter(|most| plan.members().len() >= *most) {
            let why = format!("at most {most} workers are wanted now");
            return Some((LeftOutReason::MaxWorkers, why));
        }
        refused.then(|| {
            let why = "a plan with it would not repay the cost of the change before the next one is expected";
            (LeftOutReason::NotWorthAChange, why.to_owned())
        })
    }
}
