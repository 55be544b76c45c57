//! What tch lacks, as a safe layer over a small C++ shim.
//!
//! All `unsafe` of the project that concerns libtorch is in this crate, each block with its reason. It knows tensors and
//! memory; it must never know of models, plans or workers.
#![expect(unsafe_code, reason = "calls into libtorch and memory shared with it")]

mod attention;
mod device;
mod flat;
mod gpu;
mod kernels;
mod layers;
mod lending;
mod memory_meter;
mod norm;
mod on_device;
mod out_of_memory;
mod pieces;
mod rotary;
mod script;
mod squares;
mod streams;

pub use attention::{Attention, AttentionChoice, AttentionShape, Seen, UnknownAttention};
pub use device::{Device, DeviceChoice, DeviceError};
pub use flat::{FlatBuffer, Lease, LeaseError, PartedBuffer, Share};
pub use gpu::{Gpu, GpuError, gpu};
pub use kernels::{
    AdamStep, KernelChoice, KernelError, KernelPart, Kernels, MomentumStep, MuonStep, Parameters,
};
pub use layers::{HeadBias, HeadLoss, HeadTable, NO_TARGET, lookup, rms_norm};
pub use memory_meter::{MemoryMeter, Taken};
pub use norm::{BlockSums, read_block_sums};
pub use on_device::OnDevice;
pub use out_of_memory::{OutOfMemory, out_of_memory};
pub use rotary::Angles;
pub use script::{Call, ScriptModule};
pub use streams::{Copies, Fetch, HostToDeviceCopy, Mark, Streams};

use bytemuck::Pod;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tch::{Kind, Tensor};

type Handle = *mut torch_sys::C_tensor;

unsafe extern "C" {
    fn vt_error() -> *const c_char;
    fn vt_keep_freed_memory();
    fn vt_return_freed_memory();
    fn vt_taken_bytes() -> u64;
    fn vt_most_taken_by_tensors(gpu: c_int, bytes: *mut u64) -> c_int;
    fn vt_release_cached() -> c_int;
    fn vt_backward(outputs: *const Handle, gradients: *const Handle, count: c_int) -> c_int;
    fn vt_set_grad(tensor: Handle, gradient: Handle) -> c_int;
    fn vt_normal(tensor: Handle, seed: u64, deviation: f64) -> c_int;
    fn vt_load_cuda() -> c_int;
    fn vt_copy_out(tensor: Handle, to: *mut c_void, bytes: usize) -> c_int;
    fn vt_from_memory(
        data: *mut c_void,
        scalar_type: c_int,
        sizes: *const i64,
        dimensions: c_int,
        release: extern "C" fn(*mut c_void),
        context: *mut c_void,
        out: *mut Handle,
    ) -> c_int;
}

/// libtorch refused; the text is the first line of its message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("libtorch: {0}")]
pub struct TorchError(pub String);

fn checked(code: c_int) -> Result<(), TorchError> {
    if code >= 0 {
        return Ok(());
    }
    // SAFETY: the shim returns a pointer to its thread-local, NUL-terminated message, valid until its next call here.
    let text = unsafe { CStr::from_ptr(vt_error()) }.to_string_lossy();
    Err(TorchError(text.lines().next().unwrap_or_default().to_owned()))
}

/// Makes the allocator keep what is freed for the next use. A training step frees and takes the same large blocks over and
/// over; by default each would go back to the system and be zeroed, page by page, at its next use. To be called before the first
/// tensor and the first thread; without effect outside glibc.
pub fn keep_freed_memory() {
    // SAFETY: sets three numbers of the C library's allocator; no pointer is involved.
    unsafe { vt_keep_freed_memory() }
}

/// Gives what is free in the heap back to the system, whole pages of it, also between blocks that are taken. For memory that was freed once and
/// that no later block fits into; without effect outside glibc.
pub fn return_freed_memory() {
    // SAFETY: the C library gives up memory that nobody has; no pointer is involved.
    unsafe { vt_return_freed_memory() }
}

/// Bytes that this process has taken from the heap and not freed, tensors included; 0 where the C library does not say.
#[must_use]
pub fn taken_bytes() -> u64 {
    // SAFETY: reads the C library's own counters; no pointer is involved.
    unsafe { vt_taken_bytes() }
}

/// The most bytes of a GPU that tensors of this process ever had; none where libtorch does not say, as before the first tensor is there.
#[must_use]
pub fn most_taken_by_tensors(gpu: usize) -> Option<u64> {
    let gpu = c_int::try_from(gpu).ok()?;
    let mut bytes = 0;
    // SAFETY: reads libtorch's own counters; the number outlives the call.
    let code = unsafe { vt_most_taken_by_tensors(gpu, &raw mut bytes) };
    (code == 0 && bytes > 0).then_some(bytes)
}

/// Gives the memory of GPUs that libtorch keeps for its next tensors back to the driver, which waits for all that runs there. Where no tensor has been on
/// one there is none.
///
/// # Errors
/// The driver reports an error.
pub fn release_cached() -> Result<(), TorchError> {
    // SAFETY: libtorch gives up memory that no tensor has; no pointer is involved.
    checked(unsafe { vt_release_cached() })
}

fn handles(tensors: &[&Tensor]) -> Vec<Handle> {
    tensors.iter().map(|t| handle(t)).collect()
}

fn handle(tensor: &Tensor) -> Handle {
    tensor.as_ptr().cast_mut().cast()
}

/// Backward of `outputs` with the given gradients (same shapes), accumulating into the leaves' gradients. Frees the graph.
///
/// # Errors
/// Lengths differ, shapes differ, or nothing requires a gradient.
pub fn backward(outputs: &[&Tensor], gradients: &[&Tensor]) -> Result<(), TorchError> {
    if outputs.len() != gradients.len() {
        return Err(TorchError(format!(
            "{} outputs but {} gradients",
            outputs.len(),
            gradients.len()
        )));
    }
    let (outputs, gradients) = (handles(outputs), handles(gradients));
    let count = c_int::try_from(outputs.len()).map_err(|_| TorchError("too many outputs".into()))?;
    // SAFETY: both arrays hold `count` live tensor handles, borrowed for the call.
    checked(unsafe { vt_backward(outputs.as_ptr(), gradients.as_ptr(), count) })
}

/// Makes `gradient` the tensor's `.grad`, so that autograd accumulates into it in place. Its elements are of the tensor's kind, or Float: the
/// sums of a tensor of 16 bits are kept in 32.
///
/// # Errors
/// Shapes or devices differ, or the kind is another one.
pub fn set_grad(tensor: &Tensor, gradient: &Tensor) -> Result<(), TorchError> {
    let of = |t: &Tensor| {
        let kind = t.f_kind().map_err(|e| TorchError(e.to_string()))?;
        Ok::<_, TorchError>((kind, t.size(), t.device()))
    };
    let (own, given) = (of(tensor)?, of(gradient)?);
    let fits = (own.1 == given.1 && own.2 == given.2) && [own.0, Kind::Float].contains(&given.0);
    if !fits {
        return Err(TorchError(format!("gradient of {given:?} for {own:?}")));
    }
    // SAFETY: two live handles; the shim copies the reference-counted tensor.
    checked(unsafe { vt_set_grad(handle(tensor), handle(gradient)) })
}

/// Fills a tensor with normal numbers of this deviation from a generator that `seed` alone determines: the processor's, so that all
/// devices have the same bits.
///
/// # Errors
/// The deviation is negative.
pub fn fill_normal(tensor: &Tensor, seed: u64, deviation: f64) -> Result<(), TorchError> {
    filled_on_host(tensor, |host| {
        // SAFETY: a live handle, borrowed for the call.
        checked(unsafe { vt_normal(handle(host), seed, deviation) })
    })
}

/// Fills a tensor where it lies, or in the host's memory and from there.
fn filled_on_host(
    tensor: &Tensor,
    fill: impl FnOnce(&Tensor) -> Result<(), TorchError>,
) -> Result<(), TorchError> {
    if tensor.device() == tch::Device::Cpu {
        return fill(tensor);
    }
    let host = Tensor::empty(tensor.size(), (tensor.kind(), tch::Device::Cpu));
    fill(&host)?;
    copy(tensor, &host)
}

/// Copies the elements of one tensor into another, on whichever devices they lie.
fn copy(into: &Tensor, from: &Tensor) -> Result<(), TorchError> {
    let _guard = tch::no_grad_guard();
    let copied = into.shallow_clone().f_copy_(from);
    copied.map(drop).map_err(|e| TorchError(e.to_string()))
}

/// A tensor that owns the values, without a copy: elements of `kind`, whose bits these are. `shape` must have as many.
///
/// # Errors
/// The sizes differ, of all elements or of one.
pub fn tensor_from_vec<T: Pod + Send>(
    values: Vec<T>,
    kind: Kind,
    shape: &[i64],
) -> Result<Tensor, TorchError> {
    extern "C" fn release<T>(context: *mut c_void) {
        // SAFETY: `context` is the box leaked below, and libtorch calls this once, when the last view is gone.
        drop(unsafe { Box::from_raw(context.cast::<Vec<T>>()) });
    }
    let elements: i64 = shape.iter().product();
    if usize::try_from(elements) != Ok(values.len()) {
        return Err(TorchError(format!(
            "{} values for the shape {shape:?}",
            values.len()
        )));
    }
    has_size_of::<T>(kind)?;
    let scalar_type = scalar_type(kind)?;
    let mut owner = Box::new(values);
    let data = owner.as_mut_ptr().cast();
    from_memory(
        data,
        scalar_type,
        shape,
        release::<T>,
        Box::into_raw(owner).cast(),
    )
}

/// The bits of a tensor's elements, in their order.
///
/// # Errors
/// The tensor's elements are of another size than `T`, or libtorch refuses.
pub fn vec_from_tensor<T: Pod>(tensor: &Tensor) -> Result<Vec<T>, TorchError> {
    let kind = tensor.f_kind().map_err(|e| TorchError(e.to_string()))?;
    has_size_of::<T>(kind)?;
    let mut values = vec![T::zeroed(); tensor.numel()];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
    // SAFETY: a live handle, borrowed for the call, and memory of this many bytes that the shim writes.
    checked(unsafe { vt_copy_out(handle(tensor), bytes.as_mut_ptr().cast(), bytes.len()) })?;
    Ok(values)
}

fn has_size_of<T>(kind: Kind) -> Result<(), TorchError> {
    let (own, of) = (size_of::<T>(), kind.elt_size_in_bytes());
    if own == of {
        return Ok(());
    }
    Err(TorchError(format!(
        "values of {own} bytes for elements of {kind:?}, which have {of}"
    )))
}

/// libtorch's number for the kinds that memory is shared in.
fn scalar_type(kind: Kind) -> Result<c_int, TorchError> {
    match kind {
        Kind::Half => Ok(5),
        Kind::Float => Ok(6),
        Kind::BFloat16 => Ok(15),
        other => Err(TorchError(format!(
            "memory of {other:?} elements is not shared; Float, BFloat16 and Half are"
        ))),
    }
}

/// What ends the life of memory that a tensor was made over; shared with the tensor, since a call that fails may have run it or not.
struct Release {
    run: extern "C" fn(*mut c_void),
    context: *mut c_void,
    ran: AtomicBool,
}

// SAFETY: both callers' contexts own memory that may be sent between threads (an Arc of floats, or a vector of elements that are Send), and
// whoever runs the release, once, is the only one that touches the context.
unsafe impl Send for Release {}
// SAFETY: as above; what is shared is the flag, which is atomic.
unsafe impl Sync for Release {}

/// Takes over a `*const Release` that came from `Arc::into_raw`.
extern "C" fn release_once(shared: *mut c_void) {
    // SAFETY: `shared` comes from Arc::into_raw in `from_memory`, and either libtorch calls this, once, or `from_memory` does where
    // libtorch has not.
    let shared = unsafe { Arc::from_raw(shared.cast::<Release>().cast_const()) };
    shared.ran.store(true, Ordering::Release);
    (shared.run)(shared.context);
}

/// A tensor over memory that lives until `release(context)` runs, which is once, also where this fails.
fn from_memory(
    data: *mut c_void,
    scalar_type: c_int,
    shape: &[i64],
    release: extern "C" fn(*mut c_void),
    context: *mut c_void,
) -> Result<Tensor, TorchError> {
    let mut out: Handle = std::ptr::null_mut();
    let ours = Arc::new(Release {
        run: release,
        context,
        ran: AtomicBool::new(false),
    });
    let theirs = Arc::into_raw(Arc::clone(&ours)).cast_mut().cast();
    let dimensions = c_int::try_from(shape.len()).map_err(|_| TorchError("too many dimensions".into()));
    // SAFETY: `data` stays valid until `release(context)` runs; both callers tie it to the memory's owner, which has as many
    // elements of this type as the shape.
    let made = dimensions.and_then(|dimensions| {
        checked(unsafe {
            vt_from_memory(
                data,
                scalar_type,
                shape.as_ptr(),
                dimensions,
                release_once,
                theirs,
                &raw mut out,
            )
        })
    });
    if let Err(error) = made {
        if !ours.ran.load(Ordering::Acquire) {
            release_once(theirs);
        }
        return Err(error);
    }
    // SAFETY: the shim returned a new heap tensor that this Tensor now owns.
    Ok(unsafe { Tensor::from_ptr(out.cast()) })
}

#[cfg(test)]
mod tests;
