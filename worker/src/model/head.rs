//! The last segment: the final norm, and the loss over the vocabulary. The loss is no part of the forward, which so keeps no logits.

use super::norm::norm;
use super::table_unit;
use crate::state::{UnitParameters, Units};
use tch::{Kind, Tensor};
use varuna_model::embedding::TOKENS;
use varuna_model::head::{NORM, TABLE};
use varuna_model::{Model, Real};
use varuna_torch::{HeadLoss, HeadTable, NO_TARGET, TorchError};

/// The final norm of (b, t, d).
pub(super) fn forward(model: &Model, unit: &UnitParameters, x_btd: &Tensor) -> Result<Tensor, TorchError> {
    Ok(norm(&model.features, unit, NORM, x_btd)?.0)
}

/// Targets (b, t) without those that begin a document: they have the position 0 there.
///
/// # Errors
/// The shapes do not fit, or libtorch refuses (out of memory).
pub fn targets_within_documents(targets_bt: &Tensor, positions_bt: &Tensor) -> Result<Tensor, TorchError> {
    let begins = positions_bt.f_eq(0);
    let kept = begins.and_then(|begins| targets_bt.f_masked_fill(&begins, NO_TARGET));
    kept.map_err(|e| TorchError(e.to_string()))
}

/// Adds the tokens' losses (nats) of the last segment's output to the sum.
///
/// # Errors
/// A target is outside the vocabulary, or libtorch refuses.
pub fn add_loss(
    model: &Model,
    units: &impl Units,
    normed_btd: &Tensor,
    loss: &HeadLoss<'_>,
) -> Result<(), TorchError> {
    loss.add(normed_btd, &head_table(model, units)?)
}

/// The same; adds `scale` times the loss's gradient to that of the table and returns `scale` times that of the output (b, t, d).
///
/// # Errors
/// As [`add_loss`].
pub fn add_loss_with_gradients(
    model: &Model,
    units: &impl Units,
    normed_btd: &Tensor,
    loss: &HeadLoss<'_>,
    scale: f64,
) -> Result<Tensor, TorchError> {
    loss.add_with_gradients(normed_btd, &head_table(model, units)?, scale)
}

/// The logits (.., v) of the last segment's output, in single precision.
///
/// # Errors
/// libtorch refuses.
pub fn logits(model: &Model, units: &impl Units, normed: &Tensor) -> Result<Tensor, TorchError> {
    let table = head_table(model, units)?;
    let vocabulary = i64::from(model.vocabulary_size);
    // What fills the table up is no part of the vocabulary.
    let own = normed
        .f_linear(&table.rows, None::<Tensor>)
        .and_then(|all| all.f_narrow(-1, 0, vocabulary)?.f_to_kind(Kind::Float));
    let bent = own.and_then(|logits| match table.cap {
        Some(cap) => (logits / cap).f_tanh().map(|bent| bent * cap),
        None => Ok(logits),
    });
    bent.map_err(|e| TorchError(e.to_string()))
}

fn head_table(model: &Model, units: &impl Units) -> Result<HeadTable, TorchError> {
    let name = if model.tied_head { TOKENS } else { TABLE };
    let table = table_unit(model, units, model.layout().segments - 1).head_table(name)?;
    Ok(HeadTable {
        cap: model.features.logit_softcap.map(Real::get),
        ..table
    })
}
