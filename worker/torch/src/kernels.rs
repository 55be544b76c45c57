//! Which code computes the optimizer, dropout, norms, GELU, losses and sums: kernels of our own (`worker/cuda/kernels`), or libtorch's operators.
//!
//! It is a value, chosen once when a device is opened. The optimizer of our own has the same bits on the processor and on every GPU, but for Muon (`kernels/muon.rs`); libtorch's
//! differ between devices and between processors with and without wide vectors.

mod dropout;
mod linear;
mod momentum;
mod muon;
mod optimizer;

pub use momentum::MomentumStep;
pub use muon::MuonStep;
pub use optimizer::{AdamStep, Parameters};

use crate::streams::{Gpu, Streams};
use crate::{Device, Handle, TorchError, checked, handle};
use std::ffi::{c_char, c_int, c_void};
use std::time::{Duration, Instant};
use tch::Tensor;
use varuna_cuda::{CompileError, Compiler, CudaError, Kernel, LoadError, Module, run_on_host};

unsafe extern "C" {
    fn vt_norm(
        launcher: &Launcher,
        x: Handle,
        weight: Handle,
        bias: Handle,
        epsilon: f64,
        out: *mut Handle,
    ) -> c_int;
}

/// How long a kernel may take where the host waits for it.
const WAIT: Duration = Duration::from_secs(20);

/// Which kernels a worker is asked to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KernelChoice {
    /// Our own, where they can be compiled.
    #[default]
    Auto,
    /// libtorch's operators for all, as a comparison.
    Libtorch,
}

/// Why a GPU has no kernels of our own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The driver or the compiler cannot be loaded.
    #[error(transparent)]
    Absent(#[from] LoadError),
    /// The compiler is not here, or refuses.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The driver refuses.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Who runs a kernel.
enum Runner {
    /// The host, at once.
    Host,
    /// A GPU.
    Gpu { module: Module, gpu: &'static Gpu },
}

/// `kernels::Launcher` in `launcher.h`.
#[repr(C)]
pub(crate) struct Launcher {
    launch:
        unsafe extern "C" fn(&Runner, c_int, u64, *const c_void, why: *mut c_char, why_bytes: usize) -> c_int,
    runner: &'static Runner,
}

static HOST: Runner = Runner::Host;
static ON_HOST: Launcher = Launcher::of(&HOST);

impl Launcher {
    const fn of(runner: &'static Runner) -> Launcher {
        Launcher { launch, runner }
    }
}

/// Called by the shim, on any thread.
///
/// # Safety
/// As [`Runner::run`]; `why` has place for `why_bytes` bytes.
unsafe extern "C" fn launch(
    runner: &Runner,
    kernel: c_int,
    blocks: u64,
    arguments: *const c_void,
    why: *mut c_char,
    why_bytes: usize,
) -> c_int {
    let known = usize::try_from(kernel).ok().and_then(|k| Kernel::ALL.get(k));
    let ran = match known {
        // SAFETY: by the caller.
        Some(kernel) => unsafe { runner.run(*kernel, blocks, arguments) },
        None => Err(TorchError(format!("there is no kernel {kernel}"))),
    };
    let Err(TorchError(text)) = ran else {
        return 0;
    };
    let text = &text.as_bytes()[..text.len().min(why_bytes.saturating_sub(1))];
    // SAFETY: by the caller; the text and a zero fit.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), why.cast(), text.len());
        why.add(text.len()).write(0);
    }
    -1
}

impl Runner {
    /// # Safety
    /// `arguments` are the kernel's, over memory that this runner computes in and that stays until libtorch's stream has passed the kernel.
    unsafe fn run(&self, kernel: Kernel, blocks: u64, arguments: *const c_void) -> Result<(), TorchError> {
        match self {
            Runner::Host => {
                let threads = usize::try_from(tch::get_num_threads()).unwrap_or(1);
                // SAFETY: by the caller.
                unsafe { run_on_host(kernel, blocks, arguments, threads) };
                Ok(())
            }
            Runner::Gpu { module, gpu } => {
                let blocks = u32::try_from(blocks)
                    .map_err(|_| TorchError(format!("a kernel of {blocks} blocks; at most {}", u32::MAX)))?;
                let launched = || {
                    // SAFETY: by the caller.
                    unsafe { module.launch(kernel, blocks, arguments, &gpu.compute) }?;
                    if gpu.host_computes {
                        gpu.compute.record()?.wait("a kernel", Instant::now() + WAIT)?;
                    }
                    Ok(())
                };
                launched().map_err(|e: CudaError| TorchError(e.to_string()))
            }
        }
    }
}

/// What computes these parts of a step; none: libtorch's own.
#[derive(Clone, Copy)]
pub struct Kernels {
    optimizer: Option<&'static Runner>,
    dropout: Option<&'static Launcher>,
    norm: Option<&'static Launcher>,
    gelu: Option<&'static Launcher>,
    loss: Option<&'static Launcher>,
    bias: Option<&'static Launcher>,
    squares: Option<&'static Launcher>,
}

/// What kernels of our own compute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelPart {
    /// AdamW in one pass.
    Optimizer,
    /// Dropout with its mask.
    Dropout,
    /// Layer norm with the connection around what comes after it.
    Norm,
    /// Bias and GELU.
    Gelu,
    /// Cross-entropy with its gradient.
    Loss,
    /// The gradient of a linear layer's bias.
    Bias,
    /// Sums of squares of gradients.
    Squares,
}

impl Kernels {
    /// libtorch's operators.
    pub const LIBTORCH: Kernels = Kernels {
        optimizer: None,
        dropout: None,
        norm: None,
        gelu: None,
        loss: None,
        bias: None,
        squares: None,
    };
    /// The processor's kernels: the optimizer is ours, so that it has the bits of a GPU's, and dropout, which libtorch has not; libtorch's other
    /// layers are faster there.
    pub const PROCESSOR: Kernels = Kernels {
        optimizer: Some(&HOST),
        dropout: Some(&ON_HOST),
        norm: None,
        gelu: None,
        loss: None,
        bias: None,
        squares: None,
    };
    /// All kernels as the host runs them: what they compute, without a GPU. For tests.
    pub const ALL_ON_HOST: Kernels = Kernels {
        optimizer: Some(&HOST),
        dropout: Some(&ON_HOST),
        norm: Some(&ON_HOST),
        gelu: Some(&ON_HOST),
        loss: Some(&ON_HOST),
        bias: Some(&ON_HOST),
        squares: Some(&ON_HOST),
    };

    /// The same, but for one part, which libtorch's operators compute.
    #[must_use]
    pub fn without(mut self, part: KernelPart) -> Kernels {
        match part {
            KernelPart::Optimizer => self.optimizer = None,
            KernelPart::Dropout => self.dropout = None,
            KernelPart::Norm => self.norm = None,
            KernelPart::Gelu => self.gelu = None,
            KernelPart::Loss => self.loss = None,
            KernelPart::Bias => self.bias = None,
            KernelPart::Squares => self.squares = None,
        }
        self
    }

    /// Whether the optimizer is our own, whose bits are those of every device (Muon's: of every processor).
    #[must_use]
    pub fn has_own_optimizer(self) -> bool {
        self.optimizer.is_some()
    }

    /// For an open device with these streams; also why a GPU has none of our own.
    #[must_use]
    pub fn open(device: Device, streams: Streams, choice: KernelChoice) -> (Kernels, Option<KernelError>) {
        match (choice, device) {
            (KernelChoice::Libtorch, _) => (Kernels::LIBTORCH, None),
            (KernelChoice::Auto, Device::Cpu | Device::CpuSeparateMemory) => (Kernels::PROCESSOR, None),
            (KernelChoice::Auto, Device::Cuda(_)) => {
                let compiler = Compiler::load().map_err(KernelError::from);
                match compiler.and_then(|compiler| Kernels::compile(streams, &compiler)) {
                    Ok(kernels) => (kernels, None),
                    Err(why) => (Kernels::LIBTORCH, Some(why)),
                }
            }
        }
    }

    /// Compiled for the GPU of these streams, and launched where libtorch computes. They stay until the process ends. On the processor, which
    /// has no streams, they are [`Kernels::PROCESSOR`].
    ///
    /// # Errors
    /// The compiler or the driver refuses.
    pub fn compile(streams: Streams, compiler: &Compiler) -> Result<Kernels, KernelError> {
        let Some(gpu) = streams.gpu() else {
            return Ok(Kernels::PROCESSOR);
        };
        let context = gpu.compute.context();
        let module = Module::load(context, &compiler.compile(context.capability()?)?)?;
        let runner: &'static Runner = Box::leak(Box::new(Runner::Gpu { module, gpu }));
        let launcher: &'static Launcher = Box::leak(Box::new(Launcher::of(runner)));
        Ok(Kernels {
            optimizer: Some(runner),
            dropout: Some(launcher),
            norm: Some(launcher),
            gelu: Some(launcher),
            loss: Some(launcher),
            bias: Some(launcher),
            squares: Some(launcher),
        })
    }

    /// Layer norm of `x` (.., width), and `x` for the connection around what comes after it. [`set_grad`](crate::set_grad) must have set
    /// the gradients of weight and bias, which the backward adds to.
    ///
    /// # Errors
    /// The shapes or formats do not fit, or a parameter has no gradient.
    pub fn layer_norm(
        self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        epsilon: f64,
    ) -> Result<(Tensor, Tensor), TorchError> {
        let Some(launcher) = self.norm else {
            let normed = x.f_layer_norm(weight.size(), Some(weight), Some(bias), epsilon, true);
            let normed = normed.map_err(|e| TorchError(e.to_string()))?;
            return Ok((normed, x.shallow_clone()));
        };
        let mut out: [Handle; 2] = [std::ptr::null_mut(); 2];
        let [x, weight, bias] = [x, weight, bias].map(handle);
        // SAFETY: live handles, borrowed for the call, and place for two; the launcher is never freed.
        checked(unsafe { vt_norm(launcher, x, weight, bias, epsilon, out.as_mut_ptr()) })?;
        // SAFETY: the shim returned new heap tensors that these Tensors now own.
        let [normed, around] = out.map(|t| unsafe { Tensor::from_ptr(t.cast()) });
        Ok((normed, around))
    }

    pub(crate) fn loss(self) -> Option<&'static Launcher> {
        self.loss
    }

    pub(crate) fn squares(self) -> Option<&'static Launcher> {
        self.squares
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [
            ("optimizer", self.optimizer.is_some()),
            ("dropout", self.dropout.is_some()),
            ("norm", self.norm.is_some()),
            ("gelu", self.gelu.is_some()),
            ("loss", self.loss.is_some()),
            ("bias", self.bias.is_some()),
            ("squares", self.squares.is_some()),
        ];
        let said = parts.map(|(name, own)| format!("{name} {}", if own { "own" } else { "libtorch's" }));
        f.write_str(&said.join(", "))
    }
}

#[cfg(test)]
mod tests;
