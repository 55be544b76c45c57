//! Training state that a plan's workers lack and must fetch.

use super::problem::Problem;
use crate::cost::Costs;
use crate::document::{Shape, Stage};
use crate::ids::WorkerId;
use crate::layout::Layout;
use std::collections::BTreeMap;

/// State of each unit, those of the tied weight last, bytes.
pub(super) fn unit_bytes(costs: &Costs, layout: &Layout) -> Vec<u64> {
    let own = costs.segments.iter().map(|s| s.parameters);
    let all = own.chain([costs.tied_parameters]);
    let unit = |parameters: u64| parameters * costs.parameter.moved / u64::from(layout.ranges);
    let units = all.flat_map(|parameters| std::iter::repeat_n(unit(parameters), layout.ranges as usize));
    units.collect()
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
    let (layout, bytes) = (
        &problem.request.layout,
        unit_bytes(problem.costs, &problem.request.layout),
    );
    let lacks = |stage: &Stage| -> u64 {
        let held = problem.request.held.get(&stage.worker);
        let held = held.map_or(&[][..], Vec::as_slice);
        let whole = layout.whole_units_of(stage.segments).into_iter();
        let lacking = whole.flat_map(|whole| layout.ranges_of(whole)).filter(|u| {
            !held.contains(u) && (layout.ranges == 1 || shape.holders(layout, *u).contains(&stage.worker))
        });
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
