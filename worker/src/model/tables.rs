//! Tensors that attention needs besides parameters: angles of rotary positions, and the mask of a sliding window. They are made once for a
//! model; samples with several documents have their own.

use super::cache::Place;
use crate::backend::Backend;
use std::cell::OnceCell;
use tch::{Kind, TchError, Tensor};
use varuna_api::Packing;
use varuna_model::{Positions, Transformer};
use varuna_torch::{Angles, TorchError};

/// They are made at their first use: that may fail, as the device's memory may be full.
#[derive(Default)]
pub struct Tables(OnceCell<Made>);

pub(super) struct Made {
    /// Angles of rotary positions.
    pub(super) angles: Option<Angles>,
    /// (t, t), or (b, 1, t, t): added to the scores; minus infinity for tokens that are not seen.
    pub(super) mask: Option<Tensor>,
    /// Of learned positions, the rows of the table, (b, t); none = a row for each token, in their order.
    pub(super) positions: Option<Tensor>,
}

impl Tables {
    /// Makes those of the model, on the backend's device.
    ///
    /// # Errors
    /// libtorch refuses (out of memory).
    pub fn make(&self, model: &Transformer, backend: Backend) -> Result<(), TorchError> {
        self.of(model, backend).map(drop)
    }

    /// The tables of the model, on the backend's device.
    pub(super) fn of(&self, model: &Transformer, backend: Backend) -> Result<&Made, TorchError> {
        if let Some(made) = self.0.get() {
            return Ok(made);
        }
        let made = Made::new(model, backend)?;
        Ok(self.0.get_or_init(|| made))
    }

    /// The tables for samples whose tokens have these positions (b, t) within their documents, on the device: 0 where a document begins. `self` are
    /// the model's.
    ///
    /// # Errors
    /// A position is beyond the model's sequence length, or libtorch refuses (out of memory).
    pub fn of_documents(
        &self,
        model: &Transformer,
        backend: Backend,
        packing: Packing,
        positions_bt: &Tensor,
    ) -> Result<Tables, TorchError> {
        let plain = self.of(model, backend)?;
        let anew = packing.reset_positions.then_some(positions_bt);
        let angles = match (&plain.angles, anew) {
            (Some(all), Some(positions)) => Some(all.at(positions)?),
            (angles, _) => angles.as_ref().map(Angles::shallow_clone),
        };
        let mask = match packing.block_mask {
            true => Some(document_mask(model, positions_bt, backend)?),
            false => plain.mask.as_ref().map(Tensor::shallow_clone),
        };
        Ok(Tables(OnceCell::from(Made {
            angles,
            mask,
            positions: anew.map(Tensor::shallow_clone),
        })))
    }
}

impl Made {
    fn new(model: &Transformer, backend: Backend) -> Result<Made, TorchError> {
        let angles = match model.features.positions {
            Positions::Learned => None,
            Positions::Rotary(rotary) => {
                let frequencies = rotary.frequencies(model.head_size() as usize);
                let angles = Angles::new(&frequencies, model.sequence_length, backend.device)?;
                Some(angles)
            }
        };
        let window = model.window();
        let all = Place {
            first: 0,
            count: model.sequence_length.into(),
        };
        let mask = window.map(|window| mask(all, Some(window), backend));
        Ok(Made {
            angles,
            mask: mask.transpose()?,
            positions: None,
        })
    }
}

/// (t, n) for t tokens of which the last is the n-th: each sees itself and those before it, `window` all together.
pub(super) fn mask(rows: Place, window: Option<u32>, backend: Backend) -> Result<Tensor, TorchError> {
    let Place { first, count } = rows;
    let on = (Kind::Bool, backend.device.tensors());
    let made =
        Tensor::f_ones([count, first + count], on).and_then(|all| scores_of(all, first, window, backend));
    made.map_err(|e| TorchError(e.to_string()))
}

/// (b, 1, t, t): each token sees those of its document that the model lets it see.
fn document_mask(model: &Transformer, positions_bt: &Tensor, backend: Backend) -> Result<Tensor, TorchError> {
    let made = positions_bt.f_eq(0).and_then(|begins| {
        let document_bt = begins.f_cumsum(1, Kind::Int)?;
        let same = document_bt
            .f_unsqueeze(2)?
            .f_eq_tensor(&document_bt.f_unsqueeze(1)?)?;
        let scores = match model.features.bidirectional {
            true => unseen_scores(same.f_logical_not()?, backend),
            false => scores_of(same, 0, model.window(), backend),
        };
        scores?.f_unsqueeze(1)
    });
    made.map_err(|e| TorchError(e.to_string()))
}

/// What is added to scores (.., t, n): minus infinity for tokens that are not seen. Of those that `seen` says each token sees itself, which is
/// `first` further on, and those before it, `window` all together.
fn scores_of(
    mut seen: Tensor,
    first: i64,
    window: Option<u32>,
    backend: Backend,
) -> Result<Tensor, TchError> {
    // In place: there are as many of these as scores.
    let mut seen = seen.f_tril_(first)?;
    if let Some(window) = window {
        seen = seen.f_triu_(first + 1 - i64::from(window))?;
    }
    unseen_scores(seen.f_logical_not_()?, backend)
}

/// What is added to scores: minus infinity where a token is not seen.
fn unseen_scores(unseen: Tensor, backend: Backend) -> Result<Tensor, TchError> {
    let on = (backend.numerics.compute(), backend.device.tensors());
    let mut scores = Tensor::f_zeros(unseen.size(), on)?;
    scores.f_masked_fill_(&unseen, f64::NEG_INFINITY)
}
