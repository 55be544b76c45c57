//! The training state of one unit in flat buffers: parameters, the optimizer's moments, gradient.
//!
//! Optimizer, reduction and transfer each touch one contiguous range. The module's parameters are views of the first buffer, or of
//! its copy in a narrower format, their gradients views of the last, so that autograd accumulates where the reduction reads.

mod compute_copy;
mod parameters;
mod snapshot;

use crate::backend::Backend;
pub use parameters::{UnitParameters, Units};
pub use snapshot::{UnitSnapshot, UnitState};
use std::ops::Range;
use std::time::Instant;
use tch::Tensor;
use varuna_api::{Optimizer, UpdateRule};
use varuna_model::{Initial, Parameter, ParameterKind, Transformer, Unit, parameter};
use varuna_plan::state::mix;
use varuna_plan::{Moments, OptimizerProgress};
use varuna_torch::{
    AdamStep, FlatBuffer, LeaseError, MomentumStep, MuonStep, Parameters, Share, TorchError, fill_normal,
};

/// Elements after the gradients: the sums of training and evaluation loss are reduced along with them.
pub const TAIL: usize = 2;

/// What a unit consists of.
#[derive(Clone, PartialEq, Debug)]
pub struct UnitSpec {
    /// Its parameters, in the order of flat buffers.
    pub parameters: Vec<Parameter>,
    /// The matrices of a block as an optimizer sees them that treats a matrix as one: (rows, columns), in the order of flat buffers, whose first
    /// elements they are.
    pub matrices: Vec<[usize; 2]>,
}

impl UnitSpec {
    /// A unit of a transformer.
    #[must_use]
    pub fn of(model: &Transformer, unit: Unit) -> UnitSpec {
        UnitSpec {
            parameters: model.parameters(unit),
            matrices: model.block_matrices(unit),
        }
    }
}

/// The buffers of one unit.
pub struct UnitBuffers {
    /// Autograd's leaves; their gradients are views of `gradients`.
    parameters: UnitParameters,
    /// All master parameters, one after the other.
    weights: Tensor,
    first: Tensor,
    /// Without elements where the optimizer has none.
    second: Tensor,
    gradients: Tensor,
    /// The memory behind weights, first and second moments: what is sent to peers and checkpoints.
    memory: [FlatBuffer; 3],
    /// The memory behind `gradients`, for the reduction.
    pub gradient_memory: FlatBuffer,
    /// Kinds and elements of the parameters in their order.
    kinds: Vec<(ParameterKind, usize)>,
    /// See [`UnitSpec::matrices`].
    matrices: Vec<[usize; 2]>,
    progress: OptimizerProgress,
}

fn size(elements: usize) -> i64 {
    i64::try_from(elements).expect("a tensor's size fits into i64")
}

impl UnitBuffers {
    /// Zeroed buffers for a unit, with the moments of its optimizer.
    ///
    /// # Errors
    /// libtorch fails (out of memory).
    pub fn new(spec: &UnitSpec, backend: Backend, moments: Moments) -> Result<UnitBuffers, TorchError> {
        let device = backend.device;
        let list = &spec.parameters;
        let total: usize = list.iter().map(Parameter::elements).sum();
        let gradient_memory = FlatBuffer::zeros(total + TAIL, device, backend.streams)?;
        let seconds = match moments {
            Moments::Adam | Moments::Muon => total,
            Moments::Momentum => 0,
        };
        let zeros = |elements| FlatBuffer::zeros(elements, device, backend.streams);
        let memory = [zeros(total)?, zeros(total)?, zeros(seconds)?];
        let (weights, gradients) = (memory[0].tensor()?, gradient_memory.tensor()?);
        let parameters = UnitParameters::over(list, backend, &weights).with_gradients(&gradients)?;
        Ok(UnitBuffers {
            parameters,
            weights,
            first: memory[1].tensor()?,
            second: memory[2].tensor()?,
            gradients,
            memory,
            gradient_memory,
            kinds: list.iter().map(|p| (p.kind, p.elements())).collect(),
            matrices: spec.matrices.clone(),
            progress: OptimizerProgress::START,
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
        let buffers = UnitBuffers::new(spec, backend, moments)?;
        let _guard = tch::no_grad_guard();
        for (p, (_, mut master)) in spec.parameters.iter().zip(buffers.masters()) {
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

    /// The initial state of a unit whose parameters have these values, one after the other.
    ///
    /// # Errors
    /// There are more or fewer values than the unit has, or libtorch fails.
    pub fn with_values(
        spec: &UnitSpec,
        backend: Backend,
        moments: Moments,
        values: &[f32],
    ) -> Result<UnitBuffers, TorchError> {
        let buffers = UnitBuffers::new(spec, backend, moments)?;
        let own = buffers.memory[0].len();
        if values.len() != own {
            let given = values.len();
            return Err(TorchError(format!("{given} initial values for a unit of {own}")));
        }
        buffers.memory[0]
            .set(values)
            .map_err(|e| TorchError(e.to_string()))?;
        buffers.parameters.renew_copy(&buffers.weights);
        Ok(buffers)
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
        Ok(self.snapshot_by(FlatBuffer::share)?.copy()?)
    }

    /// Read access for another thread that copies the state: to a copy on the device where there is memory for one, which nothing waits for.
    ///
    /// # Errors
    /// The buffers are lent out.
    pub fn snapshot(&self) -> Result<UnitSnapshot, LeaseError> {
        let elements: usize = self.memory.iter().map(FlatBuffer::len).sum();
        let bytes = (elements * size_of::<f32>()) as u64;
        let shared = || self.snapshot_by(FlatBuffer::share);
        match self.parameters.backend().spare.has(bytes) {
            // Somebody may have taken the memory meanwhile.
            true => self.snapshot_by(FlatBuffer::share_copy).or_else(|_| shared()),
            false => shared(),
        }
    }

    fn snapshot_by(
        &self,
        share: impl Fn(&FlatBuffer) -> Result<Share, LeaseError>,
    ) -> Result<UnitSnapshot, LeaseError> {
        let [weights, first, second] = &self.memory;
        Ok(UnitSnapshot {
            progress: self.progress,
            parts: [share(weights)?, share(first)?, share(second)?],
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

    /// Scales the gradient by `factor` and takes one step of the optimizer with the learning rate `rate`, which leads to `after`; what the gradient
    /// holds then is not defined. Snapshots that are still read are waited for, until `deadline`.
    ///
    /// # Errors
    /// libtorch fails; or a snapshot is still read at `deadline`, and nothing has changed.
    pub fn apply(
        &mut self,
        optimizer: &Optimizer,
        rate: f64,
        factor: f64,
        after: OptimizerProgress,
        deadline: Instant,
    ) -> Result<(), LeaseError> {
        self.wait_for_snapshots(deadline)?;
        self.progress = after;
        let decays = |kind| optimizer.weight_decay_on.contains(&kind);
        let decay = |decays| if decays { optimizer.weight_decay } else { 0.0 };
        let mut done = 0;
        if let UpdateRule::Muon { momentum, .. } = optimizer.rule {
            let step = MuonStep {
                rate,
                momentum,
                decay: decay(decays(ParameterKind::Matrix)),
                factor,
            };
            for matrix in &self.matrices {
                let shape = matrix.map(size);
                let end = done + shape[0] * shape[1];
                self.each_piece(done..end, |of| self.parameters.kernels().muon(of, shape, step))?;
                done = end;
            }
        }
        for (range, decays) in parameter::ranges(self.kinds.iter().copied(), decays) {
            let rest = size(range.start).max(done)..size(range.end);
            if !rest.is_empty() {
                self.each_piece(rest, |of| {
                    self.step(optimizer.rule, of, [rate, decay(decays), factor])
                })?;
            }
        }
        Ok(())
    }

    /// A range of the parameters in as many pieces as their copy has there.
    fn each_piece(
        &self,
        range: Range<i64>,
        step: impl Fn(&Parameters<'_>) -> Result<(), TorchError>,
    ) -> Result<(), TorchError> {
        for (part, copy) in self.parameters.pieces(range) {
            let of = |all: &Tensor| all.narrow(0, part.start, part.end - part.start);
            let [weight, gradient, first] = [&self.weights, &self.gradients, &self.first].map(of);
            let second = (self.second.numel() > 0).then(|| of(&self.second));
            step(&Parameters {
                weight: &weight,
                gradient: &gradient,
                first: &first,
                second: second.as_ref(),
                copy: copy.as_ref(),
            })?;
        }
        Ok(())
    }

    fn step(
        &self,
        rule: UpdateRule,
        of: &Parameters<'_>,
        [rate, decay, factor]: [f64; 3],
    ) -> Result<(), TorchError> {
        let kernels = self.parameters.kernels();
        match rule {
            UpdateRule::Adamw {
                beta1,
                beta2,
                epsilon,
            }
            | UpdateRule::Muon {
                beta1,
                beta2,
                epsilon,
                ..
            } => kernels.adamw(
                of,
                AdamStep {
                    count: self.progress.adam_steps,
                    rate,
                    beta1,
                    beta2,
                    decay,
                    epsilon,
                    factor,
                },
            ),
            UpdateRule::Sgd { momentum } => kernels.sgd(
                of,
                MomentumStep {
                    rate,
                    momentum,
                    decay,
                    factor,
                },
            ),
        }
    }
}
