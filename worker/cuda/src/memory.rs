//! Memory that the device works on, and copies between it and the host's.

use crate::context::Context;
use crate::driver::CudaError;
use crate::stream::{Event, Stream};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;

/// Memory that a device can read and write.
///
/// Several operations may work on the same memory, one after the other in the order of streams and events, each with a copy of an
/// `Arc`. A forgotten wait then gives wrong numbers, and nothing worse.
///
/// # Safety
/// `pointer` is valid on the device for `bytes` bytes until the value is dropped, and stays the same when the value is moved. The host
/// reads and writes the memory through operations and copies alone.
#[expect(unsafe_code, reason = "operations trust what an implementation says")]
pub unsafe trait DeviceMemory: Send + 'static {
    /// Where it begins, an address of the device.
    fn pointer(&self) -> *mut c_void;
    /// Length of the memory, in bytes.
    fn bytes(&self) -> usize;
}

#[expect(unsafe_code, reason = "the memory lives as long as its last owner")]
// SAFETY: as the reason says; what `M` promises holds for each owner.
unsafe impl<M: DeviceMemory + Sync> DeviceMemory for Arc<M> {
    fn pointer(&self) -> *mut c_void {
        (**self).pointer()
    }

    fn bytes(&self) -> usize {
        (**self).bytes()
    }
}

/// Memory of a device that this crate has allocated.
pub struct DeviceBuffer {
    context: Arc<Context>,
    pointer: u64,
    bytes: usize,
}

#[expect(
    unsafe_code,
    reason = "allocated by the driver for this value alone; an address of the device does not move with it"
)]
// SAFETY: as the reason says; freed when the value is dropped.
unsafe impl DeviceMemory for DeviceBuffer {
    fn pointer(&self) -> *mut c_void {
        self.pointer as *mut c_void
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

#[expect(
    unsafe_code,
    reason = "calls of the driver's functions with places of their types"
)]
impl DeviceBuffer {
    /// Memory of so many bytes, at least 1, with anything in it.
    ///
    /// # Errors
    /// There is not so much.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<DeviceBuffer, CudaError> {
        context.bind()?;
        let mut pointer = 0;
        // SAFETY: a place for an address.
        let allocated = unsafe { (context.driver().device_alloc)(&raw mut pointer, bytes) };
        context.driver().checked("cuMemAlloc", allocated)?;
        Ok(DeviceBuffer {
            context: Arc::clone(context),
            pointer,
            bytes,
        })
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // The last owner may be on a thread that has not used the device.
        let bound = self.context.bind();
        #[expect(unsafe_code, reason = "gives back what `new` allocated")]
        // SAFETY: allocated by `new`, freed once; operations own the memory while they run.
        let _ = bound.map(|()| unsafe { (self.context.driver().device_free)(self.pointer) });
    }
}

/// Memory of the host that does not leave its place: the device copies from and to it by itself.
pub struct Pinned {
    context: Arc<Context>,
    pointer: *mut u8,
    bytes: usize,
}

#[expect(unsafe_code, reason = "it owns its memory as a `Vec` does")]
// SAFETY: as the reason says.
unsafe impl Send for Pinned {}
#[expect(unsafe_code, reason = "it owns its memory as a `Vec` does")]
// SAFETY: as the reason says.
unsafe impl Sync for Pinned {}

#[expect(unsafe_code, reason = "the driver's allocation, seen as the slice that it is")]
impl Pinned {
    /// Memory of so many bytes, at least 1, all zero.
    ///
    /// # Errors
    /// There is not so much that can be pinned.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Pinned, CudaError> {
        context.bind()?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: a place for an address; no flags.
        let allocated = unsafe { (context.driver().host_alloc)(&raw mut pointer, bytes, 0) };
        context.driver().checked("cuMemHostAlloc", allocated)?;
        let pointer: *mut u8 = pointer.cast();
        // SAFETY: the driver has just allocated so many bytes; zeros make them initialised.
        unsafe { pointer.write_bytes(0, bytes) };
        Ok(Pinned {
            context: Arc::clone(context),
            pointer,
            bytes,
        })
    }

    /// Content of the memory.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: allocated and initialised by `new`; the device writes only while a `Copying` owns this.
        unsafe { std::slice::from_raw_parts(self.pointer, self.bytes) }
    }

    /// Content of the memory.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed by nobody else.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }

    /// Copies all of the device's memory to the first bytes here, after what is in the stream.
    ///
    /// # Errors
    /// The device's memory is longer, or the driver refuses. What was handed over is then lost to this process.
    pub fn copy_from<M: DeviceMemory>(
        self,
        device: M,
        stream: &Stream,
    ) -> Result<Copying<(Pinned, M)>, CudaError> {
        let lengths = (device.bytes(), self.bytes);
        Copying::start((self, device), lengths, stream, |(host, device), stream| {
            let to: *mut c_void = host.pointer.cast();
            let from = device.pointer() as u64;
            let driver = host.context.driver();
            // SAFETY: both are at least of this length, and `Copying` keeps both until the copy has ended.
            let copied = unsafe { (driver.copy_to_host)(to, from, device.bytes(), stream.raw()) };
            driver.checked("cuMemcpyDtoHAsync", copied)
        })
    }

    /// Copies the first bytes here to all of the device's memory, after what is in the stream.
    ///
    /// # Errors
    /// As [`Pinned::copy_from`].
    pub fn copy_to<M: DeviceMemory>(
        self,
        device: M,
        stream: &Stream,
    ) -> Result<Copying<(Pinned, M)>, CudaError> {
        let lengths = (device.bytes(), self.bytes);
        Copying::start((self, device), lengths, stream, |(host, device), stream| {
            let from: *const c_void = host.pointer.cast_const().cast();
            let to = device.pointer() as u64;
            let driver = host.context.driver();
            // SAFETY: both are at least of this length, and `Copying` keeps both until the copy has ended.
            let copied = unsafe { (driver.copy_to_device)(to, from, device.bytes(), stream.raw()) };
            driver.checked("cuMemcpyHtoDAsync", copied)
        })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The last owner may be on a thread that has not used the device.
        let bound = self.context.bind();
        #[expect(unsafe_code, reason = "gives back what `new` allocated")]
        // SAFETY: allocated by `new`, freed once.
        let _ = bound.map(|()| unsafe { (self.context.driver().host_free)(self.pointer.cast()) });
    }
}

/// What a device is copying. Dropping it before the copy has ended gives the memory up: the device may still write to it.
pub struct Copying<M> {
    memory: Option<M>,
    event: Option<Event>,
}

impl<M> Copying<M> {
    fn start(
        memory: M,
        (device, host): (usize, usize),
        stream: &Stream,
        copy: impl FnOnce(&M, &Stream) -> Result<(), CudaError>,
    ) -> Result<Copying<M>, CudaError> {
        if device > host {
            return Err(CudaError::TooLong { device, host });
        }
        stream.context().bind()?;
        // From here on a failure drops this, which keeps the memory from being used again.
        let mut copying = Copying {
            memory: Some(memory),
            event: None,
        };
        if let Some(memory) = &copying.memory {
            copy(memory, stream)?;
        }
        copying.event = Some(stream.record()?);
        Ok(copying)
    }

    /// Whether it has ended, in whatever way: [`Copying::finish`] then returns at once.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.event
            .as_ref()
            .is_none_or(|event| event.is_done() != Ok(false))
    }

    /// Waits until the copy has ended; returns what it was made between.
    ///
    /// # Errors
    /// The deadline passed (the memory is then given up), or the driver reports an error.
    pub fn finish(mut self, deadline: Instant) -> Result<M, CudaError> {
        let lost = CudaError::Deadline { what: "a copy" };
        let event = self.event.as_ref().ok_or(lost.clone())?;
        event.wait("a copy", deadline)?;
        self.memory.take().ok_or(lost)
    }
}

impl<M> Copying<M> {
    /// The point behind the copy: what must come after it waits for this.
    #[must_use]
    pub fn event(&self) -> Option<&Event> {
        self.event.as_ref()
    }
}

impl<M> Drop for Copying<M> {
    fn drop(&mut self) {
        let ended = self.event.as_ref().is_some_and(|e| e.is_done() == Ok(true));
        if !ended {
            std::mem::forget(self.memory.take());
        }
    }
}
