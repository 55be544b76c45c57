//! Requests to the planner, and the plan document made from its answers.

use super::catching_up::{SWITCH, can_follow};
use super::shared::Shared;
use crate::message::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use varuna_plan::{
    Base, Infeasible, Plan, PlanIndex, PlanRequest, Prediction, Shape, StepDeadline, Unit, WorkerId,
    WorkerInfo, tree_fan_out,
};

/// What a planned change costs besides the transfer of state, in milliseconds: orders, agreement, the first step.
const SWITCH_MS: f64 = 100.0;
/// Predictions are not more accurate than this, so a smaller relative gain counts as none.
const LEAST_GAIN: f64 = 0.002;

/// With more than twice this many workers, plans are prepared at longer intervals: one then takes ten milliseconds or more, which the
/// coordinator needs for its workers.
const AHEAD_AT_ONCE: usize = 64;

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Shared {
    /// Workers that may be used in a plan: not those with wrong bits, in quarantine or behind bad links, and no more than the job may use;
    /// present members come first.
    pub(super) fn pool(&self, now: Time, from: &[WorkerId]) -> Vec<WorkerId> {
        self.pool_of(now, from, |name| !self.quarantine.has(now, name))
    }

    /// The same, including workers that are left out only because they cannot read their data or their model's code.
    pub(super) fn pool_with_unread(&self, now: Time, from: &[WorkerId]) -> Vec<WorkerId> {
        self.pool_of(now, from, |name| !self.quarantine.is_unsound(now, name))
    }

    fn pool_of(&self, now: Time, from: &[WorkerId], is_sound: impl Fn(&str) -> bool) -> Vec<WorkerId> {
        let least = self.config.min_workers;
        let trusted = from.iter().filter(|w| !self.roster.is_corrupt(**w));
        let from: &[WorkerId] = &trusted.copied().collect::<Vec<_>>();
        let sound = |w: &&WorkerId| is_sound(&self.roster.name(**w));
        let sound: Vec<WorkerId> = from.iter().filter(sound).copied().collect();
        let mut pool = self.bad_links.eligible(now, &sound, least);
        // A worker in quarantine is better than two that cannot reach one another.
        let apart = self.bad_links.is_among(now, &pool) && !bug!(KeepQuarantineOverBadLink);
        if pool.len() < least || apart {
            pool = self.bad_links.eligible(now, from, least);
        }
        if let Some(most) = self.max_workers {
            let plan = self.record.stored.plan.as_ref();
            pool.sort_by_key(|w| (!plan.is_some_and(|p| p.has(*w)), *w));
            pool.truncate(most.max(self.config.min_workers));
            pool.sort_unstable();
        }
        pool
    }

    /// Workers as the planner sees them.
    pub(super) fn infos(&self, pool: &[WorkerId]) -> Vec<WorkerInfo> {
        let exhausted = &self.quarantine.exhausted;
        let info = |id: &WorkerId| {
            let hello = self.roster.hello(*id);
            let domain = hello.and_then(|h| self.roster.domains.get(&h.node));
            WorkerInfo {
                id: *id,
                memory_bytes: exhausted.planned_with(*id, hello.and_then(|h| h.memory_bytes)),
                speed: self.speed(*id),
                node: hello.map_or_else(String::new, |h| h.node.clone()),
                domain: domain.cloned().unwrap_or_default(),
            }
        };
        pool.iter().map(info).collect()
    }

    /// The request to the planner for a plan after a loss: workers that are missing state fetch it while training stops. If all workers can
    /// follow, a planned change soon corrects, at little cost, whatever such a plan leaves suboptimal, so the plan is judged over a short
    /// time.
    pub(super) fn request_for_recovery(
        &self,
        pool: &[WorkerId],
        held: BTreeMap<WorkerId, Vec<Unit>>,
    ) -> PlanRequest {
        let lasting = self.roster.churn.horizon();
        let soon = lasting.min(self.config.timing.following);
        let horizon = if can_follow(self, pool) { soon } else { lasting };
        PlanRequest {
            horizon_ms: Some(milliseconds(horizon)),
            ..self.request(pool, held)
        }
    }

    /// The best shape for these workers after a loss: the one that was prepared, if there is one. Workers that ran out of memory are planned
    /// with less, unless there is no shape then. Also what to add to the reason of the plan.
    pub(super) fn shape_for_recovery(
        &mut self,
        pool: &[WorkerId],
        held: &BTreeMap<WorkerId, Vec<Unit>>,
        now: Time,
    ) -> Result<(Shape, String), Infeasible> {
        let mut request = self.request_for_recovery(pool, held.clone());
        request.departure = self.departure(pool, held, now, SWITCH);
        let prepared = self.prepared_plans.take(&request);
        let made = match prepared {
            Some(shape) => Ok((shape, String::new())),
            None => self.plan_in_time(&request),
        };
        made.or_else(|why| match self.with_all_memory(request) {
            Some(request) => self.plan_in_time(&request),
            None => Err(why),
        })
    }

    /// The request to the planner for a planned change.
    pub(super) fn request_for_change(
        &self,
        pool: &[WorkerId],
        held: BTreeMap<WorkerId, Vec<Unit>>,
    ) -> PlanRequest {
        let members: Vec<WorkerId> = held.keys().copied().collect();
        PlanRequest {
            following: can_follow(self, pool) && can_follow(self, &members),
            ..self.request(pool, held)
        }
    }

    fn request(&self, pool: &[WorkerId], held: BTreeMap<WorkerId, Vec<Unit>>) -> PlanRequest {
        PlanRequest {
            following: false,
            workers: self.infos(pool),
            layout: self.config.layout,
            global_batch_size: self.config.global_batch_size,
            parent: self.record.stored.plan.as_ref().map(|p| p.shape.clone()),
            held,
            horizon_ms: Some(milliseconds(self.roster.churn.horizon())),
            departure: None,
        }
    }

    /// Predicted step time of the plan in milliseconds, with what is known now.
    pub(super) fn predicted_ms(&self, plan: &Plan, members: &[WorkerId]) -> f64 {
        let present_ms = self.planner.predicted_ms(&plan.shape, &self.infos(members));
        present_ms.unwrap_or(plan.shape.predicted.step_ms)
    }

    /// Whether a plan repays its own cost before the next change is expected: counting the time in which its state moves and training
    /// stops, it trains more until then than the present plan, whose steps take `present_ms` milliseconds.
    pub(super) fn repays(&self, shape: &Shape, present_ms: f64) -> bool {
        let horizon_ms = milliseconds(self.roster.churn.horizon());
        let left_ms = horizon_ms - shape.predicted.move_ms - SWITCH_MS;
        shape.predicted.step_ms * horizon_ms < present_ms * left_ms * (1.0 - LEAST_GAIN)
    }

    /// The time to the next change from which on the plan would repay its cost; none if it trains no more than the present plan.
    pub(super) fn repays_within(&self, shape: &Shape, present_ms: f64) -> Option<Duration> {
        let Prediction { step_ms, move_ms, .. } = shape.predicted;
        let worth_ms = present_ms * (1.0 - LEAST_GAIN);
        let needed_ms = worth_ms * (move_ms + SWITCH_MS) / (worth_ms - step_ms);
        Duration::try_from_secs_f64(needed_ms / 1e3).ok()
    }

    /// The plan document made from a shape.
    pub(super) fn document(
        &self,
        base: Base,
        shape: Shape,
        sources: Vec<Vec<WorkerId>>,
        reason: String,
    ) -> Plan {
        let generation = self.record.next_generation(self.checkpoints.newest_generation());
        let involved: BTreeSet<WorkerId> = shape
            .members()
            .into_iter()
            .chain(sources.iter().flatten().copied())
            .collect();
        let address = |w: &WorkerId| Some((*w, self.roster.hello(*w)?.address.clone()));
        Plan {
            generation,
            parent: self.record.generation(),
            base,
            layout: self.config.layout,
            deadline: StepDeadline {
                step_ns: self.deadline_ns(&shape),
                floor_ns: nanoseconds(self.config.timing.deadline_floor),
                doublings: 0,
                evaluation: self.config.evaluation,
            },
            sources,
            addresses: involved.iter().filter_map(address).collect(),
            relay: false,
            tree_fan_out: tree_fan_out(shape.members().len(), self.config.tree_fan_out),
            following: false,
            parameters_first: false,
            keepers: Vec::new(),
            evidence: Vec::new(),
            reason,
            shape,
            index: PlanIndex::default(),
        }
    }

    /// The step deadline: four times the expected step time, which is the observed one scaled by the planner's prediction for the change.
    fn deadline_ns(&self, shape: &Shape) -> u64 {
        let predicted = shape.predicted.step_ms.max(0.0);
        let plan = self.record.stored.plan.as_ref();
        // Predicted with the present costs, like the new shape: they may have been corrected since that plan was made.
        let before = plan.map_or(0.0, |p| self.predicted_ms(p, p.members()));
        let expected_ms = match self.progress.commits.mean_step_time() {
            Some(mean) if before > 0.0 => mean.as_secs_f64() * 1e3 * (predicted / before).max(1.0),
            Some(mean) => mean.as_secs_f64() * 1e3,
            None => predicted,
        };
        // a day at most: the planner's numbers are estimates
        let four = Duration::from_secs_f64((expected_ms * 4.0 / 1e3).clamp(0.0, 86_400.0));
        nanoseconds(self.config.timing.deadline_floor.max(four))
    }

    /// Prepares one more plan for a possible loss, if one is due. Never while a change or a recovery is under way.
    pub(super) fn prepare_plan(&mut self, now: Time) {
        let every = self.config.timing.prepare_plans_every;
        if every == Duration::ZERO || !self.prepared_plans.is_due(now) {
            return;
        }
        let Some(plan) = self.record.stored.plan.clone() else {
            return;
        };
        let changes = self.roster.changes();
        if self.prepared_plans.is_complete(plan.generation, changes, now) {
            return;
        }
        let members = plan.members();
        if members.iter().any(|w| self.roster.status(*w).is_none()) {
            return;
        }
        let mut staying = self.roster.staying();
        let mut held: BTreeMap<_, _> = members.iter().map(|w| (*w, plan.units(*w))).collect();
        // Before the maximum number is applied: another worker takes the place of a lost one.
        let everyone = self.request_for_recovery(&staying, held.clone());
        let crowd = u32::try_from(members.len() / AHEAD_AT_ONCE).unwrap_or(u32::MAX);
        let due = now.after(every.saturating_mul(crowd.max(1)));
        let lost = self
            .prepared_plans
            .next_loss(due, plan.generation, everyone, members);
        let Some(lost) = lost else {
            let until = now.after(self.config.timing.heartbeat);
            self.prepared_plans.complete(plan.generation, changes, until);
            return;
        };
        staying.retain(|w| !lost.contains(w));
        let pool = self.pool(now, &staying);
        if pool.len() < self.config.min_workers {
            return;
        }
        held.retain(|w, _| !lost.contains(w));
        let request = self.request_for_recovery(&pool, held);
        if let Ok(shape) = self.planner.plan(&request) {
            self.prepared_plans.add(&request, shape);
        }
    }
}
