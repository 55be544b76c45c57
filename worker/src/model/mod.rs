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
use varuna_api::model::Part;
use varuna_api::parameters::{attention, embedding, head, mlp};
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
    let table_vd = |here: usize| match tied {
        Some(unit) => &units[&unit].parameters[0],
        None => &own[here],
    };
    match model.part(segment) {
        Part::Embedding => {
            let positions_td = match tied {
                Some(_) => &own[embedding::POSITIONS_WHEN_TIED],
                None => &own[embedding::POSITIONS],
            };
            let x_btd = lookup(table_vd(embedding::TOKENS), x_btd)? + positions_td;
            Ok(dropout.apply(&x_btd, 0, 0))
        }
        Part::Attention(layer) => attention_forward(model, own, x_btd, dropout, layer + 1),
        Part::Mlp(layer) => mlp_forward(own, x_btd, dropout, layer + 1),
        Part::Head => {
            let normed = norm(x_btd, &own[head::NORM_WEIGHT], &own[head::NORM_BIAS]);
            linear(&normed, table_vd(head::TABLE), None)
        }
    }
}

/// Layer norm over the width.
fn norm(x_btd: &Tensor, weight: &Tensor, bias: &Tensor) -> Tensor {
    x_btd.layer_norm(weight.size(), Some(weight), Some(bias), EPSILON, true)
}

/// The first half of a block; `block` counts from 1 for the dropout's masks.
fn attention_forward(
    model: &Model,
    p: &[Tensor],
    x_btd: &Tensor,
    dropout: &Dropout<'_>,
    block: u32,
) -> Result<Tensor, TorchError> {
    let size = x_btd.size();
    let (b, t, d) = (size[0], size[1], size[2]);
    let heads = i64::from(model.heads);
    let normed = norm(x_btd, &p[attention::NORM_WEIGHT], &p[attention::NORM_BIAS]);
    let qkv = linear(&normed, &p[attention::QKV_WEIGHT], Some(&p[attention::QKV_BIAS]))?
        .view([b, t, 3, heads, d / heads])
        .permute([2, 0, 3, 1, 4]);
    let (q, k, v) = (qkv.select(0, 0), qkv.select(0, 1), qkv.select(0, 2));
    // Attention dropout stays 0: on a CPU anything else leaves the flash path.
    let attended = Tensor::scaled_dot_product_attention(&q, &k, &v, None::<Tensor>, 0.0, true, None, false)
        .transpose(1, 2);
    let a_btd = linear(
        &attended.reshape([b, t, d]),
        &p[attention::PROJECTION_WEIGHT],
        Some(&p[attention::PROJECTION_BIAS]),
    )?;
    Ok(x_btd + dropout.apply(&a_btd, block, 0))
}

/// The second half of a block.
fn mlp_forward(
    p: &[Tensor],
    x_btd: &Tensor,
    dropout: &Dropout<'_>,
    block: u32,
) -> Result<Tensor, TorchError> {
    let normed = norm(x_btd, &p[mlp::NORM_WEIGHT], &p[mlp::NORM_BIAS]);
    let up = linear(&normed, &p[mlp::UP_WEIGHT], Some(&p[mlp::UP_BIAS]))?.gelu("tanh");
    let m_btd = linear(&up, &p[mlp::DOWN_WEIGHT], Some(&p[mlp::DOWN_BIAS]))?;
    Ok(x_btd + dropout.apply(&m_btd, block, 1))
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
