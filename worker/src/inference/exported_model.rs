//! A user-defined model whose parameters do not change.

use super::load::parameters;
use crate::backend::Backend;
use crate::model::dropout::Dropout;
use crate::model::{ExportedError, Module, Tables};
use crate::state::UnitParameters;
use anyhow::{Error, Result};
use std::collections::BTreeMap;
use tch::{Kind, TchError, Tensor};
use varuna_checkpoint::{Shard, ShardTensor};
use varuna_model::{Exported, Model, Unit};
use varuna_torch::{HeadLoss, TorchError};

/// All of a model on one device.
pub(super) struct TrainedModule {
    module: Module,
    backend: Backend,
    units: BTreeMap<Unit, UnitParameters>,
    tables: Tables,
}

impl TrainedModule {
    /// A model without parameters yet: each unit needs [`TrainedModule::add`].
    ///
    /// # Errors
    /// The model's folder cannot be used.
    pub(super) fn open(model: Exported, backend: Backend) -> Result<TrainedModule, ExportedError> {
        Ok(TrainedModule {
            module: Module::open(&Model::Exported(model), backend.device)?,
            backend,
            units: BTreeMap::new(),
            tables: Tables::default(),
        })
    }

    /// Gives a unit its parameters.
    ///
    /// # Errors
    /// The unit has others, or libtorch refuses (out of memory).
    pub(super) fn add(&mut self, unit: Unit, shard: Shard) -> Result<()> {
        let spec = self.module.unit(unit);
        let wanted = spec
            .parameters
            .iter()
            .map(|p| ShardTensor::new(p.name.to_string(), p.shape.clone()));
        let shard = shard.in_order(&wanted.collect::<Vec<_>>()).map_err(Error::msg)?;
        let parameters = UnitParameters::fixed(&spec, self.backend, parameters(shard))?;
        self.units.insert(unit, parameters);
        Ok(())
    }

    /// The sum of the losses of samples, whose rows are (b, n + 1).
    ///
    /// # Errors
    /// libtorch refuses.
    pub(super) fn loss(&self, rows: &Tensor) -> Result<f64, TorchError> {
        let _guard = tch::no_grad_guard();
        let of_torch = |e: TchError| TorchError(e.to_string());
        let device = self.backend.device.tensors();
        let rows = rows.f_to_device(device).map_err(of_torch)?;
        let length = i64::try_from(self.module.sample_length()).unwrap_or(i64::MAX);
        let mut x = rows.f_narrow(1, 0, length).map_err(of_torch)?;
        for segment in 0..self.module.layout().segments {
            x = self
                .module
                .forward(segment, &self.units, &x, &Dropout::OFF, &self.tables)?;
        }
        let sum = Tensor::f_zeros([0i64; 0], (Kind::Double, device)).map_err(of_torch)?;
        let loss = HeadLoss {
            targets: &self.module.targets(&rows),
            weight: 1.0,
            sum: &sum,
        };
        self.module.add_loss(&self.units, &x, &loss)?;
        Ok(sum.double_value(&[]))
    }
}
