//! Checks that run when a coordinator writes: plans, where they resume, and runs that are given up.

use super::network::Node;
use super::uploads::SLOW_STORE_MAX;
use super::{Result, Schedule};
use crate::check::{Decided, Restore, broken};
use crate::host::{Host, Process};
use std::collections::BTreeSet;
use std::sync::Arc;
use varuna_plan::{Base, Generation, Plan, StateId, Unit, WorkerId};
use varuna_protocol::{Record, Timing};

/// A worker that could be reached for this many milliseconds has been asked and has answered.
const REACHED: u64 = 400;
/// Maximum age in milliseconds of the list of checkpoints by which a run is given up: the write that confirms it takes time.
const CONFIRMED: u64 = 1_000;
/// Milliseconds after the faults from which on all is quiet.
const SETTLED: u64 = 3_000;
/// This many cancelled changes may be chance: workers in crash loops, a link that stays cut. A long run on a slow network has more: one
/// more for each change that succeeds.
const CANCELLED_MAX: u32 = 8;

impl Host<Schedule> {
    /// Checks (j): a run is not given up while a checkpoint is left, or while reachable workers hold the whole model.
    pub(super) fn check_given_up(&self, c: usize, units: &[Unit]) -> Result {
        // The last list, and the write that confirms the end, may have taken that long.
        let slow = if self.env.faults.slow_store {
            2 * SLOW_STORE_MAX
        } else {
            0
        };
        let since = |id: &&StateId| {
            self.env
                .store
                .completed_at
                .get(id)
                .is_some_and(|at| at + CONFIRMED + slow < self.now())
        };
        let mut saved = self
            .env
            .store
            .manifests
            .iter()
            .filter(|id| **id != StateId::INITIAL && !self.env.checker.is_rolled_back(**id));
        let saved = saved.find(since);
        if let Some(id) = saved {
            return broken('j', format!("state of {units:?} given up, {id} is in the store"));
        }
        if !self.env.checker.anything_committed() {
            return broken(
                'j',
                format!("state of {units:?} given up before anything was committed"),
            );
        }
        let heard = |w: &WorkerId| {
            let member = self.members.alive(*w).filter(|m| m.paused + REACHED < self.now());
            let stream = self.coordinators[c].streams.get(w).copied();
            let blocked = &self.env.network.blocked;
            let reached = |link| {
                blocked
                    .get(&link)
                    .is_none_or(|until| until + REACHED < self.now())
            };
            let (here, there) = (Node::Worker(*w), Node::Coordinator(c));
            member.is_some_and(|m| stream == Some(m.stream))
                && reached((here, there))
                && reached((there, here))
        };
        let mut heard: Vec<WorkerId> = self.members.ids(|_| true).into_iter().filter(heard).collect();
        heard.retain(|w| !self.env.checker.is_tainted(*w));
        let states: BTreeSet<StateId> = heard
            .iter()
            .flat_map(|w| self.members[*w].machine.held().values().copied())
            .collect();
        let holds = |unit: Unit, id: StateId| {
            heard
                .iter()
                .any(|w| self.members[*w].machine.held().get(&unit) == Some(&id))
        };
        let whole = |id: &&StateId| self.env.job.layout.all_units().all(|u| holds(u, **id));
        let mut counting = states.iter().filter(|id| !self.env.checker.is_rolled_back(**id));
        match counting.find(whole) {
            Some(id) => broken(
                'j',
                format!("state of {units:?} given up, {id} is held by {heard:?}"),
            ),
            None => Ok(()),
        }
    }

    /// The faults ended a while ago.
    fn settled(&self) -> bool {
        let ended_at = self.env.faults.ended_at;
        ended_at.is_some_and(|at| self.now() > at + SETTLED && !self.env.faults.become_rarer)
    }

    pub(super) fn count_switched(&mut self) {
        self.env.faults.switched_since += u32::from(self.settled());
    }

    /// Checks (h): some time after the faults planned changes succeed.
    pub(super) fn count_cancelled(&mut self) -> Result {
        self.env.stats.cancelled += 1;
        if !self.settled() {
            return Ok(());
        }
        self.env.faults.cancelled_since += 1;
        let (cancelled, switched) = (self.env.faults.cancelled_since, self.env.faults.switched_since);
        if cancelled > CANCELLED_MAX + switched {
            let what = format!(
                "long after the faults {cancelled} planned changes were cancelled, {switched} succeeded"
            );
            return broken('h', what);
        }
        Ok(())
    }

    pub(super) fn check_persisted(&mut self, record: &Record) -> Result {
        let known = self.env.store.record.last_step;
        if record.last_step < known {
            return broken(
                'c',
                format!("the last step falls from {known} to {}", record.last_step),
            );
        }
        if self.env.store.record.done && !record.done {
            // More steps were ordered as the run ended: its workers are released, and others go on from its last state.
            self.env.faults.only_joins = false;
        }
        if let Some(plan) = &record.plan
            && record.stopped == record.highest
        {
            self.env.checker.stopped = Some((plan.generation, record.highest));
        }
        for plan in [&record.plan, &record.next].into_iter().flatten() {
            if self.env.checker.persisted(plan)? {
                self.env.stats.generations += 1;
                let back = record.trust.rollbacks.iter();
                match back.rev().find(|r| r.generation == plan.generation) {
                    Some(rollback) => self.env.checker.rolled_back(*rollback, &self.env.store.shards)?,
                    None => self.check_recovery(plan)?,
                }
            }
        }
        Ok(())
    }

    /// Checks (l) when a coordinator has decided to go back to a checkpoint.
    pub(super) fn check_restore(&mut self, by: usize, record: &Record) -> Result {
        let rolled_back = |p: &&Arc<Plan>| {
            let mut rollbacks = record.trust.rollbacks.iter();
            rollbacks.any(|r| r.generation == p.generation)
        };
        let timing = Timing::model();
        let unconfirmed_after = timing.restore.min(timing.silent).as_millis();
        for plan in record.plan.iter().filter(|p| !rolled_back(p)) {
            if let Base::Fixed {
                id, checkpoint: true, ..
            } = plan.base
            {
                let restore = Restore {
                    by,
                    generation: plan.generation,
                    base: id,
                    at: self.now(),
                    unconfirmed_after: u64::try_from(unconfirmed_after).unwrap_or(u64::MAX),
                };
                self.env.checker.restores(&restore, &self.env.store.manifests)?;
            }
        }
        Ok(())
    }

    /// Checks (p) when a coordinator has decided where to resume. Waits are measured by clocks that must not jump. Workers with wrong bits,
    /// and those that were stopped in order, are never waited for.
    pub(super) fn check_waits(&self, by: usize, record: &Record) -> Result {
        let machine = &self.coordinators[by].machine;
        let jumped = |process: &Process| matches!(process, Process::Coordinator(_));
        let env = &self.env;
        let unsaid =
            machine.record().is_stopped() || env.job.compare_every.is_some() || env.clocks.keys().any(jumped);
        if let Some(plan) = record.plan.as_ref().filter(|_| !unsaid)
            && let Base::Fixed { id: base, .. } = plan.base
        {
            let restore = Timing::model().restore.as_millis();
            let decided = Decided {
                by,
                plan,
                base,
                heard: machine.newest_heard(),
                last_step: env.job.last_step,
                at: self.now(),
                restore: u64::try_from(restore).unwrap_or(u64::MAX),
            };
            return env.checker.waits(&decided, |w| self.members.alive(w).is_some());
        }
        Ok(())
    }

    fn check_recovery(&mut self, plan: &Arc<Plan>) -> Result {
        let Base::Fixed {
            id,
            decision,
            checkpoint,
        } = plan.base
        else {
            self.env.stats.planned += 1;
            return Ok(());
        };
        if self.env.faults.only_joins && plan.generation > Generation(1) {
            return broken('g', format!("recovery {} without a fault", plan.generation));
        }
        self.env.stats.restores += u64::from(checkpoint && id != StateId::INITIAL);
        self.env.stats.rolled += u64::from(decision.is_some());
        let member = |w| self.members.alive(w).map(|m| &m.machine);
        let lost = self.env.checker.goes_back(id);
        self.env.checker.nothing_lost(plan, id, member)?;
        self.check_kept(plan, lost)?;
        let parent = self.env.checker.plans.get(&plan.parent).cloned();
        let from_spare = |unit: Unit| {
            let sources = plan.sources.get(unit.index()).map_or(&[][..], Vec::as_slice);
            let keeper = parent.as_ref().and_then(|p| p.keeper(unit));
            keeper.is_some_and(|keeper| sources == [keeper])
        };
        if plan.layout.all_units().any(from_spare) {
            self.env.stats.reach("resume: from a spare copy");
        }
        if let Some(decision) = decision {
            self.env.checker.parent.insert(decision.id, decision.parent);
        }
        Ok(())
    }
}
