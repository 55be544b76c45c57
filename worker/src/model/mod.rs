//! The forward of each segment. `varuna-model` describes what is computed here, file by file.
//!
//! Tensor names carry shapes: b = samples of a micro-batch, t = sequence, d = width, h = heads, e = width of a head, v = vocabulary.
//! This module must never know of plans, other workers or optimizers.

mod attention;
mod cache;
pub mod dropout;
mod embedding;
mod head;
mod linear;
mod mlp;
mod norm;
mod scores;
mod tables;

use crate::state::{UnitParameters, Units};
pub use attention::attention_shape;
pub use cache::Cache;
use dropout::Dropout;
pub use head::{add_loss, add_loss_with_gradients, logits, targets_within_documents};
pub use scores::score_memory;
pub use tables::Tables;
use tch::Tensor;
use varuna_model::embedding::TOKENS;
use varuna_model::{Model, SegmentKind, SegmentRange, Unit};
use varuna_torch::TorchError;

/// The forward of all segments for tokens (b, t) that come after those that the cache has seen; the cache has seen them then. Returns the
/// activation (b, t, d) under the final norm, of which [`logits`] makes the logits.
///
/// # Errors
/// A token is outside the vocabulary, there are more tokens than the cache has place for, or libtorch refuses.
pub fn forward_after(
    model: &Model,
    units: &impl Units,
    tokens_bt: &Tensor,
    tables: &Tables,
    cache: &mut Cache,
) -> Result<Tensor, TorchError> {
    let new = cache.place(tokens_bt)?;
    let mut x = tokens_bt.shallow_clone();
    for segment in 0..model.layout().segments {
        let own = units.parameters_of(Unit(segment));
        let block = model.block(segment);
        x = match model.kind(segment) {
            SegmentKind::Embedding => {
                let table = table_unit(model, units, segment).parameter(TOKENS)?;
                embedding::forward_after(model, own, table, &x, new)?
            }
            SegmentKind::Attention => {
                attention::forward_after(model, own, &x, tables, cache.layer(block), new)?
            }
            SegmentKind::Mlp => mlp::forward(model, own, &x, &Dropout::OFF, block)?,
            SegmentKind::Block => {
                let x = attention::forward_after(model, own, &x, tables, cache.layer(block), new)?;
                mlp::forward(model, own, &x, &Dropout::OFF, block)?
            }
            SegmentKind::Head => head::forward(model, own, &x)?,
        };
    }
    cache.seen(new);
    Ok(x)
}

/// The forward of one segment. `x_btd` is the segment's input, or the tokens (b, t) for the first.
/// Returns the activation (b, t, d): after the last segment that under the final norm, of which [`add_loss`] makes the loss.
///
/// # Errors
/// A token is outside the vocabulary, or libtorch refuses.
pub fn forward(
    model: &Model,
    segment: u32,
    units: &impl Units,
    x_btd: &Tensor,
    dropout: &Dropout<'_>,
    tables: &Tables,
) -> Result<Tensor, TorchError> {
    let own = units.parameters_of(Unit(segment));
    let block = model.block(segment);
    match model.kind(segment) {
        SegmentKind::Embedding => {
            let table = table_unit(model, units, segment).parameter(TOKENS)?;
            embedding::forward(model, own, table, x_btd, dropout, tables)
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
fn table_unit<'a>(model: &Model, units: &'a impl Units, segment: u32) -> &'a UnitParameters {
    units.parameters_of(model.layout().tied_unit().unwrap_or(Unit(segment)))
}

/// The tied weight, where a stage holds it. Its gradient is finished with the stage's last backward: backwards run from the last segment to the
/// first, and a stage with both ends uses it at both.
#[must_use]
pub fn tied_weight_of(model: &Model, stage: SegmentRange) -> Option<Unit> {
    let layout = model.layout();
    layout.tied_unit().filter(|tied| layout.stage_holds(stage, *tied))
}
