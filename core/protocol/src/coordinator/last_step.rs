//! The last step of a run: what the job file says, and what was ordered since. It only grows, so no agreement is needed: a member that
//! hears of it late has stopped where the others wait for it.

use super::shared::Shared;
use super::turn::Turn;
use crate::message::{Order, Time};
use crate::record::Record;
use varuna_plan::Step;

impl Shared {
    /// The run's last step. An order counts even before it is written: the run must not end in between.
    pub(super) fn last_step(&self) -> Step {
        let known = self.config.last_step.max(self.record.stored.last_step);
        if bug!(EndBeforeOrderedLastStep) {
            return known;
        }
        known.max(self.record.ordered_last_step)
    }

    /// Takes an order; a step that is not greater changes nothing.
    pub(super) fn order_last_step(&mut self, step: Step, now: Time) {
        if step <= self.last_step() {
            return;
        }
        self.record.ordered_last_step = step;
        // All members were at the last step, so nothing is late.
        self.progress.at = now;
    }

    /// Whether the ordered last step is in the record, if it is greater than the job file's.
    pub(super) fn is_last_step_written(&self) -> bool {
        let known = self.config.last_step.max(self.record.stored.last_step);
        self.record.ordered_last_step <= known
    }

    /// Reports the last step in the record to the workers that do not know it: a later coordinator must not end the run before them.
    pub(super) fn send_last_step(&mut self, turn: &mut Turn<'_>) {
        let step = self.record.stored.last_step;
        if step <= self.config.last_step || bug!(TellNobodyLastStep) {
            return;
        }
        for (to, status) in self.roster.statuses(turn.scope) {
            if status.last_step < step {
                self.outbox.order(turn, to, Order::LastStep { step });
            }
        }
    }

    /// Whether a run that has ended continues: more steps are ordered than it had, and there is a store, which holds its last state.
    pub(super) fn resumes_after(&self, ended: &Record) -> bool {
        let had = self.config.last_step.max(ended.last_step);
        self.record.ordered_last_step > had && self.config.final_checkpoint
    }
}
