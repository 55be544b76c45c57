//! From a job to its planner: the sizes of its model, its limits, and the costs for making plans.

use crate::{Job, WorkerDevice};
use varuna_plan::cost::{Costs, Device};
use varuna_plan::device::{DeviceKind, Hardware};
use varuna_plan::profile::Profile;
use varuna_plan::{Constraints, CostPlanner, EstimatedPlanner};

/// Costs for a job's model. Costs of whole blocks are divided into those of their halves. The error is a sentence.
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

/// The costs of a job's model from a measured profile.
///
/// # Errors
/// The profile belongs to another model, or to another kind of device than the job's: a sentence about the first difference, with the
/// field.
pub fn measured_costs(profile: &Profile, job: &Job) -> Result<Costs, String> {
    check_device(&profile.device, job.workers.device)?;
    let mut costs = costs_for(job, &profile.costs())?;
    // Profiles count AdamW's moments, whatever job they were measured with. Times are those of that job's optimizer.
    costs.parameter = costs.parameter.keeping(job.training.optimizer.rule.moments());
    costs.packing_bytes = packing_bytes(job);
    costs.mask_bytes = mask_bytes(job);
    let model = job.model.spec();
    let own: Vec<u64> = model.segments.iter().map(|s| s.parameters).collect();
    profile.check_parameters(&own, model.tied_parameters)?;
    Ok(costs)
}

/// Refuses a profile of a processor for workers on GPUs, and vice versa: plans would be made with times that are wrong by orders of
/// magnitude. For a job with `auto`, only the workers' machines know what it computes on.
fn check_device(profiled: &str, device: WorkerDevice) -> Result<(), String> {
    let (wants, word) = match device {
        WorkerDevice::Auto => return Ok(()),
        WorkerDevice::Cpu => (false, "cpu"),
        WorkerDevice::Cuda => (true, "cuda"),
    };
    match is_gpu(profiled) {
        Some(is) if is != wants => Err(format!(
            "device: {profiled} — the job's workers compute on {word} (spec.workers.device): allowed is a profile of such a device, as varuna \
             profile --device {word} measures one"
        )),
        _ => Ok(()),
    }
}

/// Whether the device of a profile is a GPU; none if its name, which is for people, does not tell.
fn is_gpu(profiled: &str) -> Option<bool> {
    // The worker's name for a processor that it measured, and the table's name for one that is estimated.
    if ["cpu", "cpu-core"].contains(&profiled) {
        return Some(false);
    }
    let by_driver = Hardware::Gpu {
        name: profiled.to_owned(),
        memory_bytes: 0,
    };
    let known = by_driver.kind().is_some() || DeviceKind::named(profiled).is_ok();
    (known || profiled.starts_with("NVIDIA")).then_some(true)
}

/// Costs for a profile of a job's model, with estimates for everything that is not measured. They include AdamW's moments, so that the
/// profile suits jobs with any optimizer.
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
        mask_bytes: mask_bytes(job),
        ..costs
    }
}

/// The planner for a job without measured costs: they are estimated for the devices that its workers report, and corrected by its steps.
#[must_use]
pub fn estimated_planner(job: &Job) -> EstimatedPlanner {
    let planner = EstimatedPlanner::new(job.model.spec(), job.precision.element_bytes(), constraints(job));
    planner
        .keeping(job.training.optimizer.rule.moments())
        .packing(packing_bytes(job))
        .masking(mask_bytes(job))
}

/// The mask of a sliding window, in the format of the elements.
fn mask_bytes(job: &Job) -> u64 {
    let transformer = job.model.transformer();
    transformer.map_or(0, |model| model.mask_elements() * job.precision.element_bytes())
}

fn packing_bytes(job: &Job) -> u64 {
    let element_bytes = job.precision.element_bytes();
    // A user's own model is not told where documents begin.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_job;

    fn job(device: &str) -> Job {
        let text = format!(
            "
apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata: {{name: devices}}
spec:
  model: {{preset: gpt2-tiny}}
  data: {{path: not-read}}
  training: {{globalBatchSize: 8, steps: 5, seed: 1, optimizer: {{learningRate: 0.001}}}}
  workers: {{device: {device}}}
"
        );
        parse_job(&text).unwrap()
    }

    #[test]
    fn profile_of_another_kind_of_device_is_refused() {
        let auto = job("auto");
        let refusal = |profiled: &str, device: &str| {
            let profile = Profile::of_costs(&unmeasured_costs(&auto), "gpt2-tiny".into(), profiled.into());
            measured_costs(&profile, &job(device)).err()
        };
        for gpu in [
            "NVIDIA H100 80GB HBM3",
            "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            "V100 16 GB (p3.2xlarge, one GPU a node)",
            "h100-80g",
        ] {
            let why = refusal(gpu, "cpu").unwrap();
            assert!(
                why.contains(gpu) && why.contains("(spec.workers.device)"),
                "{why}"
            );
            assert_eq!(
                (refusal(gpu, "cuda"), refusal(gpu, "auto")),
                (None, None),
                "{gpu}"
            );
        }
        for processor in ["cpu", "cpu-core"] {
            let why = refusal(processor, "cuda").unwrap();
            assert!(why.contains("varuna profile --device cuda"), "{why}");
            assert_eq!(refusal(processor, "cpu"), None);
            assert_eq!(refusal(processor, "auto"), None);
        }
        for unknown in ["a device of mine", "cpu (separate memory)"] {
            assert_eq!(refusal(unknown, "cpu"), None);
            assert_eq!(refusal(unknown, "cuda"), None);
        }
    }
}
