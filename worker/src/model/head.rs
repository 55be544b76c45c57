//! The last segment: the final norm (in a masked language model after one more layer), and the loss over the vocabulary. The loss is not
//! part of the forward, so the forward keeps no logits.

use super::linear::{linear, linear_gelu};
use super::norm::norm;
use super::table_unit;
use crate::state::{UnitParameters, Units};
use tch::{Kind, Tensor};
use varuna_model::embedding::TOKENS;
use varuna_model::head::{BIAS, DENSE, NORM, TABLE};
use varuna_model::{Mlp, Real, Transformer, Unit};
use varuna_torch::{HeadBias, HeadLoss, HeadTable, NO_TARGET, TorchError};

/// The final norm of (b, t, d), or of what the head's layer makes of it.
pub(super) fn forward(
    model: &Transformer,
    unit: &UnitParameters,
    x_btd: &Tensor,
) -> Result<Tensor, TorchError> {
    if !model.features.masked_head {
        return Ok(norm(&model.features, unit, NORM, x_btd)?.0);
    }
    let dense_btd = match model.features.mlp {
        Mlp::Gelu => linear_gelu(unit, DENSE, x_btd)?,
        Mlp::GeluErf | Mlp::SwiGlu | Mlp::Relu2 => linear(unit, DENSE, x_btd)?.gelu("none"),
    };
    Ok(norm(&model.features, unit, NORM, &dense_btd)?.0)
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
    model: &Transformer,
    units: &impl Units,
    normed_btd: &Tensor,
    loss: &HeadLoss<'_>,
) -> Result<(), TorchError> {
    loss.add(normed_btd, &head_table(model, units)?)
}

/// The same; adds `scale` times the loss's gradient to those of the table and the bias and returns `scale` times that of the output (b, t, d).
///
/// # Errors
/// As [`add_loss`].
pub fn add_loss_with_gradients(
    model: &Transformer,
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
pub fn logits(model: &Transformer, units: &impl Units, normed: &Tensor) -> Result<Tensor, TorchError> {
    let table = head_table(model, units)?;
    let vocabulary = i64::from(model.vocabulary_size);
    // What fills the table up is no part of the vocabulary.
    let own = normed
        .f_linear(&table.rows, None::<Tensor>)
        .and_then(|all| all.f_narrow(-1, 0, vocabulary))
        .and_then(|own| match &table.bias {
            Some(bias) => own.f_add(&bias.rows),
            None => Ok(own),
        })
        .and_then(|own| own.f_to_kind(Kind::Float));
    let bent = own.and_then(|logits| match table.cap {
        Some(cap) => (logits / cap).f_tanh().map(|bent| bent * cap),
        None => Ok(logits),
    });
    bent.map_err(|e| TorchError(e.to_string()))
}

fn head_table(model: &Transformer, units: &impl Units) -> Result<HeadTable, TorchError> {
    let name = if model.tied_head { TOKENS } else { TABLE };
    let head = model.layout().segments - 1;
    let table = table_unit(model, units, head).head_table(name)?;
    let bias = units.parameters_of(Unit(head)).optional_parameter(BIAS);
    Ok(HeadTable {
        bias: bias.map(|bias| HeadBias {
            rows: bias.detach(),
            gradient: bias.grad(),
        }),
        cap: model.features.logit_softcap.map(Real::get),
        ..table
    })
}
