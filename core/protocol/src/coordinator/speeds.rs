//! Estimates how fast workers are from their own observations, robustly and continuously, and says when an estimate is worth a new plan.
//!
//! A worker's speed is estimated from segments that other workers compute too (segments of equal expected cost are of one kind), as medians
//! over a window of steps. So neither a single slow step nor an expensive segment makes a worker look slow. This module never causes a plan
//! itself: it reports speeds, and when they may be examined again.

use super::observed_costs::ObservedCosts;
use super::slow_worker_trials::SlowWorkerTrials;
use crate::message::Time;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use varuna_plan::{Generation, Shape, Step, WorkerId};

/// Number of steps in an estimate, and between two examinations of it. A plan made only because of a slow worker needs a lasting cause.
pub(super) const WINDOW: usize = 20;
/// A plan change made only because of a slow worker must bring the step time down to this fraction: the change costs a switch and moves
/// state, and whatever slowed the worker may end.
const GAIN: f64 = 0.90;
/// Whether a shape is better by [`GAIN`] than steps of `present_ms` milliseconds.
pub(super) fn slow_gain(shape: &Shape, present_ms: f64) -> bool {
    shape.predicted.step_ms < present_ms * GAIN
}

/// Plans use the estimates once these differ by this fraction. Less is noise, or other processes on the same machine.
const BAND: f64 = 0.20;
/// A worker with at least this speed is not slow.
const SOUND: f64 = 1.0 - BAND;
/// A worker that computes for less than this in a step is not judged, in milliseconds: the time slices of the operating system are of this
/// order and would decide its times.
const LEAST_MS: f64 = 20.0;
/// Predicted and observed step times that differ by more than this fraction over a window of steps are reported.
const OFF: f64 = 0.25;

/// What a worker observed in one step: for each segment the median time of one micro-batch's forward and backward together.
#[derive(Clone, PartialEq, Debug)]
pub struct Observed {
    /// Generation of the step.
    pub generation: Generation,
    /// Number of the step.
    pub step: Step,
    /// Samples in the micro-batches.
    pub micro_batch_size: u32,
    /// All forwards and backwards of the step, milliseconds.
    pub busy_ms: f64,
    /// Milliseconds for each segment.
    pub segments: Vec<(u32, f64)>,
}

/// Estimates for one generation, and speeds that are kept across generations.
#[derive(Default)]
pub(super) struct Speeds {
    generation: Generation,
    micro_batch_size: u32,
    windows: BTreeMap<WorkerId, VecDeque<BTreeMap<u32, f64>>>,
    /// The speeds that plans are made with.
    speeds: BTreeMap<WorkerId, f64>,
    /// The number of reports from each worker since speeds were last adopted.
    fresh: BTreeMap<WorkerId, usize>,
    /// How many workers have reported for a whole window.
    windows_full: usize,
    /// Steps in a row whose time was far from the prediction, and whether that was reported in this generation.
    off: usize,
    said: bool,
    /// Workers that are left out because they were slow.
    slow_worker_trials: SlowWorkerTrials,
    /// What the step times say about the cost estimates of all workers.
    pub(super) costs: ObservedCosts,
}

/// The estimates that follow from the windows.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Estimates {
    /// Speed of each worker that holds segments of a kind that other workers hold too; 1 = as fast as the others.
    pub(super) speeds: BTreeMap<WorkerId, f64>,
    /// By segment: the ratio of observed to expected time on a worker of speed 1.
    pub(super) factors: BTreeMap<u32, f64>,
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    // The lower median: of two workers, the faster one is the reference.
    values.get(values.len().checked_sub(1)? / 2).copied()
}

impl Speeds {
    /// Forgets what belongs to another generation.
    pub(super) fn begin(&mut self, generation: Generation) {
        if self.generation != generation {
            self.generation = generation;
            self.windows.clear();
            self.forget_fresh();
            self.off = 0;
            self.said = false;
        }
    }

    pub(super) fn observe(&mut self, from: WorkerId, observed: &Observed) {
        let usable = |ms: &f64| ms.is_finite() && *ms > 0.0;
        let segments: BTreeMap<u32, f64> = observed
            .segments
            .iter()
            .filter(|(_, ms)| usable(ms))
            .copied()
            .collect();
        if observed.generation != self.generation || segments.is_empty() || observed.busy_ms < LEAST_MS {
            return;
        }
        self.micro_batch_size = observed.micro_batch_size;
        let window = self.windows.entry(from).or_default();
        window.push_back(segments);
        if window.len() > WINDOW {
            window.pop_front();
        }
        let fresh = self.fresh.entry(from).or_default();
        *fresh += 1;
        self.windows_full += usize::from(*fresh == WINDOW);
    }

    fn forget_fresh(&mut self) {
        self.fresh.clear();
        self.windows_full = 0;
    }

    /// Whether every member has reported for a whole window since speeds were last adopted.
    pub(super) fn is_due(&self, members: &[WorkerId]) -> bool {
        let reported = |w: &WorkerId| self.fresh.get(w).is_some_and(|n| *n >= WINDOW);
        // this is called on every tick, so members are examined only once there can be enough reports
        members.len() > 1 && self.windows_full >= members.len() && members.iter().all(reported)
    }

    /// Copies the estimates into the speeds used for plans, where they differ enough. True if a speed changed.
    pub(super) fn adopt(&mut self, estimates: &Estimates) -> bool {
        self.forget_fresh();
        let mut changed = false;
        for (worker, estimate) in &estimates.speeds {
            let held = self.speeds.entry(*worker).or_insert(1.0);
            if *estimate >= SOUND {
                self.slow_worker_trials.forget(*worker);
            }
            if (estimate / *held - 1.0).abs() > BAND {
                *held = *estimate;
                changed = true;
            }
        }
        changed
    }

    /// The speed that plans are made with; 1 where nothing else is known.
    pub(super) fn speed(&self, worker: WorkerId) -> f64 {
        self.speeds.get(&worker).copied().unwrap_or(1.0)
    }

    /// Whether the worker is so much slower than the others that plans take it into account.
    pub(super) fn is_slow(&self, worker: WorkerId) -> bool {
        self.speed(worker) < SOUND
    }

    /// Forgets, after a while, the speed of workers left out as slow: nothing more is observed about a worker that does not train. It may
    /// then be planned with again, and is judged anew. True if there is one.
    pub(super) fn start_slow_worker_trials(&mut self, now: Time, spares: &[WorkerId]) -> bool {
        let slow = spares.iter().copied().filter(|w| self.is_slow(*w));
        let slow: Vec<WorkerId> = slow.collect();
        let due = self.slow_worker_trials.due(now, &slow);
        for worker in &due {
            self.speeds.remove(worker);
        }
        !due.is_empty()
    }

    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.slow_worker_trials.forget(worker);
        self.speeds.remove(&worker);
        self.windows.remove(&worker);
        let fresh = self.fresh.remove(&worker);
        self.windows_full -= usize::from(fresh.is_some_and(|n| n >= WINDOW));
    }

    /// The estimates from all windows. `expected(segment, samples)` is the time in milliseconds that the planner's costs predict. If both
    /// halves of a window show a changed speed, the half that is nearer to the present speed counts; if they disagree, nothing has changed.
    pub(super) fn estimates(&self, expected: impl Fn(u32, u32) -> Option<f64>) -> Estimates {
        let mut found = self.estimates_of(0..WINDOW, &expected);
        let halves =
            [0..WINDOW / 2, WINDOW / 2..WINDOW].map(|part| self.estimates_of(part, &expected).speeds);
        for (worker, speed) in &mut found.speeds {
            let held = self.speed(*worker);
            let [early, late] = [0, 1].map(|i: usize| halves[i].get(worker).copied().unwrap_or(held));
            *speed = if (early > held) != (late > held) {
                held
            } else if (early - held).abs() < (late - held).abs() {
                early
            } else {
                late
            };
        }
        found
    }

    /// Estimates from a part of each window.
    fn estimates_of(&self, part: Range<usize>, expected: &impl Fn(u32, u32) -> Option<f64>) -> Estimates {
        // By worker and segment: the ratio of observed to expected time, and the weight of the segment.
        let mut ratios: BTreeMap<WorkerId, BTreeMap<u32, (f64, f64)>> = BTreeMap::new();
        let mut kinds: BTreeMap<u64, BTreeMap<WorkerId, Vec<f64>>> = BTreeMap::new();
        let mut kind_of: BTreeMap<u32, u64> = BTreeMap::new();
        for (worker, window) in self.windows.iter().filter(|(_, w)| w.len() >= WINDOW) {
            let mut by_segment: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
            for (segment, ms) in window.range(part.clone()).flatten() {
                by_segment.entry(*segment).or_default().push(*ms);
            }
            for (segment, mut times) in by_segment {
                let wanted = expected(segment, self.micro_batch_size).filter(|ms| *ms > 0.0);
                let (Some(wanted), Some(observed)) = (wanted, median(&mut times)) else {
                    continue;
                };
                // Segments of equal cost are of one kind; differences below a hundredth of a per cent are rounding.
                let kind = (wanted.log2() * 4096.0).round().to_bits();
                kind_of.insert(segment, kind);
                let ratio = observed / wanted;
                ratios
                    .entry(*worker)
                    .or_default()
                    .insert(segment, (ratio, wanted));
                kinds
                    .entry(kind)
                    .or_default()
                    .entry(*worker)
                    .or_default()
                    .push(ratio);
            }
        }
        let shared: BTreeMap<u64, f64> = kinds
            .iter()
            .filter(|(_, workers)| workers.len() > 1)
            .filter_map(|(kind, workers)| {
                let mut each: Vec<f64> = workers
                    .values()
                    .filter_map(|ratios| median(&mut ratios.clone()))
                    .collect();
                Some((*kind, median(&mut each)?))
            })
            .collect();
        let mut found = Estimates::default();
        for (worker, segments) in &ratios {
            let (mut took, mut normal) = (0.0, 0.0);
            for (segment, (ratio, wanted)) in segments {
                if let Some(factor) = kind_of.get(segment).and_then(|k| shared.get(k)) {
                    took += ratio * wanted;
                    normal += factor * wanted;
                }
            }
            if took > 0.0 {
                found.speeds.insert(*worker, normal / took);
            }
            for (segment, (ratio, _)) in segments {
                let kind = kind_of.get(segment).and_then(|k| shared.get(k)).copied();
                // No other worker holds segments of this kind: the factor is what remains once the worker's own speed is divided out.
                let own = found.speeds.get(worker).map_or(*ratio, |speed| ratio * speed);
                found.factors.insert(*segment, kind.unwrap_or(own));
            }
        }
        found
    }

    /// True when step times have differed from the prediction for a whole window and that was not reported yet.
    pub(super) fn is_off(&mut self, predicted_ms: f64, observed_ms: f64) -> bool {
        let far = predicted_ms > 0.0 && (observed_ms / predicted_ms - 1.0).abs() > OFF;
        self.off = if far { self.off + 1 } else { 0 };
        let tell = self.off >= WINDOW && !self.said;
        self.said |= tell;
        tell
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::state::mix;

    const G: Generation = Generation(3);

    /// The expected time. Segments 0 and 7 have kinds of their own, and the others are equal.
    fn expected(segment: u32, samples: u32) -> Option<f64> {
        let each = match segment {
            0 => 2.0,
            7 => 14.0,
            1..=6 => 8.0,
            _ => return None,
        };
        Some(each * f64::from(samples))
    }

    fn noise(seed: u64, most: f64) -> f64 {
        1.0 + most * ((mix(seed, 7) % 1000) as f64 / 500.0 - 1.0)
    }

    /// This many steps of workers with (speed, segments). Each time is off by up to `most`, and one in ten by much more.
    fn run(speeds: &mut Speeds, workers: &[(f64, Range<u32>)], steps: u64, most: f64) {
        for step in 0..steps {
            for (w, (speed, range)) in (0..).zip(workers) {
                let time = |s: u32| {
                    let seed = step * 1000 + w * 100 + u64::from(s);
                    let odd = if mix(seed, 1).is_multiple_of(10) { 3.0 } else { 1.0 };
                    // The head costs half as much again as expected.
                    let off = if s == 7 { 1.5 } else { 1.0 };
                    (s, expected(s, 2).unwrap() * off * odd * noise(seed, most) / speed)
                };
                let observed = Observed {
                    generation: G,
                    step: Step(step),
                    micro_batch_size: 2,
                    busy_ms: 200.0,
                    segments: range.clone().map(time).collect(),
                };
                speeds.observe(WorkerId(w), &observed);
            }
        }
    }

    fn observed_speeds() -> Speeds {
        let mut speeds = Speeds::default();
        speeds.begin(G);
        speeds
    }

    #[test]
    fn a_slow_worker_is_found_and_a_costly_segment_is_not_its_fault() {
        let mut speeds = observed_speeds();
        let workers = [(1.0, 0..3), (0.5, 3..5), (1.0, 5..8)];
        run(&mut speeds, &workers, 25, 0.1);
        let found = speeds.estimates(expected);
        for (worker, speed) in [(0, 1.0), (1, 0.5), (2, 1.0)] {
            let estimate = found.speeds[&WorkerId(worker)];
            assert!((estimate / speed - 1.0).abs() < 0.1, "{worker}: {estimate}");
        }
        assert!((found.factors[&7] / 1.5 - 1.0).abs() < 0.1, "{found:?}");
        assert!((found.factors[&3] - 1.0).abs() < 0.1, "{found:?}");
        assert!(speeds.adopt(&found));
        assert!((speeds.speed(WorkerId(1)) - 0.5).abs() < 0.05);
        assert!(
            !speeds.adopt(&speeds.estimates(expected)),
            "nothing has changed since"
        );
    }

    #[test]
    fn noise_changes_no_speed() {
        for seed in 0..200 {
            let mut speeds = observed_speeds();
            let workers = [(1.0, 0..4), (1.0, 4..8)];
            run(&mut speeds, &workers, 20 + seed % 30, 0.25);
            let found = speeds.estimates(expected);
            assert!(!speeds.adopt(&found), "seed {seed}: {found:?}");
        }
    }

    #[test]
    fn speeds_are_judged_after_a_full_window() {
        let mut speeds = observed_speeds();
        let (both, members) = ([(1.0, 0..4), (1.0, 4..8)], [WorkerId(0), WorkerId(1)]);
        run(&mut speeds, &both, 19, 0.1);
        assert!(!speeds.is_due(&members));
        run(&mut speeds, &both, 1, 0.1);
        assert!(speeds.is_due(&members));
        let _ = speeds.adopt(&Estimates::default());
        assert!(!speeds.is_due(&members), "adopting begins the next window");
        let mut short = observed_speeds();
        for step in 0..40 {
            let observed = Observed {
                generation: G,
                step: Step(step),
                micro_batch_size: 2,
                busy_ms: 5.0,
                segments: vec![(1, 1.0)],
            };
            short.observe(WorkerId(0), &observed);
        }
        assert_eq!(short.estimates(expected), Estimates::default());
    }

    #[test]
    fn another_generations_report_counts_for_nothing() {
        let mut speeds = observed_speeds();
        run(&mut speeds, &[(1.0, 0..8)], 20, 0.1);
        speeds.begin(Generation(4));
        run(&mut speeds, &[(1.0, 0..8)], 20, 0.1);
        assert_eq!(speeds.estimates(expected), Estimates::default());
    }

    #[test]
    fn a_wrong_prediction_is_said_once_after_a_window_of_such_steps() {
        let mut speeds = observed_speeds();
        let said: Vec<bool> = (0..60)
            .map(|i| speeds.is_off(100.0, if i == 5 { 101.0 } else { 140.0 }))
            .collect();
        assert_eq!(said.iter().filter(|s| **s).count(), 1);
        assert_eq!(said.iter().position(|s| *s), Some(5 + WINDOW));
        assert!((0..60).all(|_| !speeds.is_off(100.0, 80.0)));
    }
}
