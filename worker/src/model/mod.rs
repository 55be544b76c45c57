//! GPT-2 in segments: which parameters each unit of state has, and the forward of each segment.
//!
//! Tensor names carry shapes: b = samples of a micro-batch, t = sequence, d = width, h = heads, v = vocabulary.
//! This module must never know of plans, other workers or optimizers.

pub mod dropout;

use crate::state::UnitBuffers;
use dropout::Dropout;
use std::collections::BTreeMap;
use tch::Tensor;
use varuna_api::Model;
use varuna_api::parameters::{block, embedding, head};
use varuna_plan::{SegmentRange, Unit};
use varuna_torch::{TorchError, linear, lookup};

/// GPT-2's layer norm epsilon.
const EPSILON: f64 = 1e-5;

/// The forward of one segment. `x_btd` is the segment's input, or the tokens (b, t) for the first.
/// Returns the boundary activation (b, t, d), or the logits (b, t, v) after the last segment.
///
/// # Errors
/// A token is outside the vocabulary, or libtorch refuses.
pub fn forward(
    model: &Model,
    segment: u32,
    units: &BTreeMap<Unit, UnitBuffers>,
    x_btd: &Tensor,
    dropout: &Dropout<'_>,
) -> Result<Tensor, TorchError> {
    let own = &units[&Unit(segment)].parameters;
    let tied = model.layout().tied_unit();
    if segment == 0 {
        let (table_vd, positions_td) = match tied {
            Some(unit) => (&units[&unit].parameters[0], &own[embedding::POSITIONS_WHEN_TIED]),
            None => (&own[embedding::TOKENS], &own[embedding::POSITIONS]),
        };
        return Ok(dropout.apply(&(lookup(table_vd, x_btd)? + positions_td), segment, 0));
    }
    if segment <= model.layers {
        return block_forward(model, own, x_btd, dropout, segment);
    }
    let table_vd = match tied {
        Some(unit) => &units[&unit].parameters[0],
        None => &own[head::TABLE],
    };
    linear(
        &norm(x_btd, &own[head::NORM_WEIGHT], &own[head::NORM_BIAS]),
        table_vd,
        None,
    )
}

/// Layer norm over the width.
fn norm(x_btd: &Tensor, weight: &Tensor, bias: &Tensor) -> Tensor {
    x_btd.layer_norm(weight.size(), Some(weight), Some(bias), EPSILON, true)
}

fn block_forward(
    model: &Model,
    p: &[Tensor],
    x_btd: &Tensor,
    dropout: &Dropout<'_>,
    segment: u32,
) -> Result<Tensor, TorchError> {
    let size = x_btd.size();
    let (b, t, d) = (size[0], size[1], size[2]);
    let heads = i64::from(model.heads);
    let normed = norm(x_btd, &p[block::NORM1_WEIGHT], &p[block::NORM1_BIAS]);
    let qkv = linear(&normed, &p[block::QKV_WEIGHT], Some(&p[block::QKV_BIAS]))?
        .view([b, t, 3, heads, d / heads])
        .permute([2, 0, 3, 1, 4]);
    let (q, k, v) = (qkv.select(0, 0), qkv.select(0, 1), qkv.select(0, 2));
    // Attention dropout stays 0: on a CPU anything else leaves the flash path.
    let attended = Tensor::scaled_dot_product_attention(&q, &k, &v, None::<Tensor>, 0.0, true, None, false)
        .transpose(1, 2);
    let a_btd = linear(
        &attended.reshape([b, t, d]),
        &p[block::PROJECTION_WEIGHT],
        Some(&p[block::PROJECTION_BIAS]),
    )?;
    let x_btd = x_btd + dropout.apply(&a_btd, segment, 0);
    let normed = norm(&x_btd, &p[block::NORM2_WEIGHT], &p[block::NORM2_BIAS]);
    let up = linear(&normed, &p[block::UP_WEIGHT], Some(&p[block::UP_BIAS]))?.gelu("tanh");
    let m_btd = linear(&up, &p[block::DOWN_WEIGHT], Some(&p[block::DOWN_BIAS]))?;
    Ok(&x_btd + dropout.apply(&m_btd, segment, 1))
}

/// Mean token cross-entropy (nats) of logits (b, t, v) against targets (b, t).
pub fn loss(logits_btv: &Tensor, targets_bt: &Tensor) -> Tensor {
    let vocabulary = logits_btv.size().last().copied().unwrap_or(1);
    let (logits, targets) = (logits_btv.view([-1, vocabulary]), targets_bt.reshape([-1]));
    logits.cross_entropy_loss(&targets, None::<Tensor>, tch::Reduction::Mean, -100, 0.0)
}

/// Units whose gradients a stage has finished once the backward of `segment` has ended for the last micro-batch.
#[must_use]
pub fn units_finished_by(model: &Model, stage: SegmentRange, segment: u32) -> Vec<Unit> {
    let layout = model.layout();
    let mut units = vec![Unit(segment)];
    if let Some(tied) = layout.tied_unit() {
        // Backwards run from the last segment to the first: a stage with both ends finishes the tied weight at the first.
        let last_use = if stage.start == 0 { 0 } else { layout.segments - 1 };
        if segment == last_use && layout.stage_holds(stage, tied) {
            units.push(tied);
        }
    }
    units
}
