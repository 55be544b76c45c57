//! Draws the faults of a schedule from its seed: kinds, times, and what their details are drawn from.

use super::fault_list::{Fault, HITS_MAX};
use super::lone_loss::QUIET;
use super::network::Ms;
use super::unreliable::{KINDS, Unreliable};
use super::{Schedule, Timer};
use crate::host::Host;
use crate::rng::Rng;
use varuna_plan::state::mix;

/// What happens in half of the schedules besides.
const DISTURBANCES: [Fault; 9] = [
    Fault::LoseZone,
    Fault::Storm,
    Fault::Slow,
    Fault::Flap,
    Fault::JumpClock,
    Fault::JumpCoordinatorClock,
    Fault::StoreDown,
    Fault::StoreFull,
    Fault::LateNotice,
];

/// Faults that continue to happen if faults become rarer.
const RARER: [Fault; 14] = [
    Fault::Crash,
    Fault::Pause,
    Fault::Block,
    Fault::Reset,
    Fault::Break,
    Fault::CrashCoordinator,
    Fault::PauseCoordinator,
    Fault::Join,
    Fault::Drain,
    Fault::Isolate,
    Fault::Slow,
    Fault::JumpClock,
    Fault::StoreDown,
    Fault::Save,
];
/// Number of such faults that are drawn: enough for the longest job.
const RARER_MAX: usize = 400;

impl Host<Schedule> {
    pub(super) fn schedule_faults(&mut self, seed: u64) {
        let span = self.env.rng.range(200, 3000);
        let count = self.env.rng.range(0, 12);
        self.env.faults.hit_rate = self.env.rng.pick(&[0, 0, 2, 10]).unwrap_or(0);
        let quiet = self.env.network.slow_percent == 0 && self.env.faults.hit_rate == 0;
        self.env.faults.only_joins = quiet && self.env.rng.chance(30);
        if self.env.faults.only_joins {
            for _ in 0..self.env.rng.range(1, 4) {
                self.draw_fault(span, Fault::Join);
            }
        } else {
            for _ in 0..count {
                let fault = match self.env.rng.below(31) {
                    0..4 => Fault::Crash,
                    4..6 => Fault::Pause,
                    6..9 => Fault::Block,
                    9..11 => Fault::Reset,
                    11..13 => Fault::Break,
                    13 => Fault::CrashCoordinator,
                    14 => Fault::Failover,
                    15 => Fault::PauseCoordinator,
                    16..19 => Fault::Join,
                    19..21 => Fault::Drain,
                    21 => Fault::StoreCut,
                    22..24 => Fault::Isolate,
                    24 => Fault::LoseNode,
                    25 => Fault::Grow,
                    26 => Fault::CrashLoop,
                    27 => Fault::Announce,
                    28 => Fault::Save,
                    29 => Fault::LimitWorkers,
                    _ => Fault::Stop,
                };
                self.draw_fault(span, fault);
            }
            self.draw_unreliable();
        }
        let mut own = Rng(mix(seed, 1234));
        self.env.faults.hits_loading = !self.env.faults.only_joins && own.chance(16);
        if self.env.faults.hits_loading {
            for _ in 0..own.range(1, 4) {
                let at = own.range(20, span);
                self.schedule_fault(at, Fault::Pause, own.draw());
            }
        }
        self.draw_disturbances(seed, span);
        self.draw_rarer(seed, span);
        self.env.faults.first_hit = self.env.faults.take_numbers(HITS_MAX);
        self.env.faults.lasting_cut = self.env.faults.take_numbers(1);
        self.draw_bit_flips(seed, span);
        self.draw_more_steps(seed, span);
        self.draw_lone_loss(seed, span);
        self.at(span + 1, Timer::EndFaults);
    }

    fn draw_fault(&mut self, span: Ms, fault: Fault) {
        let at = self.env.rng.range(20, span);
        let seed = self.env.rng.draw();
        self.schedule_fault(at, fault, seed);
    }

    /// Returns its number.
    fn schedule_fault(&mut self, at: Ms, fault: Fault, seed: u64) -> usize {
        let number = self.env.faults.take_numbers(1);
        self.at(at, Timer::Fault(fault, number, seed));
        number
    }

    /// In half of the schedules there are additional disturbances. They are drawn separately, so that earlier draws stay the same.
    fn draw_disturbances(&mut self, seed: u64, span: Ms) {
        let mut own = Rng(mix(seed, 4242));
        if self.env.faults.only_joins || own.chance(50) {
            return;
        }
        for _ in 0..own.range(1, 4) {
            let fault = own.pick(&DISTURBANCES).unwrap_or(Fault::Slow);
            let at = own.range(20, span);
            self.schedule_fault(at, fault, own.draw());
        }
    }

    /// If holders compare their states, bits change on some of them in most schedules.
    fn draw_bit_flips(&mut self, seed: u64, span: Ms) {
        let mut own = Rng(mix(seed, 5151));
        if self.env.faults.only_joins || self.env.job.compare_every.is_none() || own.chance(25) {
            return;
        }
        for _ in 0..own.range(1, 3) {
            let at = own.range(20, span);
            let number = self.schedule_fault(at, Fault::FlipBits, own.draw());
            self.env.faults.flips.insert(number);
        }
    }

    /// In one schedule of eight the user raises the number of steps, once or several times. That is no fault: everything else continues.
    fn draw_more_steps(&mut self, seed: u64, span: Ms) {
        let mut own = Rng(mix(seed, 6163));
        if !own.chance(12) {
            return;
        }
        for _ in 0..own.range(1, 3) {
            let at = own.range(20, span);
            self.schedule_fault(at, Fault::MoreSteps, own.draw());
        }
    }

    /// In some schedules a worker dies alone, long after all faults.
    fn draw_lone_loss(&mut self, seed: u64, span: Ms) {
        let mut own = Rng(mix(seed, 6067));
        if self.env.job.lone_loss && !self.env.faults.only_joins {
            let at = span + QUIET + own.range(1, 1_000);
            self.schedule_fault(at, Fault::LoneLoss, own.draw());
        }
    }

    /// In some schedules the faults do not stop, but become rarer.
    fn draw_rarer(&mut self, seed: u64, span: Ms) {
        let mut own = Rng(mix(seed, 9001));
        if self.env.faults.only_joins || !self.env.job.faults_become_rarer {
            return;
        }
        self.env.faults.become_rarer = true;
        self.env.stats.reach("faults become rarer");
        let mut at = span + 1;
        for _ in 0..RARER_MAX {
            at += own.range(1_000, 6_000);
            let fault = own.pick(&RARER).unwrap_or(Fault::Crash);
            self.schedule_fault(at, fault, own.draw());
        }
    }

    fn draw_unreliable(&mut self) {
        let mut rng = Rng(self.env.rng.draw());
        let first = self.env.faults.take_numbers(KINDS.len());
        let faults = &self.env.faults;
        let (unreliable, kinds) = Unreliable::draw(&mut rng, |kind| faults.happens(first + kind));
        self.env.unreliable = unreliable;
        self.env.job.overflow_percent = unreliable.overflows;
        self.env.faults.slow_store = unreliable.slow_store > 0;
        for kind in kinds {
            self.note_fault(first + kind, KINDS[kind], None);
        }
    }
}
