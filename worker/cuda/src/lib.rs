//! CUDA's streams, events and pinned memory, kernels of our own, and NCCL's communicators, as owned types that are safe but for a launch.
//!
//! This crate owns the rules of three C libraries: which handle lives how long, which memory the device may still touch, which call
//! may follow which. It must never know of plans, workers or tensors. All libraries are loaded at run time, so that one program
//! serves machines with and without GPUs; where one is absent, its error says which names were tried. NCCL may be absent where the driver is not.
//!
//! * What the device works on is handed over ([`Pending`], [`Copying`]) and given back when the device has let go of it.
//! * No call waits without a deadline. NCCL's communicators are made without blocking and polled.
//! * A fence revokes ([`revoke`]) and never aborts; what may block for ever (freeing a communicator) runs on a thread of its
//!   own ([`Reaper`]), and its caller learns when to give the process up.

mod communicator;
mod compiler;
mod context;
mod driver;
mod kernels;
mod libraries;
mod library;
mod memory;
mod module;
mod nccl;
mod operation;
mod reaper;
mod stream;
mod unique_id;

pub use communicator::{Communicator, Membership, init, quiesce, revoke};
pub use compiler::{CompileError, Compiler, Image};
pub use context::{Capability, Context};
pub use driver::{CudaError, ask_for_connections};
pub use kernels::{
    HostKernel, Kernel, MomentumArguments, Narrow, OptimizerArguments, ProductArguments, run_on_host,
};
pub use libraries::Libraries;
pub use library::LoadError;
pub use memory::{Copying, DeviceBuffer, DeviceMemory, Pinned};
pub use module::Module;
pub use nccl::NcclError;
pub use operation::{Action, Element, Operation, Pending, Refused, issue};
pub use reaper::Reaper;
pub use stream::{Event, Stream};
pub use unique_id::UniqueId;

use std::time::Duration;

/// Time between two checks of something that a library does in the background: far below a step, far above what a check costs.
const POLL: Duration = Duration::from_micros(50);
