//! The training state that a plan's workers keep, and the state that they are missing and must fetch.

use super::at_risk::AtRisk;
use super::held_bytes::unit_bytes;
use super::problem::Problem;
use super::request::WorkerInfo;
use crate::document::{Shape, Stage};
use crate::ids::{Unit, WorkerId};
use std::collections::{BTreeMap, BTreeSet};

/// Number of workers that hold any state.
pub(super) fn holders(problem: &Problem) -> u64 {
    let held = problem.request.held.values();
    held.filter(|units| !units.is_empty()).count() as u64
}

/// Lower bound of the time for which training stops for a fetch, milliseconds: until the worker that is missing most has fetched it, and
/// the holders have sent all of it. If the state is followed, only the gradient of the last step has to be fetched.
#[expect(clippy::cast_precision_loss, reason = "bytes of state")]
pub(super) fn fetch_ms(problem: &Problem, most_bytes: u64, all_bytes: u64, holders: u64) -> f64 {
    let (parameter, link) = (problem.costs.parameter, problem.costs.device.bytes_per_s);
    let comes = if problem.request.following {
        parameter.gradient as f64 / parameter.moved.max(1) as f64
    } else {
        1.0
    };
    let each = all_bytes.checked_div(holders);
    each.map_or(0.0, |each| most_bytes.max(each) as f64 * comes / link * 1e3)
}

/// The held state, for sums over the units that shapes give to workers.
pub(super) struct Holdings<'a> {
    pub(super) problem: Problem<'a>,
    unit_bytes: Vec<u64>,
    held: BTreeMap<WorkerId, BTreeSet<Unit>>,
}

impl<'a> Holdings<'a> {
    pub(super) fn new(problem: &Problem<'a>) -> Holdings<'a> {
        let held = problem.request.held.iter();
        Holdings {
            problem: *problem,
            unit_bytes: unit_bytes(problem.costs, &problem.request.layout),
            held: held
                .map(|(worker, units)| (*worker, units.iter().copied().collect()))
                .collect(),
        }
    }

    fn bytes(&self, unit: Unit) -> u64 {
        self.unit_bytes.get(unit.index()).copied().unwrap_or(0)
    }

    /// By worker of a shape: how much of the held state it keeps, and how much it is missing, bytes.
    fn kept_and_lacking(&self, shape: &Shape) -> BTreeMap<WorkerId, (u64, u64)> {
        let layout = &self.problem.request.layout;
        let mut sums: BTreeMap<WorkerId, (u64, u64)> = BTreeMap::new();
        let mut add = |worker: WorkerId, unit: Unit| {
            let (kept, lacking) = sums.entry(worker).or_default();
            let is_held = self.held.get(&worker).is_some_and(|units| units.contains(&unit));
            let sum = if is_held { kept } else { lacking };
            *sum += self.bytes(unit);
        };
        if layout.ranges == 1 {
            // Every worker that computes with a unit holds it.
            for stage in shape.pipelines.iter().flat_map(|p| &p.stages) {
                let units = layout.whole_units_of(stage.segments).into_iter();
                units.for_each(|unit| add(stage.worker, unit));
            }
            return sums;
        }
        for whole in layout.undivided().all_units() {
            let group = shape.group(layout, Unit(whole.0 * layout.ranges));
            for unit in layout.ranges_of(whole) {
                let places = layout.places_of(unit, group.len()).into_iter();
                places.for_each(|place| add(group[place], unit));
            }
        }
        sums
    }

    /// The state that a shape's workers fetch, in bytes, and a lower bound of the time for that, in milliseconds. Both are 0 if no worker
    /// holds any, so that all state is made or loaded anyway.
    pub(super) fn moved(&self, shape: &Shape) -> (u64, f64) {
        let holders = holders(&self.problem);
        let sums = self.kept_and_lacking(shape);
        let lacking = || sums.values().map(|(_, lacking)| *lacking);
        let (most, all) = (lacking().max().unwrap_or(0), lacking().sum());
        let ms = fetch_ms(&self.problem, most, all, holders);
        (if holders > 0 { all } else { 0 }, ms)
    }

    /// Lower bound of the time for which a shape's workers fetch state, milliseconds.
    pub(super) fn move_ms(&self, shape: &Shape) -> f64 {
        self.moved(shape).1
    }

    /// Whether a shape's workers have this state before the workers go that alone hold it.
    pub(super) fn arrives_in_time(&self, at_risk: &AtRisk, shape: &Shape) -> bool {
        let sums = self.kept_and_lacking(shape);
        let lacking = |stage: &Stage| sums.get(&stage.worker).map_or(0, |(_, lacking)| *lacking);
        let stages = shape.pipelines.iter().flat_map(|p| &p.stages);
        let stages = stages.map(|stage| (stage.segments, lacking(stage)));
        at_risk.arrives_in_time(shape.pipelines.len(), stages)
    }

    /// Whether a shape is one of those that are looked for: its workers have state in time, if they must.
    pub(super) fn is_in_time(&self, shape: &Shape) -> bool {
        let in_time = self.problem.in_time;
        in_time.is_none_or(|at_risk| self.arrives_in_time(at_risk, shape))
    }

    /// Whether some worker's memory cannot hold all of its stages together with the state that it still has to send, or the worker was not
    /// offered.
    pub(super) fn exceeds_memory(&self, shape: &Shape, offered: &BTreeMap<WorkerId, &WorkerInfo>) -> bool {
        let mut needs: BTreeMap<WorkerId, u64> = BTreeMap::new();
        for (p, each) in shape.pipelines.iter().zip(self.problem.memory_bytes(shape)) {
            for (stage, need) in p.stages.iter().zip(each) {
                let needed = needs.entry(stage.worker).or_default();
                *needed = needed.saturating_add(need);
            }
        }
        let sums = self.kept_and_lacking(shape);
        let is_crowded = |(worker, need): (&WorkerId, &u64)| {
            let held = self.held.get(worker).into_iter().flatten();
            let held: u64 = held.map(|unit| self.bytes(*unit)).sum();
            let kept = sums.get(worker).map_or(0, |(kept, _)| *kept);
            let together = need.saturating_add(held.saturating_sub(kept));
            offered
                .get(worker)
                .is_none_or(|w| together > self.problem.capacity(w))
        };
        needs.iter().any(is_crowded)
    }
}

/// [`Holdings::moved`] of one shape.
pub(super) fn moved(problem: &Problem, shape: &Shape) -> (u64, f64) {
    Holdings::new(problem).moved(shape)
}
