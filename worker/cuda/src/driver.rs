//! The driver: its functions, and why they refuse.

use crate::library::functions;
use cudarc::driver::sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmodule, CUstream};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// How many streams the driver serves at a time without one waiting for what another has before it. It takes 8 where nothing is said, which
/// a process exceeds that computes, copies both ways and has communicators: a stream that waits for a peer would hold up one that computes.
const CONNECTIONS: (&str, &str) = ("CUDA_DEVICE_MAX_CONNECTIONS", "32");

/// Asks the driver, which is not loaded yet, for as many streams side by side as it has, unless the environment says how many. Does nothing where
/// the process has other threads already: they may read the environment.
pub fn ask_for_connections() {
    let (name, most) = CONNECTIONS;
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if std::env::var_os(name).is_none() && threads == 1 {
        #[expect(unsafe_code, reason = "the environment is the only way to ask")]
        // SAFETY: this is the only thread, so nobody else reads the environment.
        unsafe {
            std::env::set_var(name, most);
        }
    }
}

functions! {
    /// The driver's functions that are called.
    Driver {
        init = cuInit(c_uint) -> c_int;
        error_name = cuGetErrorName(c_int, *mut *const c_char) -> c_int;
        device_count = cuDeviceGetCount(*mut c_int) -> c_int;
        device_get = cuDeviceGet(*mut CUdevice, c_int) -> c_int;
        context_retain = cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice) -> c_int;
        context_release = cuDevicePrimaryCtxRelease_v2(CUdevice) -> c_int;
        context_set = cuCtxSetCurrent(CUcontext) -> c_int;
        stream_create = cuStreamCreate(*mut CUstream, c_uint) -> c_int;
        stream_destroy = cuStreamDestroy_v2(CUstream) -> c_int;
        stream_wait = cuStreamWaitEvent(CUstream, CUevent, c_uint) -> c_int;
        event_create = cuEventCreate(*mut CUevent, c_uint) -> c_int;
        event_destroy = cuEventDestroy_v2(CUevent) -> c_int;
        event_record = cuEventRecord(CUevent, CUstream) -> c_int;
        event_query = cuEventQuery(CUevent) -> c_int;
        event_elapsed = cuEventElapsedTime(*mut f32, CUevent, CUevent) -> c_int;
        host_alloc = cuMemHostAlloc(*mut *mut c_void, usize, c_uint) -> c_int;
        host_free = cuMemFreeHost(*mut c_void) -> c_int;
        device_alloc = cuMemAlloc_v2(*mut CUdeviceptr, usize) -> c_int;
        device_free = cuMemFree_v2(CUdeviceptr) -> c_int;
        copy_to_host = cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream) -> c_int;
        copy_to_device = cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream) -> c_int;
        device_attribute = cuDeviceGetAttribute(*mut c_int, c_int, CUdevice) -> c_int;
        module_load = cuModuleLoadData(*mut CUmodule, *const c_void) -> c_int;
        module_function = cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char) -> c_int;
        module_unload = cuModuleUnload(CUmodule) -> c_int;
        launch = cuLaunchKernel(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void,
            *mut *mut c_void
        ) -> c_int;
    }
}

/// What `cuEventQuery` returns while the work before the event is not done.
pub(crate) const NOT_READY: c_int = 600;

/// Why the driver refused. But for [`CudaError::NoDevice`] and a lack of memory, the context may be broken, and every later call
/// on the device fails, too: the process should end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There are fewer devices.
    #[error("GPU {number}: the driver shows {count}, which count from 0")]
    NoDevice {
        /// Number of the requested device.
        number: usize,
        /// Number of devices.
        count: usize,
    },
    /// A call failed.
    #[error("{call}: {name} (error {code} of the CUDA driver)")]
    Call {
        /// The driver's function.
        call: &'static str,
        /// Result of the call.
        code: i32,
        /// The result's name.
        name: String,
    },
    /// Pinned memory is shorter than the device's memory that it is copied from or to.
    #[error("{host} bytes of pinned memory for {device} bytes of the device; at least as many are needed")]
    TooLong {
        /// Bytes of the device's memory.
        device: usize,
        /// Bytes of the pinned memory.
        host: usize,
    },
    /// The device did not come to the end of its work in time.
    #[error("the device has not done {what} by the deadline")]
    Deadline {
        /// What the call waited for.
        what: &'static str,
    },
}

impl Driver {
    /// How many devices it shows this process.
    pub(crate) fn devices(&self) -> Result<usize, CudaError> {
        let mut count = 0;
        #[expect(
            unsafe_code,
            reason = "calls of the driver's functions with a place of their type"
        )]
        // SAFETY: the flags must be 0, and `count` is a place for a number. If the driver does not begin, the second call is refused.
        let (begun, counted) = unsafe { ((self.init)(0), (self.device_count)(&raw mut count)) };
        self.checked("cuInit", begun)?;
        self.checked("cuDeviceGetCount", counted)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Turns a function's result into this crate's.
    pub(crate) fn checked(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut name: *const c_char = std::ptr::null();
        #[expect(
            unsafe_code,
            reason = "the driver's function writes a pointer to a static text"
        )]
        // SAFETY: `name` is a valid place for a pointer. What is written there is null or a static text that ends with a zero.
        let name = unsafe {
            match (self.error_name)(code, &raw mut name) {
                0 if !name.is_null() => CStr::from_ptr(name).to_string_lossy().into_owned(),
                _ => "unknown".to_owned(),
            }
        };
        Err(CudaError::Call { call, code, name })
    }
}
