//! What follows from a comparison of the holders' states: a worker whose bits differ from the majority's is released, or the run goes back.

use super::comparison::ComparisonResult;
use super::event::Event;
use super::mode::{Mode, persist};
use super::outbox::OrderKind;
use super::recovery::Collecting;
use super::shared::Shared;
use super::turn::Turn;
use crate::comparison_record::MinorityHolder;
use crate::message::{Digests, Inventory, Order, Phase, Time};
use crate::record::Record;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use varuna_plan::{Plan, StateId, Step, Unit, WorkerId};

impl Mode {
    /// A worker reports the digests of its copies of a state.
    pub(super) fn compare(
        self,
        from: WorkerId,
        digests: &Digests,
        shared: &mut Shared,
        turn: &mut Turn<'_>,
    ) -> Mode {
        let differ = shared.compare(from, digests, turn);
        let because = differ.then(|| shared.corruption_reason()).flatten();
        match (self, because) {
            // An odd worker is written to the record before anything follows from it: a later coordinator then resumes from the others
            // only.
            (Mode::Active(active), Some(_))
                if shared.has_unwritten_minority_holder() && !shared.record.delays_writes(turn.now) =>
            {
                let record = shared.record.stored.clone();
                persist(active, shared.with_minority_holders(record), shared, turn)
            }
            (Mode::Active(active), Some(because)) => {
                Mode::Collecting(Collecting::begin(active, because, shared, turn))
            }
            (mode, _) => mode,
        }
    }
}

impl Shared {
    /// Takes a worker's digests. True if holders differ.
    fn compare(&mut self, from: WorkerId, digests: &Digests, turn: &mut Turn<'_>) -> bool {
        let led_here = |p: &&Arc<Plan>| p.generation == digests.id.run_gen;
        let plan = self.record.plans().find(led_here).cloned();
        let usable = !self.record.stored.trust.is_rolled_back(digests.id) && !self.roster.is_corrupt(from);
        let Some(plan) = plan.filter(|_| usable && !self.comparison.rolls_back) else {
            return false;
        };
        let id = digests.id;
        match self.comparison.take(from, digests, &plan) {
            Some(ComparisonResult::Differ { units, odd }) => {
                self.holders_differ(id.step, units, odd, turn);
                return true;
            }
            Some(ComparisonResult::Equal { saved: true }) => self.comparison.unwritten = Some(id),
            Some(ComparisonResult::Equal { saved: false }) | None => {}
        }
        false
    }

    fn holders_differ(&mut self, step: Step, units: Vec<Unit>, odd: BTreeSet<WorkerId>, turn: &mut Turn<'_>) {
        for worker in &odd {
            let name = self.roster.name(*worker);
            self.quarantine.note_corruption(turn.now, &name);
            self.roster.mark_corrupt(*worker);
        }
        self.comparison.rolls_back |= odd.is_empty();
        turn.event(Event::StatesDiffer {
            step,
            units,
            replaced: odd.into_iter().collect(),
        });
    }

    /// The reason why the plan in force cannot continue, according to comparisons.
    pub(super) fn corruption_reason(&self) -> Option<String> {
        if self.comparison.rolls_back {
            return Some("holders of the same state differ, and no majority agrees".to_owned());
        }
        let is_member = |w: &WorkerId| self.record.plans().any(|p| p.has(*w));
        let odd = self.roster.corrupt().find(is_member)?;
        let name = self.roster.name(odd);
        Some(format!(
            "the state of {name} differs from that of the other holders"
        ))
    }

    /// Whether a worker was found odd and the record does not say so yet.
    fn has_unwritten_minority_holder(&self) -> bool {
        let written = &self.record.stored.trust.odd;
        let unwritten = |w: WorkerId| written.iter().all(|o| o.worker != w);
        self.roster.corrupt().any(unwritten) && !bug!(ForgetOddHolders)
    }

    /// The record with the workers that were found odd.
    pub(super) fn with_minority_holders(&self, mut record: Record) -> Record {
        for worker in self.roster.corrupt().filter(|_| !bug!(ForgetOddHolders)) {
            let name = self.roster.name(worker);
            record.trust.add_minority_holder(MinorityHolder { worker, name });
        }
        record
    }

    /// Distrusts the workers that an earlier coordinator has found odd.
    pub(super) fn mark_recorded_corrupt(&mut self, now: Time) {
        for odd in &self.record.stored.trust.odd {
            self.roster.mark_corrupt(odd.worker);
            self.quarantine.note_corruption(now, &odd.name);
        }
    }

    /// The record with the plan of a recovery at this state. `stored`: its checkpoint is complete. If it is not, the plan's workers may put
    /// the state again, long after it was compared: the copy in the store is then not the compared one.
    pub(super) fn resume_at(&mut self, id: StateId, stored: bool, plan: Plan) -> Record {
        let record = self.with_minority_holders(self.record.with_plan(plan));
        let mut record = self.checkpoints.last.count_put(record);
        if !stored && !bug!(TrustStatePutAgain) {
            record.trust.give_up_compared(id);
            self.comparison.unwritten.take_if(|unwritten| *unwritten == id);
        }
        record
    }

    /// Removes the answers of workers with wrong bits, so that the run does not resume from their state.
    pub(super) fn exclude_corrupt(&self, answers: &mut BTreeMap<WorkerId, Inventory>) {
        for worker in self.roster.corrupt() {
            answers.remove(&worker);
        }
    }

    /// Releases workers with wrong bits, so that others take their place, but only after they have stopped.
    pub(super) fn release_corrupt(&mut self, turn: &mut Turn<'_>) {
        let stopped = |w: &WorkerId| self.roster.status(*w).is_some_and(|s| s.phase == Phase::Idle);
        let stopped: Vec<WorkerId> = self.roster.corrupt().filter(stopped).collect();
        for worker in stopped {
            self.release_worker(worker, turn);
        }
    }

    /// The worker may end.
    pub(super) fn release_worker(&mut self, worker: WorkerId, turn: &mut Turn<'_>) {
        let before = self.outbox.has_sent(worker, OrderKind::Release);
        self.outbox.order(turn, worker, Order::Release);
        if !before {
            let name = self.roster.name(worker);
            turn.event(Event::WorkerReleased { worker, name });
        }
    }
}
