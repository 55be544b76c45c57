//! Recovery: fence, collect inventories, decide where to resume, plan.

use super::active::Active;
use super::config::CoordinatorEffect;
use super::event::Event;
use super::resume::{Evidence, Resume};
use super::shared::Shared;
use super::turn::Turn;
use crate::message::{Inventory, Order, Record, Time};
use std::collections::{BTreeMap, BTreeSet};
use varuna_plan::{Base, Infeasible, StateId, Unit, WorkerId};

/// What a recovery comes to.
pub(super) enum Step {
    /// Answers, workers or time are lacking.
    Wait,
    /// There is a plan.
    Write(Record),
    /// No holder and no checkpoint is left for these units.
    GiveUp(Vec<Unit>),
}

/// All workers were told to stop; their inventories are waited for.
pub(super) struct Collecting {
    since: Time,
    pub(super) answers: BTreeMap<WorkerId, Inventory>,
    /// States of complete checkpoints, once the store was listed.
    pub(super) checkpoints: Option<Vec<StateId>>,
    ask_at: Time,
    /// What was in force: a write that is refused goes back to it.
    interrupted: Active,
}

impl Collecting {
    /// Tells all workers to stop and to say what they hold.
    pub(super) fn begin(
        mut interrupted: Active,
        because: String,
        shared: &mut Shared,
        turn: &mut Turn<'_>,
    ) -> Self {
        let upto = shared.record.stored.highest;
        if shared.record.stored.plan.is_some() {
            turn.event(Event::Fenced { upto, because });
        }
        interrupted.suspicion = None;
        shared.problem = None;
        shared.failed_generations += 1;
        for to in shared.roster.connected() {
            turn.send(to, Order::Fence { upto });
        }
        turn.push(CoordinatorEffect::ListCheckpoints);
        Self {
            since: turn.now,
            answers: BTreeMap::new(),
            checkpoints: None,
            ask_at: turn.now.after(shared.config.timing.ask_again),
            interrupted,
        }
    }

    /// Back to what was in force. The store was listed a moment ago: not again before it is due.
    pub(super) fn into_interrupted(mut self) -> Active {
        self.interrupted.list_at = self.ask_at;
        self.interrupted
    }

    pub(super) fn step(&mut self, shared: &mut Shared, turn: &mut Turn<'_>) -> Step {
        let timing = shared.config.timing;
        self.ask_again(shared, turn);
        let missing = self.missing(shared);
        let heard = missing.iter().all(|w| shared.roster.is_disconnected(*w));
        let Some(checkpoints) = self.usable_checkpoints(shared) else {
            return Step::Wait;
        };
        let waited = |long| turn.now >= self.since.after(long);
        if !bug!(RecoverWithoutWaiting) && !heard && !waited(timing.collect) {
            return Step::Wait;
        }
        let evidence = Evidence {
            layout: shared.config.layout,
            answers: &self.answers,
            persisted: shared.record.decision(),
            checkpoints: &checkpoints,
        };
        let Some(resume) = evidence.resume() else {
            let long_gone = |w: &WorkerId| {
                let down = shared
                    .roster
                    .disconnected_at(*w)
                    .after(timing.grace.max(timing.lost));
                let gone = shared.roster.has_ended(*w) || turn.now > down;
                shared.roster.is_disconnected(*w) && gone
            };
            let all_gone = !missing.is_empty() && missing.iter().all(long_gone);
            if all_gone || waited(timing.restore.max(timing.lost)) {
                return Step::GiveUp(evidence.uncovered());
            }
            return Step::Wait;
        };
        let ended = missing.iter().all(|w| shared.roster.has_ended(*w));
        let may_go_back = ended || waited(timing.restore) || bug!(GiveUpStepsAtOnce);
        if !resume.tip && !may_go_back {
            return Step::Wait;
        }
        self.recover(resume, missing, shared, turn)
    }

    /// Fences and the list of checkpoints are asked for on a clock.
    fn ask_again(&mut self, shared: &Shared, turn: &mut Turn<'_>) {
        if turn.now < self.ask_at {
            return;
        }
        self.ask_at = turn.now.after(shared.config.timing.ask_again);
        let upto = shared.record.stored.highest;
        for to in shared.roster.connected() {
            if !self.answers.contains_key(&to) {
                turn.send(to, Order::Fence { upto });
            }
        }
        turn.push(CoordinatorEffect::ListCheckpoints);
    }

    /// Members and sources of the plans in the record that have not answered.
    fn missing(&self, shared: &Shared) -> Vec<WorkerId> {
        let mut expected: BTreeSet<WorkerId> = BTreeSet::new();
        for plan in shared.record.plans() {
            expected.extend(plan.members());
            expected.extend(plan.sources.iter().flatten());
        }
        expected.retain(|w| !self.answers.contains_key(w));
        expected.into_iter().collect()
    }

    /// Complete checkpoints; the initial state is one (made from the seed) only while nothing is known to have been committed.
    fn usable_checkpoints(&self, shared: &Shared) -> Option<Vec<StateId>> {
        let mut list = self.checkpoints.clone()?;
        let initial = |base: &Base| {
            matches!(
                base,
                Base::Fixed {
                    id: StateId::INITIAL,
                    ..
                }
            )
        };
        let moved = shared.record.plans().any(|p| !initial(&p.base));
        let held = self.answers.values().flat_map(|i| i.units.values());
        let held = held.into_iter().any(|id| *id != StateId::INITIAL);
        let nothing_committed = !moved && !held && !shared.progress.is_known();
        list.retain(|id| *id != StateId::INITIAL);
        if nothing_committed || shared.may_begin_anew {
            list.push(StateId::INITIAL);
        }
        Some(list)
    }

    fn recover(
        &mut self,
        resume: Resume,
        missing: Vec<WorkerId>,
        shared: &mut Shared,
        turn: &mut Turn<'_>,
    ) -> Step {
        let Some(pool) = self.pool(shared, turn) else {
            return Step::Wait;
        };
        let mut held: BTreeMap<WorkerId, Vec<Unit>> = BTreeMap::new();
        for (unit, sources) in shared.config.layout.all_units().zip(&resume.sources) {
            for worker in sources {
                held.entry(*worker).or_default().push(unit);
            }
        }
        let request = shared.request(&pool, held);
        let prepared = shared.prepared_plans.take(&request).map(Ok);
        let shape = match prepared.unwrap_or_else(|| shared.planner.plan(&request)) {
            Ok(shape) => shape,
            Err(Infeasible(reason)) => {
                shared.report_problem(Event::NoPlan { reason }, turn);
                return Step::Wait;
            }
        };
        let reason = why(shared, &missing);
        if shared.record.stored.plan.is_some() {
            let answered = self.answers.keys().copied().collect();
            turn.event(Event::Collected { answered, missing });
        }
        let base = Base::Fixed {
            id: resume.id,
            decision: resume.decision.filter(|_| !bug!(RecoverWithoutDecision)),
            checkpoint: resume.checkpoint,
        };
        let mut plan = shared.document(base, shape, resume.sources, reason);
        plan.deadline_ns = plan.deadline_ns.saturating_mul(1 << doublings(shared));
        plan.relay = !bug!(NoRelay) && shared.bad_links.any(turn.now);
        plan.evidence = self.usable(shared);
        self.interrupted.considered = Some(pool.into_iter().collect());
        Step::Write(shared.record.with_plan(plan))
    }

    /// Who answered and can be reached.
    fn usable(&self, shared: &Shared) -> Vec<WorkerId> {
        let up = |w: &WorkerId| shared.roster.status(*w).is_some();
        self.answers.keys().copied().filter(up).collect()
    }

    /// Whom the next plan may use; none while there are too few, or more may come for the first plan.
    fn pool(&self, shared: &mut Shared, turn: &mut Turn<'_>) -> Option<Vec<WorkerId>> {
        let need = shared.config.min_workers;
        let mut from = shared.roster.staying();
        from.retain(|w| bug!(PlanWithUnanswered) || self.answers.contains_key(w));
        if from.len() < need && !bug!(NeverUseDraining) {
            from = self.usable(shared);
        }
        let pool = shared.pool(turn.now, &from);
        let have = pool.len();
        if have < need {
            // everyone stays fenced and keeps its state until more come
            shared.report_problem(Event::BelowMinimum { have, need }, turn);
            return None;
        }
        if shared.record.stored.plan.is_none() {
            let since = *shared.enough_since.get_or_insert(turn.now);
            let awaited = [shared.max_workers, shared.config.expected_workers];
            let full = awaited.into_iter().flatten().any(|n| have >= n);
            if !full && turn.now < since.after(shared.config.timing.gather) {
                return None;
            }
        }
        Some(pool)
    }
}

/// How often the deadline of a step doubles. The fence that led here has been counted.
fn doublings(shared: &Shared) -> u32 {
    let failed = shared.failed_generations.saturating_sub(1);
    let most = shared.config.timing.deadline_doublings;
    failed.min(if bug!(DeadlineNeverGrows) { 0 } else { most })
}

/// Why there is another plan, for people.
fn why(shared: &Shared, missing: &[WorkerId]) -> String {
    let names: Vec<String> = missing.iter().map(|w| shared.roster.name(*w)).collect();
    match (shared.record.stored.plan.is_none(), names.is_empty()) {
        (true, _) => "the run begins".to_owned(),
        (false, true) => "everyone answered the fence".to_owned(),
        (false, false) => format!("lost {}", names.join(", ")),
    }
}
