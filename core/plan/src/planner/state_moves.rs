//! Training state that a plan's workers lack and must fetch.

use super::problem::Problem;
use crate::cost::Costs;
use crate::document::{Shape, Stage};
use crate::ids::WorkerId;
use std::collections::BTreeMap;

/// State of each unit, the tied one last, bytes.
pub(super) fn unit_bytes(costs: &Costs) -> Vec<u64> {
    let own = costs.segments.iter().map(|s| s.parameters);
    let all = own.chain([costs.tied_parameters]);
    all.map(|parameters| parameters * costs.parameter.moved).collect()
}

/// How many workers hold some state.
pub(super) fn holders(problem: &Problem) -> u64 {
    let held = problem.request.held.values();
    held.filter(|units| !units.is_empty()).count() as u64
}

/// How long training stands for a fetch at least, milliseconds: until the worker that lacks most has fetched it, and the holders have sent
/// all of it. Of what is followed only the gradient of the last step is still to come.
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

/// What each of a shape's workers lacks, bytes.
fn lacking(problem: &Problem, shape: &Shape) -> Vec<u64> {
    let (layout, bytes) = (&problem.request.layout, unit_bytes(problem.costs));
    let lacks = |stage: &Stage| -> u64 {
        let held = problem.request.held.get(&stage.worker);
        let held = held.map_or(&[][..], Vec::as_slice);
        let lacking = layout
            .all_units()
            .filter(|u| layout.stage_holds(stage.segments, *u) && !held.contains(u));
        lacking.map(|u| bytes.get(u.index()).copied().unwrap_or(0)).sum()
    };
    let mut lacking: BTreeMap<WorkerId, u64> = BTreeMap::new();
    for stage in shape.pipelines.iter().flat_map(|p| &p.stages) {
        *lacking.entry(stage.worker).or_default() += lacks(stage);
    }
    lacking.into_values().collect()
}

/// State that a shape's workers fetch, bytes; 0 where nobody holds any, and all state is made or loaded anyway.
pub(super) fn moved_bytes(problem: &Problem, shape: &Shape) -> u64 {
    match holders(problem) {
        0 => 0,
        _ => lacking(problem, shape).iter().sum(),
    }
}

/// How long they fetch it, at least, milliseconds.
pub(super) fn move_ms(problem: &Problem, shape: &Shape) -> f64 {
    let lacking = lacking(problem, shape);
    let most = lacking.iter().copied().max().unwrap_or(0);
    fetch_ms(problem, most, lacking.iter().sum(), holders(problem))
}
