//! What attention needs beside parameters: angles of rotary positions and the mask of a sliding window, made once.

use super::cache::Place;
use crate::backend::Backend;
use std::cell::OnceCell;
use tch::{Kind, Tensor};
use varuna_model::{Model, Positions};
use varuna_torch::{Angles, TorchError};

/// They are made at their first use: that may fail, as the device's memory may be full.
#[derive(Default)]
pub struct Tables(OnceCell<Made>);

pub(super) struct Made {
    /// Of rotary positions.
    pub(super) angles: Option<Angles>,
    /// (t, t): added to the scores; minus infinity for tokens that are not seen.
    pub(super) mask: Option<Tensor>,
}

impl Tables {
    /// Makes those of the model, on the backend's device.
    ///
    /// # Errors
    /// libtorch refuses (out of memory).
    pub fn make(&self, model: &Model, backend: Backend) -> Result<(), TorchError> {
        self.of(model, backend).map(drop)
    }

    /// Those of the model, on the backend's device.
    pub(super) fn of(&self, model: &Model, backend: Backend) -> Result<&Made, TorchError> {
        if let Some(made) = self.0.get() {
            return Ok(made);
        }
        let made = Made::new(model, backend)?;
        Ok(self.0.get_or_init(|| made))
    }
}

impl Made {
    fn new(model: &Model, backend: Backend) -> Result<Made, TorchError> {
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
        })
    }
}

/// (t, n) for t tokens of which the last is the n-th: each sees itself and those before it, `window` all together.
pub(super) fn mask(rows: Place, window: Option<u32>, backend: Backend) -> Result<Tensor, TorchError> {
    let Place { first, count } = rows;
    let size = [count, first + count];
    let on = (Kind::Bool, backend.device.tensors());
    let made = Tensor::f_ones(size, on).and_then(|all| {
        let before = all.f_tril(first)?;
        let seen = match window {
            Some(window) => before.f_triu(first + 1 - i64::from(window))?,
            None => before,
        };
        let scores = Tensor::f_zeros(size, (backend.numerics.compute(), on.1))?;
        scores.f_masked_fill(&seen.f_logical_not()?, f64::NEG_INFINITY)
    });
    made.map_err(|e| TorchError(e.to_string()))
}
