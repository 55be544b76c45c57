//! Memory: what a segment's forward keeps for its backward, and what both need for a while besides.

use super::compute::Bench;
use anyhow::Result;
use std::collections::BTreeMap;
use tch::{Kind, Tensor};
use varuna_model::Unit;
use varuna_plan::{Moments, Step};
use varuna_torch::{HeadLoss, MemoryMeter, TorchError, backward};

use crate::backend::Backend;
use crate::model::dropout::Dropout;
use crate::model::{Module, Tables};
use crate::state::UnitBuffers;

/// Bytes of one sample.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Bytes {
    /// Kept from the forward to the backward, the output included.
    pub(super) saved: u64,
    /// Taken at most beyond that.
    pub(super) working: u64,
}

/// The first of the segments that compute the same, one sample at a time.
pub(super) fn measure(bench: &Bench) -> Result<BTreeMap<u32, Bytes>> {
    let model = &bench.model;
    let mut found = BTreeMap::new();
    for segment in 0..model.layout().segments {
        if super::alike(model, segment).first() == Some(&segment) {
            found.insert(segment, one(model, bench.backend, segment)?);
        }
    }
    Ok(found)
}

fn one(model: &Module, backend: Backend, segment: u32) -> Result<Bytes> {
    let mut units = BTreeMap::new();
    let needed = [Some(Unit(segment)), model.layout().tied_unit()];
    for unit in needed.into_iter().flatten() {
        units.insert(
            unit,
            UnitBuffers::initial(&model.unit(unit), backend, Moments::Adam, 1)?,
        );
    }
    let length = i64::try_from(model.sample_length())?;
    let device = backend.device.tensors();
    let input = match segment {
        0 => Tensor::zeros([1, length], (Kind::Int64, device)),
        _ => {
            let shape = model.input_shape(segment, 1).into_iter().map(i64::try_from);
            let shape = shape.collect::<Result<Vec<i64>, _>>()?;
            Tensor::randn(shape, (backend.numerics.compute(), device)).set_requires_grad(true)
        }
    };
    let dropout = Dropout {
        probability: model.dropout(),
        seed: 1,
        step: Step(0),
        samples: &[0],
    };
    let tables = Tables::default();
    if let Some(transformer) = model.transformer() {
        tables.make(transformer, backend)?;
    }
    let meter = MemoryMeter::begin(backend.device)?;
    let output = model.forward(segment, &units, &input, &dropout, &tables)?;
    let saved = meter.taken().now;
    let gradient = output_gradient(model, segment, &units, &output)?;
    // A first segment without parameters has nothing to go back to.
    if output.requires_grad() {
        backward(&[&output], &[&gradient])?;
    }
    Ok(Bytes {
        saved,
        working: meter.taken().most.saturating_sub(saved),
    })
}

/// What the backward of a segment starts from: the loss's gradient after the last one, which takes memory of its own.
fn output_gradient(
    model: &Module,
    segment: u32,
    units: &BTreeMap<Unit, UnitBuffers>,
    output: &Tensor,
) -> Result<Tensor, TorchError> {
    if segment + 1 != model.layout().segments {
        return Ok(Tensor::ones_like(output));
    }
    let device = output.device();
    let row = i64::try_from(model.sample_length())
        .unwrap_or(i64::MAX)
        .saturating_add(1);
    let rows = Tensor::zeros([1, row], (Kind::Int64, device));
    let loss = HeadLoss {
        targets: &model.targets(&rows),
        weight: 1.0,
        sum: &Tensor::zeros([0i64; 0], (Kind::Double, device)),
    };
    model.add_loss_with_gradients(units, output, &loss, 1.0)
}
