//! The forward of a transformer's segments.

use super::dropout::Dropout;
use super::{Cache, Tables, attention, embedding, head, mlp, table_unit};
use crate::state::Units;
use tch::Tensor;
use varuna_model::embedding::TOKENS;
use varuna_model::{SegmentKind, Transformer, Unit};
use varuna_torch::TorchError;

/// The forward of all segments for tokens (b, t) that come after those that the cache has seen; the cache has seen them then. Returns the
/// activation (b, t, d) under the final norm, of which [`super::logits`] makes the logits.
///
/// # Errors
/// A token is outside the vocabulary, there are more tokens than the cache has place for, or libtorch refuses.
pub fn forward_after(
    model: &Transformer,
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
/// Returns the activation (b, t, d): after the last segment that under the final norm, of which [`super::add_loss`] makes the loss.
///
/// # Errors
/// A token is outside the vocabulary, or libtorch refuses.
pub fn forward(
    model: &Transformer,
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
