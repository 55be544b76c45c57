//! Faults that last a while, or hit many: slow and flapping workers, clocks that jump, zones that are lost, storms of workers that
//! come and go, notices that come too late.

use super::network::Ms;
use super::{Result, Schedule, Timer};
use crate::host::{Event, Host, Process};
use varuna_plan::state::mix;
use varuna_plan::{Step, Unit, WorkerId};
use varuna_protocol::CoordinatorInput;

/// Maximum number of living workers.
const STORM_MAX: usize = 16;
/// Longest jump of a clock: every deadline of the protocol is shorter.
const JUMP_MAX: Ms = 2 * 60 * 60 * 1_000;

impl Host<Schedule> {
    /// The worker computes slowly for a while: its steps get near the deadline, and some exceed it.
    pub(super) fn slow_down(&mut self, w: WorkerId, until: Ms) {
        let slow = &mut self.members[w].local.slow_until;
        *slow = until.max(*slow);
    }

    /// The additional time that the worker needs for a step now.
    pub(super) fn slowness(&mut self, w: WorkerId) -> Ms {
        if self.members[w].local.slow_until > self.now() {
            self.env.rng.range(50, 350)
        } else {
            0
        }
    }

    /// The worker's connections break now, and `left` more times later.
    pub(super) fn flap(&mut self, w: WorkerId, left: u32) -> Result {
        if !self.members[w].alive || self.env.faults.ended_at.is_some() {
            return Ok(());
        }
        if let Some(left) = left.checked_sub(1) {
            self.after_random(50, 400, Timer::Flap(w, left));
        }
        match self.env.rng.below(3) {
            0 => self.break_stream(w),
            1 => self.reset(w),
            _ => {
                let until = self.now() + self.env.rng.range(10, 150);
                return self.isolate(w, until);
            }
        }
        Ok(())
    }

    /// The clock of a process jumps ahead.
    pub(super) fn jump_clock(&mut self, process: Process) {
        let longest = self.env.rng.pick(&[500, 5_000, 60_000, JUMP_MAX]).unwrap_or(500);
        let jump = self.env.rng.range(50, longest);
        *self.env.clocks.entry(process).or_default() += jump;
    }

    /// Half of the workers die at once, and perhaps the coordinator with them.
    pub(super) fn lose_zone(&mut self, c: usize) {
        let live = self.members.ids(|m| m.alive).len();
        for _ in 0..live.div_ceil(2) {
            if let Some(w) = self.pick_worker() {
                self.crash(w);
            }
        }
        if self.env.rng.chance(50) {
            self.stop_coordinator(c);
        }
    }

    /// Many workers come, and most of them go again.
    pub(super) fn storm(&mut self) {
        for _ in 0..self.env.rng.range(5, 9) {
            if self.members.ids(|m| m.alive).len() < STORM_MAX {
                let id = self.members.next_id();
                self.add_worker();
                if self.env.rng.chance(60) {
                    self.after_random(20, 800, Timer::Kill(id));
                }
            }
        }
    }

    /// A worker dies; the notice that it will go comes afterwards.
    pub(super) fn notice_late(&mut self, w: WorkerId, c: usize) {
        self.crash(w);
        let notice = CoordinatorInput::Notice {
            worker: w,
            leaves_in: None,
        };
        self.after_random(1, 400, Event::Coordinator(c, notice));
    }

    /// The user raises the number of steps.
    pub(super) fn order_more_steps(&mut self, c: usize) -> Result {
        let more = self.env.rng.range(1, 8);
        let known = self.env.last_step().max(self.env.job.ordered_last_step);
        let step = Step(known.0 + more);
        self.env.job.ordered_last_step = step;
        self.coordinator(c, CoordinatorInput::LastStep(step))
    }

    /// Flips a bit of a state that a worker holds.
    pub(super) fn flip_bits(&mut self, w: WorkerId) {
        let units: Vec<Unit> = self.members[w].local.engine.held.keys().copied().collect();
        let Some(unit) = self.env.rng.pick(&units) else {
            return;
        };
        let wrong = self.env.rng.draw();
        if let Some(held) = self.members[w].local.engine.held.get_mut(&unit) {
            held.state.bits = mix(held.state.bits, wrong);
            self.env.checker.flipped(w, unit, *held);
        }
    }
}
