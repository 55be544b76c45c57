//! From a job to its planner: the sizes of its model, its limits, and the costs that plans are made with.

use crate::Job;
use varuna_plan::cost::{Costs, Device};
use varuna_plan::profile::Profile;
use varuna_plan::{Constraints, CostPlanner, EstimatedPlanner};

/// Costs for a job's model; those of whole blocks are divided into those of their halves. The error is a sentence.
fn costs_for(job: &Job, costs: &Costs) -> Result<Costs, String> {
    let (has, wants) = (costs.layout(), job.model.layout());
    let tied = |tied| if tied { " and a tied weight" } else { "" };
    let model = job.model.spec();
    costs.with_halves(&model).ok_or_else(|| {
        format!(
            "there are {} segments{}, the job's model has {} (or {} where blocks are whole){}",
            has.segments,
            tied(has.tied),
            wants.segments,
            model.whole_block_segments(),
            tied(wants.tied),
        )
    })
}

/// The costs of a job's model that a profile has measured.
///
/// # Errors
/// The profile is of another model: the first difference, as a sentence that names the field.
pub fn measured_costs(profile: &Profile, job: &Job) -> Result<Costs, String> {
    let mut costs = costs_for(job, &profile.costs())?;
    // Profiles count AdamW's moments, whatever the job that they were measured with. Times are those of that job's optimizer.
    costs.parameter = costs.parameter.keeping(job.training.optimizer.rule.moments());
    costs.packing_bytes = packing_bytes(job);
    let model = job.model.spec();
    let own: Vec<u64> = model.segments.iter().map(|s| s.parameters).collect();
    profile.check_parameters(&own, model.tied_parameters)?;
    Ok(costs)
}

/// What a profile of a job's model says of what is not measured: with the memory of AdamW's moments, so that it suits jobs with any optimizer.
#[must_use]
pub fn unmeasured_costs(job: &Job) -> Costs {
    Costs::estimate(&job.model.spec(), cpu_core(job))
}

/// The planner for a job, with measured costs of its model ([`measured_costs`]) or, without them, estimated ones.
#[must_use]
pub fn planner_with(job: &Job, costs: Option<&Costs>) -> CostPlanner {
    let mut planner = planner(job);
    if let Some(costs) = costs {
        planner.costs = costs.clone();
    }
    planner
}

/// The planner for a job, with the costs of its model estimated for one CPU core.
#[must_use]
pub fn planner(job: &Job) -> CostPlanner {
    CostPlanner {
        costs: estimated_costs(job, cpu_core(job)),
        constraints: constraints(job),
    }
}

fn cpu_core(job: &Job) -> Device {
    Device {
        element_bytes: job.precision.element_bytes(),
        ..Device::CPU_CORE
    }
}

/// The costs of a job's model as they are estimated for a device.
#[must_use]
pub fn estimated_costs(job: &Job, device: Device) -> Costs {
    let costs = Costs::estimate(&job.model.spec(), device);
    Costs {
        parameter: costs.parameter.keeping(job.training.optimizer.rule.moments()),
        packing_bytes: packing_bytes(job),
        ..costs
    }
}

/// The planner for a job whose costs nobody has measured: they are estimated for the devices that its workers report, and corrected by
/// its steps.
#[must_use]
pub fn estimated_planner(job: &Job) -> EstimatedPlanner {
    let planner = EstimatedPlanner::new(job.model.spec(), job.precision.element_bytes(), constraints(job));
    planner
        .keeping(job.training.optimizer.rule.moments())
        .packing(packing_bytes(job))
}

fn packing_bytes(job: &Job) -> u64 {
    let element_bytes = job.precision.element_bytes();
    // A model of one's own is not told where documents begin.
    let transformer = job.model.transformer();
    transformer.map_or(0, |model| job.training.packing.kept_bytes(model, element_bytes))
}

fn constraints(job: &Job) -> Constraints {
    Constraints {
        min_workers: job.elasticity.min_workers,
        max_workers: job.elasticity.max_workers.unwrap_or(u32::MAX),
        micro_batch_size: job.pipeline.micro_batch_size,
        min_depth: job.pipeline.min_depth,
        max_depth: Some(job.pipeline.max_depth),
        schedules: job.pipeline.schedules.clone(),
        device_memory_bytes: job.workers.device_memory_bytes,
    }
}
