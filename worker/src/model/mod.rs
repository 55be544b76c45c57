//! The forward of each segment. `varuna-model` describes what is computed here, file by file.
//!
//! Tensor names carry shapes: b = samples of a micro-batch, t = sequence, d = width, h = heads, e = width of a head, v = vocabulary.
//! This module must never know of plans, other workers or optimizers.

mod attention;
pub mod dropout;
mod embedding;
mod head;
mod linear;
mod mlp;
mod norm;
mod tables;

use crate::state::UnitBuffers;
pub use attention::attention_shape;
use dropout::Dropout;
pub use head::{add_loss, add_loss_with_gradients};
use std::collections::BTreeMap;
pub use tables::Tables;
use tch::Tensor;
use varuna_model::embedding::TOKENS;
use varuna_model::{Model, SegmentKind, SegmentRange, Unit};
use varuna_torch::TorchError;

/// The forward of one segment. `x_btd` is the segment's input, or the tokens (b, t) for the first.
/// Returns the activation (b, t, d): after the last segment that under the final norm, of which [`add_loss`] makes the loss.
///
/// # Errors
/// A token is outside the vocabulary, or libtorch refuses.
pub fn forward(
    model: &Model,
    segment: u32,
    units: &BTreeMap<Unit, UnitBuffers>,
    x_btd: &Tensor,
    dropout: &Dropout<'_>,
    tables: &Tables,
) -> Result<Tensor, TorchError> {
    let own = &units[&Unit(segment)];
    let block = model.block(segment);
    match model.kind(segment) {
        SegmentKind::Embedding => {
            let table = table_unit(model, units, segment).parameter(TOKENS)?;
            embedding::forward(model, own, table, x_btd, dropout)
        }
        SegmentKind::Attention => attention::forward(model, own, x_btd, dropout, tables, block),
        SegmentKind::Mlp => mlp::forward(model, own, x_btd, dropout, block),
        SegmentKind::Block => {
            let x_btd = attention::forward(model, own, x_btd, dropout, tables, block)?;
            mlp::forward(model, own, &x_btd, dropout, block)
        }
        SegmentKind::Head => head::forward(model, own, x_btd),
    }
}

/// Whose table (v, d) a segment uses: that of the tied weight, or its own.
fn table_unit<'a>(model: &Model, units: &'a BTreeMap<Unit, UnitBuffers>, segment: u32) -> &'a UnitBuffers {
    &units[&model.layout().tied_unit().unwrap_or(Unit(segment))]
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
