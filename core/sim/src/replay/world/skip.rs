//! Commits, checkpoints, and skipping: while steps follow each other at an equal rate and nothing else goes on, whole steps are counted
//! instead of run. The machines' clock stands still meanwhile; the trace's continues.

use super::{Replay, Result};
use crate::host::Host;
use crate::replay::ledger::{Activity, Cause};
use std::time::Duration;
use varuna_plan::{Decision, StateId};
use varuna_protocol::{CoordinatorInput, Time};

/// After this long with nothing but commits, everything that follows a change has been done, nanoseconds. The longest wait after a change
/// is that after a cancelled one, 0.9 s.
const QUIET_NS: u64 = 2_000_000_000;
/// The same if nothing runs: the longest wait is that for answers before committed steps are given up, 30 s.
const STANDSTILL_NS: u64 = 36_000_000_000;
/// Number of equal steps that must have been seen.
const STEADY: u32 = 3;

/// A checkpoint, made at this state of the machines; `steps` of the trace's world were done.
pub(super) struct Saved {
    pub(super) steps: u64,
    /// Time on the trace's clock from which the checkpoint can be used.
    pub(super) available_ns: u64,
}

/// What was skipped in the simulation.
pub(super) struct Skipped {
    /// The trace's clock minus the machines' clock.
    pub(super) ns: u64,
    /// Steps of the trace's world minus the machines' steps.
    pub(super) steps: i128,
}

/// Whether equal steps follow each other.
#[derive(Clone, Copy, Default)]
pub(super) struct Steady {
    /// When something but a commit last happened.
    pub(super) busy_at: u64,
    pub(super) committed_at: u64,
    /// Time from one commit to the next.
    pub(super) period: u64,
    /// Equal periods in a row.
    pub(super) count: u32,
}

impl Host<Replay<'_>> {
    /// Somebody commits a state for the first time.
    pub(super) fn committed(&mut self, decision: &Decision) -> Result {
        self.env.account.report.simulated_steps += 1;
        self.env.newest = decision.id;
        let real = self.real();
        self.env.account.ledger.commit(real, 1);
        self.env.newest_steps = self.env.account.ledger.steps;
        let now = self.now();
        let steady = &mut self.env.steady;
        let took = now - steady.committed_at;
        steady.count = if took == steady.period {
            steady.count + 1
        } else {
            0
        };
        (steady.period, steady.committed_at) = (took, now);
        self.save(self.env.account.ledger.steps - 1);
        if decision.switch.is_some() {
            self.turn(Activity::Paused(Cause::Transfer));
            return Ok(());
        }
        self.skip_steps()
    }

    fn skip_steps(&mut self) -> Result {
        let Steady {
            busy_at,
            period,
            count,
            ..
        } = self.env.steady;
        // Before a worker goes whose end is known the coordinator may want a checkpoint at any time.
        let waits = self.wants_checkpoint() || self.members.iter().any(|(_, w)| w.alive && w.local.drained);
        let quiet = self.now() >= busy_at + QUIET_NS && count >= STEADY && period > 0 && !waits;
        if !self.env.setup.skip || !quiet || self.env.record.next.is_some() || !self.env.transfers.idle() {
            return Ok(());
        }
        let until = self.outside().unwrap_or(0).min(self.env.trace.end_ns());
        let left = until.saturating_sub(self.real()).min(self.time_to_decision());
        let steps = (left / period).saturating_sub(1);
        if steps > 0 {
            let before = self.env.account.ledger.steps;
            self.env.skipped.ns += steps * period;
            self.passed(steps * period)?;
            self.env.skipped.steps += i128::from(steps);
            let real = self.real();
            self.judge_plan(false);
            self.env.account.ledger.commit(real, steps);
            self.save(before);
            self.env.steady.count = 0;
        }
        Ok(())
    }

    /// Whether the coordinator waits for a checkpoint that it has ordered.
    fn wants_checkpoint(&self) -> bool {
        let coordinator = self.coordinators.first();
        coordinator.is_some_and(|c| c.machine.wants_checkpoint())
    }

    /// The time until the coordinator orders a checkpoint, or reconsiders a change that would not have repaid its cost, nanoseconds.
    fn time_to_decision(&self) -> u64 {
        let now = Time(self.now());
        let Some(machine) = self.coordinators.first().map(|c| &c.machine) else {
            return u64::MAX;
        };
        let times = [
            machine.time_to_reconsider(now),
            machine.time_to_extra_checkpoint(now),
        ];
        let first = times.into_iter().flatten().min();
        first.map_or(u64::MAX, |time| {
            u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
        })
    }

    /// Skips ahead if nothing runs, nothing is on its way and all waits are over: only the trace can change that.
    pub(super) fn skip_standstill(&mut self) -> Result {
        let since = self.env.steady.busy_at.max(self.env.steady.committed_at);
        let running = matches!(self.env.account.ledger.activity, Activity::Running { .. });
        if !self.env.setup.skip || running || self.now() < since + STANDSTILL_NS || !self.env.transfers.idle()
        {
            return Ok(());
        }
        let until = self.outside().unwrap_or(0).min(self.env.trace.end_ns());
        let left = until.saturating_sub(self.real() + 1);
        self.env.skipped.ns += left;
        self.passed(left)?;
        self.env.steady.committed_at = self.now();
        Ok(())
    }

    /// The coordinator learns how often nodes come and go, by the trace's clock.
    fn passed(&mut self, ns: u64) -> Result {
        self.coordinator(0, CoordinatorInput::TimeSkipped(Duration::from_nanos(ns)))
    }

    /// Makes the last checkpoint that became due after `before` steps, under the name of the newest state. The machines know one state for
    /// all the steps that were skipped; `Saved::steps` tells for which step it stands.
    fn save(&mut self, before: u64) {
        let Some(every) = self.env.setup.checkpoint_steps else {
            return;
        };
        let done = self.env.account.ledger.steps;
        let due = done / every * every;
        if due <= before {
            return;
        }
        let upload = self.upload_ns();
        let count = done / every - before / every;
        self.env.account.report.checkpoints.add(count, upload);
        let made = self.real() - (done - due) * self.env.steady.period.max(1);
        // If the newest is still being uploaded, the one before it may be complete.
        if made + upload > self.real() && due >= every && due - every > before {
            let older = Saved {
                steps: due - every,
                available_ns: self.real(),
            };
            self.env.saved.insert(self.env.newest, older);
            return;
        }
        let saved = Saved {
            steps: due,
            available_ns: made + upload,
        };
        self.keep(saved);
    }

    /// A member puts its share of the newest state, as the coordinator has ordered; all members do so at once.
    pub(super) fn ordered_save(&mut self, id: StateId) {
        let steps = self.env.newest_steps;
        let known = self.env.saved.get(&id).is_some_and(|s| s.steps >= steps);
        if id == self.env.newest && !known {
            let upload = self.upload_ns();
            self.env.account.report.checkpoints.add(1, upload);
            let available_ns = self.real() + upload;
            self.keep(Saved { steps, available_ns });
        }
    }

    fn keep(&mut self, saved: Saved) {
        self.env.saved.insert(self.env.newest, saved);
        while self.env.saved.len() > 8 {
            self.env.saved.pop_first();
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
        let members = self.env.in_force.as_ref().map_or(1, |p| p.members().len()).max(1) as f64;
        let rate = self
            .env
            .setup
            .parts
            .bytes_per_ns(self.env.setup.planner.costs.device.bytes_per_s);
        (self.env.unit_bytes.iter().sum::<f64>() / members / rate) as u64
    }

    /// States of checkpoints that are complete.
    pub(super) fn checkpoints(&self) -> Vec<StateId> {
        let real = self.real();
        let there = self.env.saved.iter().filter(|(_, s)| s.available_ns <= real);
        there.map(|(id, _)| *id).collect()
    }
}
