//! A unit's state as the shard of a checkpoint, and back.

use super::buffers::StateCopy;
use crate::model::Module;
use crate::state::UnitState;
use varuna_checkpoint::{CheckpointError, Shard, ShardTensor, unit_name};
use varuna_model::Parameter;
use varuna_plan::{Layout, LossScaling, Moments, OptimizerProgress, StateId, Unit};

/// A copy of a unit's state as a shard.
pub(super) fn to_shard(
    model: &Module,
    scaling: &LossScaling,
    (layout, moments): (Layout, Moments),
    (id, unit): (StateId, Unit),
    copy: StateCopy,
) -> Shard<StateCopy> {
    let progress = copy.progress();
    let tensors = tensors(model, layout, unit);
    Shard {
        id,
        unit: unit_name(layout, unit),
        adam_steps: progress.adam_steps,
        loss_scale: scaling.saved(progress.loss_scale),
        failed_in_a_row: progress.failed_in_a_row,
        moments,
        tensors,
        data: copy,
    }
}

/// The tensors of a unit's shard; of a range of a segment's state, the parts of parameters that lie in it.
pub(super) fn tensors(model: &Module, layout: Layout, unit: Unit) -> Vec<ShardTensor> {
    let spec = model.unit(layout.whole_of(unit));
    if layout.ranges == 1 {
        let whole = spec.parameters.into_iter();
        return whole.map(|p| ShardTensor::new(p.name, p.shape)).collect();
    }
    let range = spec.range(&layout.elements_of(unit, spec.elements()));
    let part = |part: Parameter| {
        let whole = spec.parameters.iter().find(|p| p.name == part.name);
        ShardTensor {
            whole: whole.map(|p| p.shape.clone()),
            ..ShardTensor::new(part.name, part.shape)
        }
    };
    range.parameters.into_iter().map(part).collect()
}

/// The state that a shard has.
///
/// # Errors
/// The shard is of another model.
pub(super) fn from_shard(
    model: &Module,
    scaling: &LossScaling,
    (layout, unit): (Layout, Unit),
    shard: Shard,
) -> Result<UnitState, CheckpointError> {
    let expected = tensors(model, layout, unit);
    let (id, file) = (shard.id, format!("{}.safetensors", shard.unit));
    let shard = shard.in_order(&expected).map_err(|why| match model {
        Module::Transformer(_) => CheckpointError::Damaged { id, file, why },
        // The model may have been exported again: the checkpoint is not damaged.
        Module::Exported(_) => CheckpointError::Unsuitable { id, why },
    })?;
    Ok(UnitState {
        progress: OptimizerProgress {
            adam_steps: shard.adam_steps,
            loss_scale: scaling.resumed(shard.loss_scale),
            failed_in_a_row: shard.failed_in_a_row,
        },
        data: shard.data,
    })
}
