//! Keys and values of the tokens that a model has seen. Later tokens need them.

use crate::backend::Backend;
use tch::Tensor;
use varuna_model::Transformer;
use varuna_torch::TorchError;

/// Some tokens of a sequence, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// Position of the first.
    pub(super) first: i64,
    /// Number of tokens.
    pub(super) count: i64,
}

/// Keys and values of all blocks.
pub struct Cache {
    layers: Vec<Layer>,
    samples: i64,
    capacity: i64,
    seen: i64,
}

/// Keys and values of one block: (b, g, capacity, e) each, of which the first are filled.
pub(super) struct Layer {
    keys: Tensor,
    values: Tensor,
}

impl Cache {
    /// Room for this many tokens of this many sequences.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(
        model: &Transformer,
        backend: Backend,
        samples: u32,
        capacity: u32,
    ) -> Result<Cache, TorchError> {
        let (samples, capacity) = (i64::from(samples), i64::from(capacity));
        let size = [
            samples,
            model.kv_heads().into(),
            capacity,
            model.head_size().into(),
        ];
        let on = (backend.numerics.compute(), backend.device.tensors());
        let empty = || Tensor::f_empty(size, on).map_err(|e| TorchError(e.to_string()));
        let layer = |_| {
            Ok(Layer {
                keys: empty()?,
                values: empty()?,
            })
        };
        Ok(Cache {
            layers: (0..model.layers).map(layer).collect::<Result<_, TorchError>>()?,
            samples,
            capacity,
            seen: 0,
        })
    }

    /// Tokens seen of each sequence.
    #[must_use]
    pub fn len(&self) -> u32 {
        u32::try_from(self.seen).unwrap_or(u32::MAX)
    }

    /// Whether no token has been seen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.seen == 0
    }

    /// Where tokens (b, t) come.
    pub(super) fn place(&self, tokens_bt: &Tensor) -> Result<Place, TorchError> {
        match tokens_bt.size().as_slice() {
            [samples, count] if *samples == self.samples && self.seen + count <= self.capacity => Ok(Place {
                first: self.seen,
                count: *count,
            }),
            other => Err(TorchError(format!(
                "tokens of the shape {other:?} after {} of {} tokens of {} sequences",
                self.seen, self.capacity, self.samples
            ))),
        }
    }

    /// The cache of a block. Blocks are counted from 1.
    pub(super) fn layer(&mut self, block: u32) -> &mut Layer {
        &mut self.layers[block as usize - 1]
    }

    /// All layers have these tokens.
    pub(super) fn seen(&mut self, new: Place) {
        self.seen = new.first + new.count;
    }
}

impl Layer {
    /// Adds keys and values (b, g, t, e); returns all so far, (b, g, n, e).
    pub(super) fn append(
        &mut self,
        k: &Tensor,
        v: &Tensor,
        new: Place,
    ) -> Result<(Tensor, Tensor), TorchError> {
        let Place { first, count } = new;
        let add = |all: &Tensor, part: &Tensor| {
            all.f_narrow(2, first, count)?.f_copy_(part)?;
            all.f_narrow(2, 0, first + count)
        };
        let both = add(&self.keys, k).and_then(|keys| Ok((keys, add(&self.values, v)?)));
        both.map_err(|e| TorchError(e.to_string()))
    }
}
