//! The training state of one unit in flat buffers: parameters, two moments, gradient.
//!
//! Optimizer, reduction and transfer each touch one contiguous range. The module's parameters are views of the first buffer, or of
//! its copy in a narrower format, their gradients views of the last, so that autograd accumulates where the reduction reads.

mod compute_copy;
mod parameters;
mod snapshot;

use crate::backend::Backend;
pub use parameters::{UnitParameters, Units};
pub use snapshot::{UnitSnapshot, UnitState};
use std::time::Instant;
use tch::Tensor;
use varuna_api::Adam;
use varuna_model::{Initial, Model, Parameter, ParameterKind, Unit, parameter};
use varuna_plan::OptimizerProgress;
use varuna_plan::state::mix;
use varuna_torch::{AdamStep, FlatBuffer, LeaseError, Parameters, TorchError, fill_normal};

/// Elements after the gradients: the sums of training and evaluation loss are reduced along with them.
pub const TAIL: usize = 2;

/// The buffers of one unit.
pub struct UnitBuffers {
    /// Autograd's leaves; their gradients are views of `gradients`.
    parameters: UnitParameters,
    /// All master parameters, one after the other.
    weights: Tensor,
    first: Tensor,
    second: Tensor,
    gradients: Tensor,
    /// The memory behind weights, first and second moments: what is sent to peers and checkpoints.
    memory: [FlatBuffer; 3],
    /// The memory behind `gradients`, for the reduction.
    pub gradient_memory: FlatBuffer,
    /// Kinds and elements of the parameters in their order.
    kinds: Vec<(ParameterKind, usize)>,
    progress: OptimizerProgress,
}

fn size(elements: usize) -> i64 {
    i64::try_from(elements).expect("a tensor's size fits into i64")
}

impl UnitBuffers {
    /// Zeroed buffers for a unit.
    ///
    /// # Errors
    /// libtorch fails (out of memory).
    pub fn new(model: &Model, unit: Unit, backend: Backend) -> Result<UnitBuffers, TorchError> {
        let device = backend.device;
        let list = model.parameters(unit);
        let total: usize = list.iter().map(Parameter::elements).sum();
        let gradient_memory = FlatBuffer::zeros(total + TAIL, device, backend.streams)?;
        let zeros = || FlatBuffer::zeros(total, device, backend.streams);
        let memory = [zeros()?, zeros()?, zeros()?];
        let (weights, gradients) = (memory[0].tensor()?, gradient_memory.tensor()?);
        let parameters = UnitParameters::over(&list, backend, &weights).with_gradients(&gradients)?;
        Ok(UnitBuffers {
            parameters,
            weights,
            first: memory[1].tensor()?,
            second: memory[2].tensor()?,
            gradients,
            memory,
            gradient_memory,
            kinds: list.iter().map(|p| (p.kind, p.elements())).collect(),
            progress: OptimizerProgress::START,
        })
    }

    /// The unit's initial state by the job's seed: the same on every worker.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn initial(
        model: &Model,
        unit: Unit,
        backend: Backend,
        seed: u64,
    ) -> Result<UnitBuffers, TorchError> {
        let buffers = UnitBuffers::new(model, unit, backend)?;
        let _guard = tch::no_grad_guard();
        for (p, (_, mut master)) in model.parameters(unit).iter().zip(buffers.masters()) {
            match p.initial {
                Initial::Normal(deviation) => {
                    let [block, number] = p.stream;
                    let own = [0x1717, block, number].into_iter().fold(seed, mix);
                    fill_normal(&master, own, deviation)?;
                }
                Initial::Ones => drop(master.fill_(1.0)),
                Initial::Zeros => {}
            }
        }
        buffers.parameters.renew_copy(&buffers.weights);
        Ok(buffers)
    }

    /// The master parameters by name: views.
    #[must_use]
    pub fn masters(&self) -> Vec<(&'static str, Tensor)> {
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
        Ok(self.snapshot()?.copy()?)
    }

    /// Read access for another thread that copies the state.
    ///
    /// # Errors
    /// The buffers are lent out.
    pub fn snapshot(&self) -> Result<UnitSnapshot, LeaseError> {
        let [weights, first, second] = &self.memory;
        Ok(UnitSnapshot {
            progress: self.progress,
            parts: [weights.share()?, first.share()?, second.share()?],
        })
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
        let n = self.memory[0].len();
        if state.data.len() != 3 * n {
            return Err(TorchError(format!(
                "state of {} elements for a unit of 3 x {n}",
                state.data.len()
            )));
        }
        for (part, of) in state.data.chunks_exact(n.max(1)).zip(&self.memory) {
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
        self.gradient_memory.copy(0..self.gradient_memory.len() - TAIL)
    }

    /// Replaces the gradients; the tail stays.
    ///
    /// # Errors
    /// There are not as many, or the buffer is lent out.
    pub fn set_gradient(&mut self, gradient: &[f32]) -> Result<(), LeaseError> {
        let own = self.gradient_memory.len() - TAIL;
        if gradient.len() != own {
            let given = gradient.len();
            let wrong = format!("a gradient of {given} elements for a unit of {own}");
            return Err(TorchError(wrong).into());
        }
        self.gradient_memory.set(gradient)
    }

    /// Zeroes the gradients and the tail in place.
    pub fn zero_gradients(&mut self) {
        let _ = self.gradients.zero_();
    }

    /// What the optimizer has counted: the same for all units of one state.
    #[must_use]
    pub fn progress(&self) -> OptimizerProgress {
        self.progress
    }

    /// From now on the optimizer has counted this; nothing else changes.
    pub fn set_progress(&mut self, progress: OptimizerProgress) {
        self.progress = progress;
    }

    /// Scales the gradient by `factor` and takes one AdamW step with the learning rate `rate`, which leads to `after`; what the gradient
    /// holds then is not defined. Snapshots that are still read are waited for, until `deadline`.
    ///
    /// # Errors
    /// libtorch fails; or a snapshot is still read at `deadline`, and nothing has changed.
    pub fn apply(
        &mut self,
        adam: &Adam,
        rate: f64,
        factor: f64,
        after: OptimizerProgress,
        deadline: Instant,
    ) -> Result<(), LeaseError> {
        self.wait_for_snapshots(deadline)?;
        self.progress = after;
        let decays = |kind| adam.weight_decay_on.contains(&kind);
        for (range, decays) in parameter::ranges(self.kinds.iter().copied(), decays) {
            let step = AdamStep {
                count: self.progress.adam_steps,
                rate,
                beta1: adam.beta1,
                beta2: adam.beta2,
                decay: if decays { adam.weight_decay } else { 0.0 },
                epsilon: adam.epsilon,
                factor,
            };
            for (part, copy) in self.parameters.pieces(size(range.start)..size(range.end)) {
                let of = |all: &Tensor| all.narrow(0, part.start, part.end - part.start);
                let [weight, gradient, first, second] =
                    [&self.weights, &self.gradients, &self.first, &self.second].map(of);
                let parameters = Parameters {
                    weight: &weight,
                    gradient: &gradient,
                    first: &first,
                    second: &second,
                    copy: copy.as_ref(),
                };
                self.parameters.kernels().adamw(&parameters, step)?;
            }
        }
        Ok(())
    }
}
