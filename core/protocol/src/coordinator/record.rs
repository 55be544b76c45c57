//! The coordinator's access to the record: it takes the record over, writes it by compare-and-swap, and watches it for a newer coordinator.

use super::config::{CoordinatorEffect, Timing};
use super::turn::Turn;
use crate::comparison_record::Rollback;
use crate::message::Time;
use crate::record::Record;
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::{Base, Decision, Generation, Plan, StateId, Step};

/// How many times the delay doubles at most, before a write is tried again or its outcome is read again.
const WRITE_DELAY_DOUBLINGS: u32 = 3;

/// The record as last read or written, and this coordinator's term.
#[derive(Default)]
pub(super) struct RecordKeeper {
    pub(super) stored: Record,
    /// This coordinator's term; 0 before the record was read.
    pub(super) term: u64,
    /// Generation of the plan that was in force at the take-over. Nobody may have reported yet how far it came. 0 = no plan, or the run had
    /// ended.
    inherited: Generation,
    /// The run had already ended when this coordinator started: its workers were released.
    had_ended: bool,
    watch_at: Time,
    /// Writes in a row that failed.
    failures: u32,
    /// Nothing is written before this time.
    write_at: Time,
    /// The greatest last step that this coordinator was ordered to reach. Every write carries it.
    pub(super) ordered_last_step: Step,
    /// When the planned change that has taken place must be written at the latest. None if the record in the store already shows it.
    promotion_due: Option<Time>,
}

fn number(plan: &Option<Arc<Plan>>) -> Option<Generation> {
    plan.as_ref().map(|p| p.generation)
}

impl RecordKeeper {
    /// The plan in force, and the one that is to follow it.
    pub(super) fn plans(&self) -> impl Iterator<Item = &Arc<Plan>> {
        [&self.stored.plan, &self.stored.next].into_iter().flatten()
    }

    /// Generation of the plan in force; 0 = none.
    pub(super) fn generation(&self) -> Generation {
        number(&self.stored.plan).unwrap_or(Generation(0))
    }

    /// Whether an earlier coordinator made the plan in force.
    pub(super) fn is_inherited(&self) -> bool {
        self.inherited != Generation(0) && self.inherited == self.generation()
    }

    /// Reads the record from time to time: a newer term ends this coordinator.
    pub(super) fn watch(&mut self, turn: &mut Turn<'_>, timing: &Timing) {
        if turn.now >= self.watch_at {
            self.watch_at = turn.now.after(timing.watch);
            turn.push(CoordinatorEffect::ReadRecord);
        }
    }

    /// A store that refuses writes is not asked again for a while, longer each time. A single failure may be chance, so the first retry is
    /// immediate.
    pub(super) fn note_failed_write(&mut self, now: Time, timing: &Timing) {
        let doublings = self.failures.saturating_sub(1).min(WRITE_DELAY_DOUBLINGS);
        if self.failures > 0 {
            self.write_at = now.after(timing.repeat * (1 << doublings));
        }
        self.failures = self.failures.saturating_add(1);
    }

    pub(super) fn note_write(&mut self) {
        self.failures = 0;
        self.promotion_due = None;
    }

    /// Whether it is time to write that a planned change has taken place, as no other write has done it.
    pub(super) fn is_promotion_due(&self, now: Time) -> bool {
        self.promotion_due.is_some_and(|due| now >= due)
    }

    /// Whether writes are delayed because the store has just refused several.
    pub(super) fn delays_writes(&self, now: Time) -> bool {
        now < self.write_at && !bug!(WriteWithoutDelay)
    }

    /// Whether the record has this coordinator's term, as far as is known.
    pub(super) fn is_in_charge(&self) -> bool {
        self.term > 0 && self.stored.term == self.term
    }

    /// Whether another coordinator has taken over since this one did.
    pub(super) fn is_superseded(&self, read: &Record) -> bool {
        !bug!(IgnoreNewerTerm) && read.term > self.term && self.stored.term == self.term
    }

    /// Writes a term that is greater than the one that was read.
    pub(super) fn take_over(&mut self, read: Record, turn: &mut Turn<'_>) -> WriteAttempt {
        self.term = read.term + 1;
        self.had_ended = read.done;
        let expect = read.version;
        let mut record = Record {
            term: self.term,
            version: expect + 1,
            puts_anew: if bug!(ForgetPutsAnew) { 0 } else { read.puts_anew },
            done: false,
            ..read
        };
        self.put_last_step(&mut record);
        attempt(expect, record, turn)
    }

    /// The record now has this coordinator's term.
    pub(super) fn taken_over(&mut self, record: Record) {
        self.stored = record;
        if !self.had_ended {
            self.inherited = self.generation();
        }
    }

    pub(super) fn write(&self, mut record: Record, turn: &mut Turn<'_>) -> WriteAttempt {
        record.version = self.stored.version + 1;
        if !bug!(WriteWithoutOwnTerm) {
            record.term = self.term;
        }
        self.put_last_step(&mut record);
        attempt(self.stored.version, record, turn)
    }

    /// Keeps the last step from decreasing, whoever writes the record.
    fn put_last_step(&self, record: &mut Record) {
        if !bug!(ForgetOrderedLastStep) {
            if self.ordered_last_step > record.last_step {
                // The state that was put again is no longer the run's last one.
                record.puts_anew = 0;
                // Whoever found that the run had ended did not know of the order, so the end has to be determined again.
                record.done = false;
            }
            record.last_step = record.last_step.max(self.ordered_last_step);
        }
    }

    /// Takes the answer to a write that was under way when Stop came, so that this copy of the record matches the store.
    pub(super) fn note_late_write(&mut self, ok: bool, record: Record) {
        let newer = record.term == self.term && record.version > self.stored.version;
        if !bug!(ForgetWriteAtStop) && ok && newer {
            self.stored = record;
        }
    }

    /// Whether the plan in force comes from a recovery: it is neither the earlier plan nor the change that was under way.
    pub(super) fn is_recovery_from(&self, before: &Record) -> bool {
        let planned = number(&self.stored.plan);
        planned != number(&before.plan) && planned != number(&before.next)
    }

    /// The record of a run that has ended.
    pub(super) fn with_done(&self) -> Record {
        Record {
            done: true,
            ..self.stored.clone()
        }
    }

    /// The record with a planned change, or without one. The run is training, so the waiting time of a recovery that came to nothing is
    /// reset.
    pub(super) fn with_next(&self, next: Option<Plan>) -> Record {
        let highest = next.as_ref().map_or(Generation(0), |n| n.generation);
        Record {
            highest: highest.max(self.stored.highest),
            next: next.map(Arc::new),
            waited_ms: 0,
            ..self.stored.clone()
        }
    }

    /// The record with a compared checkpoint.
    pub(super) fn with_compared(&self, id: StateId) -> Record {
        let mut record = self.stored.clone();
        record.trust.add_compared(id);
        record
    }

    /// The record with the time for which holders have been waited for.
    pub(super) fn with_wait(&self, waited: Duration) -> Record {
        Record {
            waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
            ..self.stored.clone()
        }
    }

    /// The record of a run that was stopped in order.
    pub(super) fn with_stopped(&self) -> Record {
        Record {
            stopped: self.stored.highest,
            ..self.stored.clone()
        }
    }

    /// The record with the plan of a rollback to a state.
    pub(super) fn with_rollback(&self, plan: Plan, to: StateId) -> Record {
        let generation = plan.generation;
        let mut record = self.with_plan(plan);
        record.trust.add_rollback(Rollback { to, generation });
        record
    }

    /// The record with a recovery's plan.
    pub(super) fn with_plan(&self, plan: Plan) -> Record {
        let next = self.stored.next.clone().filter(|_| bug!(RecoveryKeepsNext));
        Record {
            highest: plan.generation.max(self.stored.highest),
            plan: Some(Arc::new(plan)),
            next,
            waited_ms: 0,
            ..self.stored.clone()
        }
    }

    /// A planned change has taken place. It fences nobody and allows nothing that was not allowed before, so it need not be written at
    /// once: every write carries it, and if there is none until `due`, one is made for it.
    pub(super) fn promote(&mut self, next: Arc<Plan>, due: Time) {
        self.stored.plan = Some(next);
        self.stored.next = None;
        self.stored.waited_ms = 0;
        self.promotion_due = Some(due);
    }

    /// The next generation number; numbers are never reused. `stored` is the greatest generation of a checkpoint: states of an earlier run
    /// in the same store must stay older than this run's.
    pub(super) fn next_generation(&self, stored: Generation) -> Generation {
        if bug!(ReuseGeneration) {
            return self.generation().next();
        }
        let known = self.stored.highest;
        let highest = if bug!(NumbersBelowStore) {
            known
        } else {
            known.max(stored)
        };
        highest.next()
    }

    /// The decision that the persisted plan carries. It is binding.
    pub(super) fn decision(&self) -> Option<Decision> {
        match self.stored.plan.as_ref().map(|p| &p.base) {
            Some(Base::Fixed { decision, .. }) => *decision,
            _ => None,
        }
    }
}

/// A write under way.
pub(super) struct WriteAttempt {
    record: Record,
    /// The store refused the write, or its outcome is not known, so the record is read.
    refused: Option<Readings>,
}

/// How often the record was read to see what became of a write, and when it is read again.
#[derive(Default)]
struct Readings {
    count: u32,
    again_at: Time,
}

impl WriteAttempt {
    /// The store refused the write, or its outcome is not known. The record in the store tells.
    pub(super) fn refuse(&mut self, timing: &Timing, turn: &mut Turn<'_>) {
        self.refused = Some(Readings::default());
        self.read_again(timing, turn);
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// A read that fails gives no answer, so after a refused write the record is read again until an answer comes. The interval grows,
    /// since a store that does not answer may be overloaded.
    pub(super) fn read_again(&mut self, timing: &Timing, turn: &mut Turn<'_>) {
        let Some(readings) = &mut self.refused else {
            return;
        };
        if turn.now < readings.again_at || (readings.count > 0 && bug!(ReadOnceAfterRefusal)) {
            return;
        }
        let doublings = readings.count.min(WRITE_DELAY_DOUBLINGS);
        readings.again_at = turn.now.after(timing.ask_again * (1 << doublings));
        readings.count = readings.count.saturating_add(1);
        turn.push(CoordinatorEffect::ReadRecord);
    }

    /// Whether the record is the one that was to be written. They are compared by their numbers: a plan that carries the decision of a
    /// diverged step (not a number) is not equal to itself.
    pub(super) fn wrote(&self, record: &Record) -> bool {
        let numbers = |r: &Record| {
            let plans = (number(&r.plan), number(&r.next));
            (r.version, r.term, r.highest, plans, r.done, r.last_step)
        };
        bug!(AnyRecordIsMine) || numbers(&self.record) == numbers(record)
    }
}

fn attempt(expect: u64, record: Record, turn: &mut Turn<'_>) -> WriteAttempt {
    let write = WriteAttempt {
        record: record.clone(),
        refused: None,
    };
    turn.push(CoordinatorEffect::Write { expect, record });
    write
}
