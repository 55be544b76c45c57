//! `spec.pipeline`: which schedules and depths the planner may choose from.

use super::check::Check;
use crate::choices::{Order, RECOMPUTE, SCHEDULES};
use crate::job::{Pipelines, Precision};
use crate::limits;
use crate::manifest::PipelineSpec;
use varuna_model::Model;
use varuna_plan::{ScheduleKind, ScheduleSpec};

/// Warm-up factors if the job sets none. Twice the minimum warm-up tolerates uneven stages and jitter, if there is memory for the additional
/// activations.
const WARMUP_FACTORS: [f64; 2] = [2.0, 1.0];
/// Stages of each worker that the planner tries where the job allows interleaving.
const CHUNKS: [u32; 3] = [2, 3, 4];

pub(super) fn pipelines(check: &mut Check, written: PipelineSpec, model: &Model) -> Pipelines {
    let at = |field: &str| format!("spec.pipeline.{field}");
    let kinds = kinds(check, written.schedule, written.warmup_factor);
    let recompute = check.choice(&at("recompute"), written.recompute, &RECOMPUTE);
    let with_recompute = |kind| {
        let each = recompute.iter();
        each.map(move |&recompute| ScheduleSpec { kind, recompute })
    };
    let schedules = kinds.into_iter().flat_map(with_recompute).collect();
    let segments = model.layout().segments;
    let mut depth = |field: &str, value: u32| {
        if value == 0 || value > segments {
            let allowed = format!("1 to {segments}: a stage holds at least one of the model's segments");
            check.0.push(&at(field), value, allowed);
        }
        value
    };
    let min_depth = depth("minDepth", written.min_depth.unwrap_or(1));
    let max_depth = depth("maxDepth", written.max_depth.unwrap_or(segments));
    if min_depth > max_depth {
        let allowed = format!("at most maxDepth ({max_depth})");
        check.0.push(&at("minDepth"), min_depth, allowed);
    }
    Pipelines {
        schedules,
        micro_batch_size: None,
        min_depth,
        max_depth,
    }
}

/// The orders of work that the job allows, the preferred one first.
fn kinds(check: &mut Check, schedule: Option<String>, warmup_factor: Option<f64>) -> Vec<ScheduleKind> {
    let at = "spec.pipeline.warmupFactor";
    let factors = match warmup_factor {
        Some(factor) => vec![check.within(at, factor, limits::WARMUP_FACTOR)],
        None => WARMUP_FACTORS.to_vec(),
    };
    let order = check.choice("spec.pipeline.schedule", schedule, &SCHEDULES);
    if let (Order::Gpipe, Some(factor)) = (order, warmup_factor) {
        let allowed = "nothing with schedule gpipe, which has no warm-up";
        check.0.push(at, factor, allowed);
    }
    let plain = factors
        .into_iter()
        .map(|warmup_factor| ScheduleKind::OneForwardOneBackward { warmup_factor });
    let interleaved = CHUNKS.map(|chunks| ScheduleKind::Interleaved { chunks });
    match order {
        Order::Plain => plain.collect(),
        Order::Gpipe => vec![ScheduleKind::Gpipe],
        Order::Interleaved => plain.chain(interleaved).collect(),
    }
}

/// Samples in a micro-batch: a divisor of the batch.
pub(super) fn micro_batch_size(check: &mut Check, written: Option<u32>, batch: u64) -> Option<u32> {
    let size = u64::from(written?);
    if size == 0 || (batch > 0 && !batch.is_multiple_of(size)) {
        let allowed = format!("a divisor of globalBatchSize ({batch})");
        check.0.push("spec.training.microBatchSize", size, allowed);
    }
    written
}

/// Refuses micro-batches, and models, whose activations no worker could send to the next stage.
pub(super) fn boundary(check: &mut Check, pipelines: &Pipelines, model: &Model, precision: Precision) {
    // A model that is not cut sends none.
    if pipelines.max_depth <= 1 {
        return;
    }
    let sample = model
        .boundary_elements()
        .saturating_mul(precision.element_bytes());
    let (bytes, most) = (limits::BOUNDARY_BYTES, limits::BOUNDARY_BYTES / sample.max(1));
    if most == 0 {
        let found = format!("{sample} bytes of a sample between two stages");
        let allowed = format!("at most {bytes}, as a message has no more; or make spec.pipeline.maxDepth 1");
        check.0.push("spec.model", found, allowed);
        return;
    }
    if let Some(size) = pipelines.micro_batch_size.filter(|size| u64::from(*size) > most) {
        let allowed = format!(
            "at most {most}: a sample has {sample} bytes between two stages, and a message at most {bytes}"
        );
        check.0.push("spec.training.microBatchSize", size, allowed);
    }
}
