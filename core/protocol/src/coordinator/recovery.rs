//! Recovery: fence, collect inventories, decide where to resume, plan, persist.

use super::resume::{Evidence, Resume};
use super::{Coordinator, CoordinatorEffect, Event, Mode};
use crate::message::{Order, Record, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use varuna_plan::{Base, Infeasible, StateId, Unit, WorkerId};

impl Coordinator {
    pub(super) fn fence(&mut self, now: Time, because: String, effects: &mut Vec<CoordinatorEffect>) {
        let upto = self.record.highest;
        if self.record.plan.is_some() {
            effects.push(CoordinatorEffect::Event(Event::Fenced { upto, because }));
        }
        self.mode = Mode::Collecting { since: now };
        if !bug!(KeepOldAnswers) {
            self.answers.clear();
        }
        self.checkpoints = None;
        self.suspected = None;
        self.complained = None;
        self.fruitless += 1;
        self.asked_at = now.after(self.config.timing.ask_again);
        for to in self.all_up() {
            effects.push(CoordinatorEffect::Send {
                to,
                order: Order::Fence { upto },
            });
        }
        effects.push(CoordinatorEffect::ListCheckpoints);
    }

    pub(super) fn collect(&mut self, now: Time, since: Time, effects: &mut Vec<CoordinatorEffect>) {
        let timing = self.config.timing;
        if now >= self.asked_at {
            self.asked_at = now.after(timing.ask_again);
            let upto = self.record.highest;
            let silent: Vec<WorkerId> = self
                .all_up()
                .into_iter()
                .filter(|w| !self.answers.contains_key(w))
                .collect();
            for to in silent {
                effects.push(CoordinatorEffect::Send {
                    to,
                    order: Order::Fence { upto },
                });
            }
            effects.push(CoordinatorEffect::ListCheckpoints);
        }
        let missing = self.missing();
        let closed = |w: &WorkerId| self.workers.get(w).is_some_and(|x| !x.up);
        let heard = missing.iter().all(closed);
        let Some(checkpoints) = self.usable_checkpoints() else {
            return;
        };
        if !bug!(RecoverWithoutWaiting) && !heard && now < since.after(timing.collect) {
            return;
        }
        let patient = now >= since.after(timing.restore);
        let evidence = self.evidence(&checkpoints);
        let Some(resume) = evidence.resume() else {
            let units = evidence.uncovered();
            let long = |w: &WorkerId| {
                let down = self.workers.get(w).filter(|x| !x.up);
                down.is_some_and(|x| x.gone || now > x.down_since.after(timing.grace.max(timing.lost)))
            };
            let patient = now >= since.after(timing.restore.max(timing.lost));
            if patient || (!missing.is_empty() && missing.iter().all(long)) {
                self.lost(units, effects);
            }
            return;
        };
        let gone = |w: &WorkerId| self.workers.get(w).is_some_and(|x| x.gone);
        if !bug!(GiveUpStepsAtOnce) && !resume.tip && !missing.iter().all(gone) && !patient {
            return;
        }
        self.recover(now, resume, missing, effects);
    }

    /// Members and sources of the plans in the record that have not answered.
    fn missing(&self) -> Vec<WorkerId> {
        let mut expected: BTreeSet<WorkerId> = BTreeSet::new();
        for plan in [&self.record.plan, &self.record.next].into_iter().flatten() {
            expected.extend(plan.members());
            expected.extend(plan.sources.iter().flatten());
        }
        expected
            .into_iter()
            .filter(|w| !self.answers.contains_key(w))
            .collect()
    }

    fn evidence<'a>(&'a self, checkpoints: &'a [StateId]) -> Evidence<'a> {
        Evidence {
            layout: self.config.layout,
            answers: &self.answers,
            persisted: self.persisted_decision(),
            checkpoints,
        }
    }

    /// Complete checkpoints; the initial state is one (made from the seed) only while nothing is known to have been committed.
    fn usable_checkpoints(&self) -> Option<Vec<StateId>> {
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
        let plans = [&self.record.plan, &self.record.next].into_iter().flatten();
        let moved = plans.map(|p| &p.base).any(|b| !initial(b));
        let held = self
            .answers
            .values()
            .flat_map(|i| i.units.values())
            .any(|id| *id != StateId::INITIAL);
        let fresh = !moved && !held && !self.published.anything() && self.best == StateId::INITIAL;
        list.retain(|id| *id != StateId::INITIAL);
        if fresh || self.from_seed {
            list.push(StateId::INITIAL);
        }
        Some(list)
    }

    fn recover(
        &mut self,
        now: Time,
        resume: Resume,
        missing: Vec<WorkerId>,
        effects: &mut Vec<CoordinatorEffect>,
    ) {
        let Some(pool) = self.recovery_pool(now, effects) else {
            return;
        };
        let first = self.record.plan.is_none();
        let mut held: BTreeMap<WorkerId, Vec<Unit>> = BTreeMap::new();
        for (unit, sources) in self.config.layout.all_units().zip(&resume.sources) {
            for worker in sources {
                held.entry(*worker).or_default().push(unit);
            }
        }
        let request = self.request(&pool, held);
        let warm = self.warm.take(&request).map(Ok);
        let shape = match warm.unwrap_or_else(|| self.planner.plan(&request)) {
            Ok(shape) => shape,
            Err(Infeasible(reason)) => return self.complain(Event::NoPlan { reason }, effects),
        };
        let reason = self.why(first, &missing);
        if !first {
            let answered = self.answers.keys().copied().collect();
            effects.push(CoordinatorEffect::Event(Event::Collected { answered, missing }));
        }
        let Resume {
            id,
            decision,
            checkpoint,
            sources,
            ..
        } = resume;
        let base = Base::Fixed {
            id,
            decision: decision.filter(|_| !bug!(RecoverWithoutDecision)),
            checkpoint,
        };
        let mut plan = self.document(base, shape, sources, reason);
        // the fence that led here has been counted
        let fruitless = self.fruitless.saturating_sub(1);
        let doublings = if bug!(DeadlineNeverGrows) {
            0
        } else {
            fruitless.min(self.config.timing.deadline_doublings)
        };
        plan.deadline_ns = plan.deadline_ns.saturating_mul(1 << doublings);
        plan.relay = !bug!(NoRelay) && self.bad.any(now);
        plan.evidence = self.usable();
        self.considered = Some(pool.into_iter().collect());
        let highest = plan.generation.max(self.record.highest);
        let record = self.record.clone();
        self.persist(
            Record {
                highest,
                plan: Some(Arc::new(plan)),
                next: if bug!(RecoveryKeepsNext) {
                    record.next.clone()
                } else {
                    None
                },
                ..record
            },
            effects,
        );
    }

    /// Who answered and can be reached.
    fn usable(&self) -> Vec<WorkerId> {
        let up = |w: &WorkerId| self.status(*w).is_some();
        self.answers.keys().copied().filter(up).collect()
    }

    /// Whom the next plan may use; none while there are too few, or more may come for the first plan.
    fn recovery_pool(&mut self, now: Time, effects: &mut Vec<CoordinatorEffect>) -> Option<Vec<WorkerId>> {
        let need = self.config.min_workers;
        let answered = |w: &WorkerId| self.answers.contains_key(w);
        let firm: Vec<WorkerId> = self
            .firm()
            .into_iter()
            .filter(|w| bug!(PlanWithUnanswered) || answered(w))
            .collect();
        let from = if firm.len() >= need || bug!(NeverUseDraining) {
            firm
        } else {
            self.usable()
        };
        let pool = self.pool(now, &from);
        if pool.len() < need {
            // everyone stays fenced and keeps its state until more come
            self.complain(
                Event::BelowMinimum {
                    have: pool.len(),
                    need,
                },
                effects,
            );
            return None;
        }
        if self.record.plan.is_none() {
            let since = *self.gathering.get_or_insert(now);
            let awaited = [self.max_workers, self.config.expected_workers];
            let full = awaited.into_iter().flatten().any(|n| pool.len() >= n);
            if !full && now < since.after(self.config.timing.gather) {
                return None;
            }
        }
        Some(pool)
    }

    fn why(&self, first: bool, missing: &[WorkerId]) -> String {
        let names: Vec<String> = missing.iter().map(|w| self.name(*w)).collect();
        match (first, names.is_empty()) {
            (true, _) => "the run begins".to_owned(),
            (false, true) => "everyone answered the fence".to_owned(),
            (false, false) => format!("lost {}", names.join(", ")),
        }
    }
}
