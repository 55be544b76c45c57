//! A model whose parameters do not change, and sequences that are fed to it.

use crate::backend::Backend;
use crate::model::dropout::Dropout;
use crate::model::{Cache, Tables, add_loss, forward, forward_after, logits, targets_within_documents};
use crate::state::{UnitParameters, UnitSpec};
use std::collections::BTreeMap;
use tch::{Kind, TchError, Tensor};
use varuna_api::Packing;
use varuna_model::{Transformer, Unit};
use varuna_torch::{HeadLoss, NO_TARGET, TorchError, vec_from_tensor};

/// All of a model on one device.
pub struct TrainedModel {
    model: Transformer,
    backend: Backend,
    units: BTreeMap<Unit, UnitParameters>,
    tables: Tables,
}

/// One sequence, of which the model has seen a part.
pub struct Session<'a> {
    of: &'a TrainedModel,
    cache: Cache,
}

/// Windows of a dataset as rows (b, t + 1).
pub struct Windows {
    /// What the model sees, but for the last one; without `targets` each but the first is the target of the one before it.
    pub tokens: Tensor,
    /// Where tokens are masked: the target of each token, one place further on, or none.
    pub targets: Option<Tensor>,
    /// Of the tokens within their documents; without them each window is one document.
    pub positions: Option<Tensor>,
}

impl TrainedModel {
    /// A model without parameters yet: each unit needs [`TrainedModel::add`].
    #[must_use]
    pub fn new(model: Transformer, backend: Backend) -> TrainedModel {
        TrainedModel {
            model,
            backend,
            units: BTreeMap::new(),
            tables: Tables::default(),
        }
    }

    /// Gives a unit its parameters: all of them, in their order.
    ///
    /// # Errors
    /// The unit has more or fewer, or libtorch refuses (out of memory).
    pub fn add(&mut self, unit: Unit, values: Vec<f32>) -> Result<(), TorchError> {
        let parameters = UnitParameters::fixed(&UnitSpec::of(&self.model, unit), self.backend, values)?;
        self.units.insert(unit, parameters);
        Ok(())
    }

    /// Sizes and features of the model.
    #[must_use]
    pub fn model(&self) -> &Transformer {
        &self.model
    }

    /// A sequence of at most this many tokens, from its beginning.
    ///
    /// # Errors
    /// The model sees both sides, units are missing, or libtorch refuses (out of memory).
    pub fn session(&self, capacity: u32) -> Result<Session<'_>, TorchError> {
        self.check()?;
        if self.model.features.bidirectional {
            let why =
                "the model is bidirectional: it fills masked tokens in, and cannot go on from a beginning";
            return Err(TorchError(why.to_owned()));
        }
        let capacity = capacity.min(self.model.sequence_length);
        let cache = Cache::new(&self.model, self.backend, 1, capacity)?;
        Ok(Session { of: self, cache })
    }

    /// The logits (b, t, v) of all tokens of sequences (b, t).
    ///
    /// # Errors
    /// Units are missing, a token is outside the vocabulary, the sequences are too long, or libtorch refuses.
    pub fn logits(&self, tokens_bt: &Tensor) -> Result<Tensor, TorchError> {
        self.check()?;
        let [samples, count] = <[i64; 2]>::try_from(tokens_bt.size())
            .map_err(|size| TorchError(format!("tokens of the shape {size:?}")))?;
        let sizes = [samples, count].map(u32::try_from);
        let [Ok(samples), Ok(count)] = sizes else {
            return Err(TorchError(format!("{samples} sequences of {count} tokens")));
        };
        let capacity = count.min(self.model.sequence_length);
        let mut cache = Cache::new(&self.model, self.backend, samples, capacity)?;
        self.after(tokens_bt, &mut cache, |normed| Ok(normed.shallow_clone()))
    }

    /// Adds the losses of windows to a sum, in nats; returns how many were added.
    ///
    /// # Errors
    /// Units are missing, a token is outside the vocabulary, or libtorch refuses.
    pub fn add_loss(&self, windows: &Windows, packing: Packing, sum: &Tensor) -> Result<u64, TorchError> {
        self.check()?;
        let _guard = tch::no_grad_guard();
        let of_torch = |e: TchError| TorchError(e.to_string());
        let length = i64::from(self.model.sequence_length);
        let part = |rows: &Tensor, first| rows.f_narrow(1, first, length).map_err(of_torch);
        let positions = windows.positions.as_ref();
        let positions = positions.map(|all| self.on_device(all)).transpose()?;
        let documents = positions.as_ref().map(|all| {
            let positions_bt = part(all, 0)?;
            self.tables
                .of_documents(&self.model, self.backend, packing, &positions_bt)
        });
        let documents = documents.transpose()?;
        let tables = documents.as_ref().unwrap_or(&self.tables);
        let rows = self.on_device(&windows.tokens)?;
        let mut x = part(&rows, 0)?;
        for segment in 0..self.model.layout().segments {
            x = forward(&self.model, segment, &self.units, &x, &Dropout::OFF, tables)?;
        }
        let mut targets = match &windows.targets {
            Some(targets) => part(&self.on_device(targets)?, 1)?,
            None => part(&rows, 1)?,
        };
        if let Some(positions) = positions.filter(|_| packing.mask_loss) {
            targets = targets_within_documents(&targets, &part(&positions, 1)?)?;
        }
        let loss = HeadLoss {
            targets: &targets,
            weight: 1.0,
            sum,
        };
        add_loss(&self.model, &self.units, &x, &loss)?;
        let taken = targets.f_ne(NO_TARGET).and_then(|kept| kept.f_sum(Kind::Int64));
        let taken = taken.map_err(of_torch)?.int64_value(&[]);
        Ok(u64::try_from(taken).unwrap_or(0))
    }

    /// A sum of losses, on the device.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn loss_sum(&self) -> Result<Tensor, TorchError> {
        let on = (Kind::Double, self.backend.device.tensors());
        Tensor::f_zeros([0i64; 0], on).map_err(|e| TorchError(e.to_string()))
    }

    /// Logits of what `of` leaves of the activation (b, t, d) of new tokens.
    fn after(
        &self,
        tokens_bt: &Tensor,
        cache: &mut Cache,
        of: impl Fn(&Tensor) -> Result<Tensor, TorchError>,
    ) -> Result<Tensor, TorchError> {
        let _guard = tch::no_grad_guard();
        let tokens = self.on_device(tokens_bt)?;
        let normed = forward_after(&self.model, &self.units, &tokens, &self.tables, cache)?;
        logits(&self.model, &self.units, &of(&normed)?)
    }

    fn on_device(&self, tokens: &Tensor) -> Result<Tensor, TorchError> {
        let placed = tokens.f_to_device(self.backend.device.tensors());
        placed.map_err(|e| TorchError(e.to_string()))
    }

    fn check(&self) -> Result<(), TorchError> {
        let mut units = self.model.layout().all_units();
        match units.find(|unit| !self.units.contains_key(unit)) {
            Some(unit) => Err(TorchError(format!("unit {unit} of the model has no parameters"))),
            None => Ok(()),
        }
    }
}

impl Session<'_> {
    /// Tokens seen.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.cache.len()
    }

    /// Whether no token has been seen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cache.is_empty()
    }

    /// Goes on with these tokens, at least one; returns the logits of what comes after the last.
    ///
    /// # Errors
    /// A token is outside the vocabulary, there is no room for this many, or libtorch refuses.
    pub fn feed(&mut self, tokens: &[i64]) -> Result<Vec<f32>, TorchError> {
        let row = Tensor::from_slice(tokens).unsqueeze(0);
        let last = |normed: &Tensor| normed.f_narrow(1, -1, 1).map_err(|e| TorchError(e.to_string()));
        vec_from_tensor(&self.of.after(&row, &mut self.cache, last)?)
    }
}
