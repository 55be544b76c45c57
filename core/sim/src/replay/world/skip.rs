//! Commits, checkpoints, and what is left out: while steps follow each other at an equal pace and nothing else goes on, whole
//! steps are counted instead of run. The machines' clock stands still meanwhile; the trace's goes on.

use super::{Saved, World};
use crate::replay::ledger::{Activity, Cause};
use std::time::Duration;
use varuna_plan::{Decision, StateId};
use varuna_protocol::CoordinatorInput;

/// Nothing but commits for so long: everything that follows a change has been done, nanoseconds. The longest wait after
/// a change is that after a cancelled one, 0.9 s.
const QUIET_NS: u64 = 2_000_000_000;
/// Where nothing runs the longest wait is that for answers before committed steps are given up, 30 s.
const STANDSTILL_NS: u64 = 36_000_000_000;
/// Equal steps that must have been seen.
const STEADY: u32 = 3;

impl World<'_> {
    /// Somebody commits a state for the first time.
    pub(super) fn committed(&mut self, decision: &Decision) {
        self.report.simulated_steps += 1;
        self.tip = decision.id;
        let real = self.real();
        self.ledger.commit(real, 1);
        let took = self.now - self.committed_at;
        self.steady = if took == self.period { self.steady + 1 } else { 0 };
        (self.period, self.committed_at) = (took, self.now);
        self.save(self.ledger.steps - 1);
        if decision.switch.is_some() {
            self.turn(Activity::Standing(Cause::Transfer));
            return;
        }
        self.skip_steps();
    }

    fn skip_steps(&mut self) {
        let quiet = self.now >= self.busy_at + QUIET_NS && self.steady >= STEADY && self.period > 0;
        if !self.setup.skip || !quiet || self.record.next.is_some() || !self.net.idle() {
            return;
        }
        let until = self.outside().unwrap_or(0).min(self.trace.end_ns());
        let left = until.saturating_sub(self.real());
        let steps = (left / self.period).saturating_sub(1);
        if steps > 0 {
            let before = self.ledger.steps;
            self.ahead += steps * self.period;
            self.passed(steps * self.period);
            self.ahead_steps += i128::from(steps);
            let real = self.real();
            self.judge_plan(false);
            self.ledger.commit(real, steps);
            self.save(before);
            self.steady = 0;
        }
    }

    /// Nothing runs, nothing is on its way, and all waits are over: only the trace can change that.
    pub(super) fn skip_standstill(&mut self) {
        let since = self.busy_at.max(self.committed_at);
        let running = matches!(self.ledger.activity, Activity::Running { .. });
        if !self.setup.skip || running || self.now < since + STANDSTILL_NS || !self.net.idle() {
            return;
        }
        let until = self.outside().unwrap_or(0).min(self.trace.end_ns());
        let left = until.saturating_sub(self.real() + 1);
        self.ahead += left;
        self.passed(left);
        self.committed_at = self.now;
    }

    /// The coordinator learns how often nodes come and go, by the trace's clock.
    fn passed(&mut self, ns: u64) {
        self.lead(CoordinatorInput::TimeSkipped(Duration::from_nanos(ns)));
    }

    /// The last checkpoint that became due after `before` steps, kept at the tip's name. The machines know one state for all
    /// the steps that were left out; `Saved::steps` says which it stands for.
    fn save(&mut self, before: u64) {
        let Some(every) = self.setup.checkpoint_steps else {
            return;
        };
        let done = self.ledger.steps;
        let due = done / every * every;
        if due <= before {
            return;
        }
        let upload = self.upload_ns();
        let made = self.real() - (done - due) * self.period.max(1);
        // Where the newest is still on its way, the one before it may be there.
        if made + upload > self.real() && due >= every && due - every > before {
            let older = Saved {
                steps: due - every,
                available_ns: self.real(),
            };
            self.saved.insert(self.tip, older);
            return;
        }
        let saved = Saved {
            steps: due,
            available_ns: made + upload,
        };
        self.saved.insert(self.tip, saved);
        while self.saved.len() > 8 {
            self.saved.pop_first();
        }
    }

    /// All members write their share at once.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate"
    )]
    fn upload_ns(&self) -> u64 {
        let members = self.in_force.as_ref().map_or(1, |p| p.members().len()).max(1) as f64;
        let rate = self
            .setup
            .parts
            .bytes_per_ns(self.setup.planner.costs.device.bytes_per_s);
        (self.bytes.iter().sum::<f64>() / members / rate) as u64
    }

    /// States of checkpoints that are complete.
    pub(super) fn checkpoints(&self) -> Vec<StateId> {
        let real = self.real();
        let there = self.saved.iter().filter(|(_, s)| s.available_ns <= real);
        there.map(|(id, _)| *id).collect()
    }
}
