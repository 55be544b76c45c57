//! The record: read, taken over, written by compare-and-swap; losing the term ends this coordinator.

use super::{Coordinator, CoordinatorEffect, Event, Mode, Outcome};
use crate::message::{Record, Time};
use std::sync::Arc;
use varuna_plan::{Base, Decision, Generation, Plan};

impl Coordinator {
    pub(super) fn persist(&mut self, mut record: Record, effects: &mut Vec<CoordinatorEffect>) {
        record.version = self.record.version + 1;
        if !bug!(WriteWithoutOwnTerm) {
            record.term = self.term;
        }
        self.mode = Mode::Persisting;
        self.write_failed = false;
        self.attempt = Some(record.clone());
        if bug!(SendBeforePersist)
            && let Some(plan) = record.next.as_ref().or(record.plan.as_ref())
        {
            for to in self.all_up() {
                let order = crate::message::Order::Prepare(plan.clone());
                effects.push(CoordinatorEffect::Send { to, order });
            }
        }
        effects.push(CoordinatorEffect::Write {
            expect: self.record.version,
            record,
        });
    }

    /// What the store holds.
    pub(super) fn read(&mut self, now: Time, record: Record, effects: &mut Vec<CoordinatorEffect>) {
        if self.mode == Mode::Boot {
            if record.done {
                // the run had ended before; its workers still have to be told
                self.term = record.term;
                self.record = record;
                self.mode = Mode::Done { since: now };
                return;
            }
            self.term = record.term + 1;
            self.mode = Mode::Persisting;
            self.write_failed = false;
            let next = Record {
                term: self.term,
                version: record.version + 1,
                ..record.clone()
            };
            self.attempt = Some(next.clone());
            effects.push(CoordinatorEffect::Write {
                expect: record.version,
                record: next,
            });
        } else if !bug!(IgnoreNewerTerm) && record.term > self.term && self.record.term == self.term {
            self.mode = Mode::Deposed;
            effects.push(CoordinatorEffect::Event(Event::Deposed { by_term: record.term }));
            self.finish(Outcome::Deposed, effects);
        } else if self.mode == Mode::Persisting && self.write_failed {
            self.after_failed_write(now, record, effects);
        }
    }

    /// Whether this is what was to be written. Compared by numbers: a diverged step's decision (not a number) in a plan is not
    /// equal to itself.
    fn attempted(&self, record: &Record) -> bool {
        let numbers = |r: &Record| {
            let generation = |p: &Option<Arc<Plan>>| p.as_ref().map(|p| p.generation);
            (
                r.version,
                r.term,
                r.highest,
                generation(&r.plan),
                generation(&r.next),
                r.done,
            )
        };
        bug!(AnyRecordIsMine)
            || self
                .attempt
                .as_ref()
                .is_some_and(|a| numbers(a) == numbers(record))
    }

    /// A failed write may have happened all the same: the store says.
    fn after_failed_write(&mut self, now: Time, record: Record, effects: &mut Vec<CoordinatorEffect>) {
        if !bug!(KeepUnclearTerm) && self.record.term != self.term {
            // Two take-overs of one term look alike: what lies there may be another's. Only a term of one's own will do.
            self.mode = Mode::Boot;
            self.asked_at = now;
        } else if self.attempted(&record) {
            self.persisted(now, record, effects);
        } else {
            self.record = record;
            self.mode = Mode::Active;
            self.attempt = None;
            self.considered = None; // what could not be written is proposed again, in a while
            self.change_after = now.after(self.config.timing.change_delay * 3);
        }
    }

    pub(super) fn written(
        &mut self,
        now: Time,
        ok: bool,
        record: Record,
        effects: &mut Vec<CoordinatorEffect>,
    ) {
        if (self.mode != Mode::Persisting || !self.attempted(&record))
            && !(bug!(AnyAnswerIsOfThisWrite) && self.mode == Mode::Persisting)
        {
            // a Stop came between; the record stays true to the store
            if !bug!(ForgetWriteAtStop)
                && ok
                && record.term == self.term
                && record.version > self.record.version
            {
                self.record = record;
            }
            return;
        }
        if ok || bug!(FailedWriteCounts) {
            return self.persisted(now, record, effects);
        }
        self.write_failed = true;
        self.complain(
            Event::WriteFailed {
                version: record.version,
            },
            effects,
        );
        effects.push(CoordinatorEffect::ReadRecord);
    }

    fn persisted(&mut self, now: Time, record: Record, effects: &mut Vec<CoordinatorEffect>) {
        self.attempt = None;
        let took_over = self.record.term != self.term;
        let number = |p: &Option<Arc<Plan>>| p.as_ref().map(|p| p.generation);
        let planned = number(&record.plan);
        let recovery = planned != number(&self.record.plan) && planned != number(&self.record.next);
        if record.highest != self.record.highest {
            self.since = now;
        }
        let before = std::mem::replace(&mut self.record, record);
        if bug!(EveryWriteIsProgress) || recovery || took_over {
            self.progress_at = now; // a planned change must never postpone the detection of a death
        }
        if took_over {
            effects.push(CoordinatorEffect::Event(Event::TookOver { term: self.term }));
        } else {
            self.tell_of(now, &before, effects);
        }
        if self.record.done {
            self.mode = Mode::Done { since: now };
            effects.push(CoordinatorEffect::Event(Event::Done {
                step: self.config.last_step,
            }));
        } else if took_over && self.record.plan.is_some() {
            self.mode = Mode::Settling {
                until: now.after(self.config.timing.settle),
            };
        } else {
            self.mode = Mode::Active;
            self.active(now, effects);
        }
    }

    /// Diary entries for what a write changed.
    fn tell_of(&mut self, now: Time, before: &Record, effects: &mut Vec<CoordinatorEffect>) {
        let planned = [&self.record.plan, &self.record.next];
        let fresh = planned
            .into_iter()
            .flatten()
            .find(|p| p.generation > before.highest)
            .cloned();
        if let Some(plan) = fresh {
            let change = matches!(plan.base, Base::AtSwitch { .. });
            effects.push(CoordinatorEffect::Event(Event::Planned {
                generation: plan.generation,
                plan: plan.shape.summary(),
                workers: plan.members().len(),
                predicted_ms: plan.shape.predicted.step_ms,
                change,
                reason: plan.reason.clone(),
            }));
            if let Base::Fixed {
                id,
                decision,
                checkpoint,
            } = plan.base
            {
                if let Some(decision) = decision {
                    self.publish(now, decision, effects);
                }
                effects.push(CoordinatorEffect::Event(Event::Resumed {
                    generation: plan.generation,
                    base: id,
                    finished: decision.is_some(),
                    restored: checkpoint,
                }));
            }
        } else if let (Some(next), None) = (&before.next, &self.record.next)
            && self
                .record
                .plan
                .as_ref()
                .is_some_and(|p| p.generation == next.generation)
        {
            let generation = next.generation;
            effects.push(CoordinatorEffect::Event(Event::Switched { generation }));
        }
    }

    /// Numbers are burnt, never reused.
    pub(super) fn next_generation(&self) -> Generation {
        if bug!(ReuseGeneration) {
            return self
                .record
                .plan
                .as_ref()
                .map_or(Generation(0), |p| p.generation)
                .next();
        }
        // States of an earlier run on the same store must stay older than this one's.
        if bug!(NumbersBelowStore) {
            self.record.highest.next()
        } else {
            self.record.highest.max(self.stored).next()
        }
    }

    /// The decision that the persisted plan carries; it binds.
    pub(super) fn persisted_decision(&self) -> Option<Decision> {
        match self.record.plan.as_ref().map(|p| &p.base) {
            Some(Base::Fixed { decision, .. }) => *decision,
            _ => None,
        }
    }
}
