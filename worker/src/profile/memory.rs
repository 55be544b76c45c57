//! Memory: what a segment's forward keeps for its backward, and what both take besides.

use super::compute::Bench;
use anyhow::Result;
use std::collections::BTreeMap;
use tch::{Kind, Tensor};
use varuna_model::{Model, SegmentKind, Unit};
use varuna_plan::{Moments, Step};
use varuna_torch::{HeadLoss, MemoryMeter, TorchError, backward};

use crate::backend::Backend;
use crate::model::dropout::Dropout;
use crate::model::{Tables, add_loss_with_gradients, forward};
use crate::state::UnitBuffers;

/// Bytes of one sample.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Bytes {
    /// Kept from the forward to the backward, the output included.
    pub(super) saved: u64,
    /// Taken at most beyond that.
    pub(super) working: u64,
}

/// The first segment of each kind, one sample at a time.
pub(super) fn measure(bench: &Bench) -> Result<BTreeMap<u32, Bytes>> {
    let model = &bench.model;
    let mut found = BTreeMap::new();
    for segments in super::kinds(model).into_values() {
        let Some(segment) = segments.first().copied() else {
            continue;
        };
        found.insert(segment, one(model, bench.backend, segment)?);
    }
    Ok(found)
}

fn one(model: &Model, backend: Backend, segment: u32) -> Result<Bytes> {
    let mut units = BTreeMap::new();
    let needed = [Some(Unit(segment)), model.layout().tied_unit()];
    for unit in needed.into_iter().flatten() {
        units.insert(
            unit,
            UnitBuffers::initial(model, unit, backend, Moments::Adam, 1)?,
        );
    }
    let (t, d) = (i64::from(model.sequence_length), i64::from(model.hidden_size));
    let device = backend.device.tensors();
    let input = match segment {
        0 => Tensor::zeros([1, t], (Kind::Int64, device)),
        _ => Tensor::randn([1, t, d], (backend.numerics.compute(), device)).set_requires_grad(true),
    };
    let dropout = Dropout {
        probability: model.dropout,
        seed: 1,
        step: Step(0),
        samples: &[0],
    };
    let tables = Tables::default();
    tables.make(model, backend)?;
    let meter = MemoryMeter::begin(backend.device)?;
    let output = forward(model, segment, &units, &input, &dropout, &tables)?;
    let saved = meter.taken().now;
    let gradient = output_gradient(model, segment, &units, &output)?;
    backward(&[&output], &[&gradient])?;
    Ok(Bytes {
        saved,
        working: meter.taken().most.saturating_sub(saved),
    })
}

/// What the backward of a segment starts from: the loss's gradient after the last one, which takes memory of its own.
fn output_gradient(
    model: &Model,
    segment: u32,
    units: &BTreeMap<Unit, UnitBuffers>,
    output: &Tensor,
) -> Result<Tensor, TorchError> {
    if model.kind(segment) != SegmentKind::Head {
        return Ok(Tensor::ones_like(output));
    }
    let device = output.device();
    let loss = HeadLoss {
        targets: &Tensor::zeros([i64::from(model.sequence_length)], (Kind::Int64, device)),
        weight: 1.0,
        sum: &Tensor::zeros([0i64; 0], (Kind::Double, device)),
    };
    add_loss_with_gradients(model, units, output, &loss, 1.0)
}
