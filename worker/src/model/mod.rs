//! The forward of each segment. `varuna-model` describes what is computed here, file by file.
//!
//! Tensor names carry shapes: b = samples of a micro-batch, t = sequence, d = width, h = heads, v = vocabulary.
//! This module must never know of plans, other workers or optimizers.

mod attention;
pub mod dropout;
mod embedding;
mod linear;
mod mlp;
mod norm;

use crate::state::UnitBuffers;
use dropout::Dropout;
use norm::norm;
use std::collections::BTreeMap;
use tch::{Kind, Tensor};
use varuna_model::embedding::TOKENS;
use varuna_model::head::{NORM, TABLE};
use varuna_model::{Model, SegmentKind, SegmentRange, Unit};
use varuna_torch::TorchError;

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
    let own = &units[&Unit(segment)];
    let table_vd = |own_name| match model.layout().tied_unit() {
        Some(unit) => units[&unit].parameter(TOKENS),
        None => own.parameter(own_name),
    };
    let block = model.block(segment);
    match model.kind(segment) {
        SegmentKind::Embedding => embedding::forward(model, own, table_vd(TOKENS)?, x_btd, dropout),
        SegmentKind::Attention => attention::forward(model, own, x_btd, dropout, block),
        SegmentKind::Mlp => mlp::forward(model, own, x_btd, dropout, block),
        SegmentKind::Block => {
            let x_btd = attention::forward(model, own, x_btd, dropout, block)?;
            mlp::forward(model, own, &x_btd, dropout, block)
        }
        SegmentKind::Head => {
            let normed = norm(model.features.norm, own, NORM, x_btd)?;
            varuna_torch::linear(&normed, table_vd(TABLE)?, None)
        }
    }
}

/// Mean token cross-entropy (nats) of logits (b, t, v) against targets (b, t).
pub fn loss(logits_btv: &Tensor, targets_bt: &Tensor) -> Tensor {
    let vocabulary = logits_btv.size().last().copied().unwrap_or(1);
    let (logits, targets) = (logits_btv.view([-1, vocabulary]), targets_bt.reshape([-1]));
    // In single precision: the sum over a vocabulary has more terms than a narrow format has digits.
    let logits = logits.to_kind(Kind::Float);
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
