//! What programs do with a plan that they have read.

use varuna_plan::check::check_plan;
use varuna_plan::{Plan, schedule};

/// Maximum number of micro-batches of plans whose schedules are made.
const MICRO_BATCHES_MAX: u64 = 1 << 12;

/// Does with a plan what programs do. Returns the result of the checker.
pub(super) fn use_plan(plan: &Plan) -> String {
    let shape = &plan.shape;
    let batch = shape.pipelines.last().map_or(0, |p| p.samples.end);
    let members = plan.members();
    for member in members.iter().take(4) {
        assert!(plan.units(*member).len() <= plan.layout.units());
        assert!(shape.stages_of(*member).is_some());
    }
    assert!(shape.summary().len() < 64 + 16 * shape.pipelines.len());
    if let Err(error) = check_plan(plan, batch) {
        return error.to_string();
    }
    for pipeline in &shape.pipelines {
        let micro_batches = pipeline.micro_batches(shape.micro_batch_size);
        if micro_batches > MICRO_BATCHES_MAX {
            return "many micro-batches".into();
        }
        let micro_batches = u32::try_from(micro_batches).unwrap_or(u32::MAX);
        let specs: Vec<_> = pipeline.stages.iter().map(|s| shape.schedule_of(s)).collect();
        let kept: Vec<u32> = (0..specs.len())
            .map(|stage| schedule::stash_max(shape.schedule.kind, specs.len(), stage, micro_batches))
            .collect();
        let lists = schedule::lists(&specs, micro_batches);
        let verdict = schedule::check::check(&specs, &lists, micro_batches, &kept);
        assert_eq!(verdict, Ok(()), "the schedule of a sound plan is not sound");
    }
    "sound".into()
}
