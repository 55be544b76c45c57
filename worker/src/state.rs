//! The training state of one unit in flat buffers: parameters, the optimizer's moments, gradient.
//!
//! Optimizer, reduction and transfer each use one contiguous range. The module's parameters are views of the first buffer, or of its copy
//! in a narrower format. Their gradients are views of the last buffer, so autograd accumulates where the reduction reads. A unit that is a
//! range of a segment's state is not used in computation directly: see `gathered`.

mod compute_copy;
mod gathered;
mod gradients;
mod masters;
mod parameters;
mod snapshot;
mod spec;
mod update;

use crate::backend::Backend;
pub use gathered::{Computing, GatheredUnit};
pub use gradients::Gradients;
pub use parameters::{UnitParameters, Units};
use snapshot::Readers;
pub use snapshot::{ReadError, UnitSnapshot, UnitState};
pub use spec::UnitSpec;
use std::ops::Range;
use std::time::Instant;
use tch::{Kind, Tensor};
use varuna_model::ParameterKind;
use varuna_plan::state::mix;
use varuna_plan::{Moments, OptimizerProgress};
use varuna_torch::{FlatBuffer, LeaseError, Share, TorchError, tensor_from_vec};

/// Elements after the gradients: the sums of training and evaluation loss are reduced along with them.
pub const TAIL: usize = 2;

/// The buffers of one unit.
pub struct UnitBuffers {
    /// Autograd's leaves; their gradients are views of `gradients`.
    parameters: UnitParameters,
    /// All master parameters, one after the other.
    weights: Tensor,
    first: Tensor,
    /// The second moments; without elements if the optimizer has none.
    second: Tensor,
    /// A range of a segment's state has none before they are summed, or sent here.
    gradients: Option<Gradients>,
    /// The memory behind weights, first and second moments: what is sent to peers and checkpoints. That of the weights may be a part of what a
    /// segment is computed with: see `masters`.
    memory: [FlatBuffer; 3],
    /// Kinds and elements of the parameters in their order.
    kinds: Vec<(ParameterKind, usize)>,
    /// See [`UnitSpec::matrices`].
    matrices: Vec<[usize; 2]>,
    progress: OptimizerProgress,
    /// Those who read the present state.
    readers: Readers,
}

/// A size as libtorch counts.
pub(crate) fn size(elements: usize) -> i64 {
    i64::try_from(elements).expect("a tensor's size fits into i64")
}

/// Values, one after the other, on the backend's device.
pub(crate) fn on_device(values: Vec<f32>, backend: Backend) -> Result<Tensor, TorchError> {
    let elements = size(values.len());
    let host = tensor_from_vec(values, Kind::Float, &[elements])?;
    let placed = host.f_to_device(backend.device.tensors());
    placed.map_err(|e| TorchError(e.to_string()))
}

impl UnitBuffers {
    /// Zeroed buffers for a unit, with the moments of its optimizer.
    ///
    /// # Errors
    /// libtorch fails (out of memory).
    pub fn new(spec: &UnitSpec, backend: Backend, moments: Moments) -> Result<UnitBuffers, TorchError> {
        let gradients = Gradients::zeros(spec.elements(), backend)?;
        UnitBuffers::with_gradients(spec, backend, moments, Some(gradients))
    }

    /// The same for a range of a segment's state ([`UnitSpec::range`]), which is not computed with as it is.
    ///
    /// # Errors
    /// libtorch fails (out of memory).
    pub fn of_range(spec: &UnitSpec, backend: Backend, moments: Moments) -> Result<UnitBuffers, TorchError> {
        UnitBuffers::with_gradients(spec, backend, moments, None)
    }

    fn with_gradients(
        spec: &UnitSpec,
        backend: Backend,
        moments: Moments,
        gradients: Option<Gradients>,
    ) -> Result<UnitBuffers, TorchError> {
        let device = backend.device;
        let list = &spec.parameters;
        let total = spec.elements();
        let seconds = match moments {
            Moments::Adam | Moments::Muon => total,
            Moments::Momentum => 0,
        };
        let zeros = |elements| FlatBuffer::zeros(elements, device, backend.streams);
        let memory = [zeros(total)?, zeros(total)?, zeros(seconds)?];
        let weights = memory[0].tensor()?;
        let parameters = match &gradients {
            Some(own) => UnitParameters::over(list, backend, &weights).with_gradients(own.tensor())?,
            None => UnitParameters::masters(list, backend, &weights),
        };
        Ok(UnitBuffers {
            parameters,
            weights,
            first: memory[1].tensor()?,
            second: memory[2].tensor()?,
            gradients,
            memory,
            kinds: list.iter().map(|p| (p.kind, p.elements())).collect(),
            matrices: spec.matrices.clone(),
            progress: OptimizerProgress::START,
            readers: Readers::default(),
        })
    }

    /// The unit's initial state by the job's seed: the same on every worker.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn initial(
        spec: &UnitSpec,
        backend: Backend,
        moments: Moments,
        seed: u64,
    ) -> Result<UnitBuffers, TorchError> {
        let mut buffers = UnitBuffers::new(spec, backend, moments)?;
        buffers.set_initial(spec, seed)?;
        Ok(buffers)
    }

    /// Gives the parameters of a unit, which are zeros, their initial values by the job's seed.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn set_initial(&mut self, spec: &UnitSpec, seed: u64) -> Result<(), TorchError> {
        spec.set_initial(&self.weights, seed)?;
        self.parameters.renew_copy(&self.weights);
        Ok(())
    }

    /// Replaces the parameters. The copy for computation is not renewed.
    ///
    /// # Errors
    /// There are more or fewer of them.
    pub fn set_parameters(&mut self, values: &Tensor) -> Result<(), TorchError> {
        let _guard = tch::no_grad_guard();
        let set = self.weights.f_copy_(values);
        set.map(drop).map_err(|e| TorchError(e.to_string()))
    }

    /// Replaces the parameters by these values, one after the other.
    ///
    /// # Errors
    /// There are more or fewer values than the unit has, or libtorch fails.
    pub fn set_values(&mut self, values: &[f32]) -> Result<(), TorchError> {
        let (given, own) = (values.len(), self.memory[0].len());
        if given != own {
            return Err(TorchError(format!("{given} initial values for a unit of {own}")));
        }
        self.memory[0]
            .set(values)
            .map_err(|e| TorchError(e.to_string()))?;
        self.parameters.renew_copy(&self.weights);
        Ok(())
    }

    /// The master parameters by name: views.
    #[must_use]
    pub fn masters(&self) -> Vec<(&str, Tensor)> {
        let mut at = 0;
        let views = self.parameters.shapes().map(|(name, shape)| {
            let elements: i64 = shape.iter().product();
            at += elements;
            let view = self
                .weights
                .narrow(0, at - elements, elements)
                .view(shape.as_slice());
            (name, view)
        });
        views.collect()
    }

    /// Whether they lie in the host's memory.
    #[must_use]
    pub fn is_on_host(&self) -> bool {
        self.parameters.backend().device.is_host()
    }

    /// The parameters as the forward reads them.
    #[must_use]
    pub fn parameters(&self) -> &UnitParameters {
        &self.parameters
    }

    /// A copy of the state.
    ///
    /// # Errors
    /// The buffers are lent out, or the device's driver reports an error.
    pub fn export(&self) -> Result<UnitState, LeaseError> {
        let copy = self.snapshot_by(FlatBuffer::share, Readers::default())?.copy();
        copy.map_err(|error| match error {
            // Nobody else knows of this reader.
            ReadError::LeftOff => LeaseError::StillRead,
            ReadError::Torch(error) => error.into(),
        })
    }

    /// Read access for another thread that copies the state: to a copy on the device where there is memory for one, which nothing waits for.
    ///
    /// # Errors
    /// The buffers are lent out.
    pub fn snapshot(&self) -> Result<UnitSnapshot, LeaseError> {
        let elements: usize = self.memory.iter().map(FlatBuffer::len).sum();
        let bytes = (elements * size_of::<f32>()) as u64;
        match self.parameters.backend().spare.has(bytes) {
            // The memory may have been taken in the meantime. Readers of a copy delay nobody.
            true => self
                .snapshot_by(FlatBuffer::share_copy, Readers::default())
                .or_else(|_| self.share()),
            false => self.share(),
        }
    }

    /// Read access to the state itself, which takes no memory: the next change waits for its readers.
    ///
    /// # Errors
    /// The buffers are lent out.
    pub fn share(&self) -> Result<UnitSnapshot, LeaseError> {
        self.snapshot_by(FlatBuffer::share, self.readers.clone())
    }

    fn snapshot_by(
        &self,
        share: impl Fn(&FlatBuffer) -> Result<Share, LeaseError>,
        readers: Readers,
    ) -> Result<UnitSnapshot, LeaseError> {
        let [weights, first, second] = &self.memory;
        Ok(UnitSnapshot {
            progress: self.progress,
            parts: [share(weights)?, share(first)?, share(second)?],
            readers,
        })
    }

    /// Asks readers of the present state to stop: copies and digests do so soon.
    pub fn ask_readers(&mut self) {
        std::mem::take(&mut self.readers).ask_to_stop();
    }

    /// Waits until no snapshot reads the state any more. A copy takes milliseconds and mostly ends during the step before.
    fn wait_for_snapshots(&self, deadline: Instant) -> Result<(), LeaseError> {
        let mut parts = self.memory.iter();
        parts.try_for_each(|part| part.wait_for_shares(deadline))
    }

    /// Replaces the state by one from a peer or a checkpoint.
    ///
    /// # Errors
    /// The sizes differ, or a snapshot reads the state.
    pub fn import(&mut self, state: &UnitState) -> Result<(), TorchError> {
        let [n, moments @ ..] = self.memory.each_ref().map(FlatBuffer::len);
        let all = n + moments.iter().sum::<usize>();
        if state.data.len() != all {
            return Err(TorchError(format!(
                "state of {} elements for a unit of {all}, {n} of them parameters",
                state.data.len()
            )));
        }
        let mut rest = state.data.as_slice();
        for of in &self.memory {
            let (part, behind) = rest.split_at(of.len());
            rest = behind;
            of.set(part).map_err(|e| TorchError(e.to_string()))?;
        }
        self.progress = state.progress;
        self.parameters.renew_copy(&self.weights);
        Ok(())
    }

    /// A hash of the parameters' bits.
    ///
    /// # Errors
    /// The buffers are lent out.
    pub fn parameters_digest(&self) -> Result<u64, LeaseError> {
        let values = self.memory[0].copy(0..self.memory[0].len())?;
        Ok(values.iter().fold(0, |hash, v| mix(hash, u64::from(v.to_bits()))))
    }

    /// A copy of the gradients, without the tail.
    ///
    /// # Errors
    /// The buffer is lent out.
    pub fn gradient(&self) -> Result<Vec<f32>, LeaseError> {
        match &self.gradients {
            Some(gradients) => gradients.copy(),
            None => Err(TorchError("a unit whose gradient was never summed".into()).into()),
        }
    }

    /// Replaces the gradients; the tail stays.
    ///
    /// # Errors
    /// There are not as many, or the buffer is lent out.
    pub fn set_gradient(&mut self, gradient: &[f32]) -> Result<(), LeaseError> {
        let own = self.memory[0].len();
        if gradient.len() != own {
            let given = gradient.len();
            let wrong = format!("a gradient of {given} elements for a unit of {own}");
            return Err(TorchError(wrong).into());
        }
        let here = self.gradients.take().filter(|g| g.is_own_of(own));
        let here = match here {
            Some(here) => here,
            // It lay within what a segment's workers sum, and that may be in use.
            None => Gradients::zeros(own, self.parameters.backend())?,
        };
        let set = here.memory().set(gradient);
        self.gradients = Some(here);
        set
    }

    /// The gradients, where there are some.
    #[must_use]
    pub fn gradients(&self) -> Option<&Gradients> {
        self.gradients.as_ref()
    }

    /// Makes these elements of the segment's summed gradients the unit's gradients.
    ///
    /// # Errors
    /// There are more or fewer than the unit has.
    pub fn sum_within(&mut self, gathered: &GatheredUnit, elements: Range<usize>) -> Result<(), TorchError> {
        self.gradients = Some(gathered.gradients().part(elements)?);
        Ok(())
    }

    /// Forgets gradients that lie within what a segment's workers sum, whose memory they keep alive.
    pub fn forget_sum(&mut self) {
        let own = self.memory[0].len();
        self.gradients = self.gradients.take().filter(|g| g.is_own_of(own));
    }

    /// The master parameters, one after the other.
    pub fn weights(&self) -> &Tensor {
        &self.weights
    }

    /// What the optimizer has counted: the same for all units of one state.
    #[must_use]
    pub fn progress(&self) -> OptimizerProgress {
        self.progress
    }

    /// Sets what the optimizer has counted; nothing else changes.
    pub fn set_progress(&mut self, progress: OptimizerProgress) {
        self.progress = progress;
    }
}

#[cfg(test)]
impl UnitBuffers {
    /// A unit of a model of one block.
    pub(crate) fn of_small_model(unit: varuna_plan::Unit) -> UnitBuffers {
        use varuna_model::{Transformer, gpt2};
        let model = Transformer {
            layers: 1,
            hidden_size: 8,
            heads: 2,
            sequence_length: 4,
            vocabulary_size: 11,
            ..gpt2::SMALL
        };
        let backend = Backend::of_processor(crate::numerics::Numerics::FP32);
        let spec = crate::model::Module::from(model).unit(unit);
        UnitBuffers::new(&spec, backend, Moments::Adam).expect("memory for a small unit")
    }
}
