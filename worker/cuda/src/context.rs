//! The context of a device, and what the device can do.

use crate::driver::{CudaError, Driver};
use crate::libraries::Libraries;
use cudarc::driver::sys::{CUcontext, CUdevice};
use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `.._MINOR`.
const CAPABILITY: [c_int; 2] = [75, 76];

/// What a GPU's processors can do, as NVIDIA numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capability {
    /// 9 of 9.0.
    pub major: u32,
    /// 0 of 9.0.
    pub minor: u32,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

/// The primary context of a device: the one that libtorch and NCCL use, too.
pub struct Context {
    pub(crate) libraries: Libraries,
    device: CUdevice,
    raw: CUcontext,
}

#[expect(unsafe_code, reason = "the driver's handles belong to no thread")]
// SAFETY: a context may be made current on any thread, on several at once; the driver locks what it shares.
unsafe impl Send for Context {}
#[expect(unsafe_code, reason = "the driver's handles belong to no thread")]
// SAFETY: as above.
unsafe impl Sync for Context {}

#[expect(
    unsafe_code,
    reason = "calls of the driver's functions with places of their types"
)]
impl Context {
    /// The context of the GPU of this number.
    ///
    /// # Errors
    /// There is no such GPU, or the driver refuses.
    pub fn open(libraries: &Libraries, number: usize) -> Result<Arc<Context>, CudaError> {
        let driver = &libraries.driver;
        let (mut device, mut raw) = (0, std::ptr::null_mut());
        let count = driver.devices()?;
        let ordinal = match c_int::try_from(number) {
            Ok(ordinal) if number < count => ordinal,
            _ => return Err(CudaError::NoDevice { number, count }),
        };
        // SAFETY: the arguments are places of the types that are written; the device is one of those that there are.
        unsafe {
            driver.checked("cuDeviceGet", (driver.device_get)(&raw mut device, ordinal))?;
            let retained = (driver.context_retain)(&raw mut raw, device);
            driver.checked("cuDevicePrimaryCtxRetain", retained)?;
        }
        Ok(Arc::new(Context {
            libraries: libraries.clone(),
            device,
            raw,
        }))
    }

    /// What the device's processors can do, as NVIDIA numbers it: 9.0 is an H100's.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn capability(&self) -> Result<Capability, CudaError> {
        let [mut major, mut minor] = [0; 2];
        for (place, attribute) in [&mut major, &mut minor].into_iter().zip(CAPABILITY) {
            // SAFETY: a place for a number; the device is the one that was opened.
            let told = unsafe { (self.driver().device_attribute)(place, attribute, self.device) };
            self.driver().checked("cuDeviceGetAttribute", told)?;
        }
        let of = |number: c_int| u32::try_from(number).unwrap_or(0);
        Ok(Capability {
            major: of(major),
            minor: of(minor),
        })
    }

    /// The libraries that it was opened with.
    #[must_use]
    pub fn libraries(&self) -> &Libraries {
        &self.libraries
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.libraries.driver
    }

    /// Makes the context current on this thread: what comes next on it, NCCL's calls included, is meant for this device.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained until this is dropped.
        let set = unsafe { (self.driver().context_set)(self.raw) };
        self.driver().checked("cuCtxSetCurrent", set)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "gives back what `open` retained")]
        // SAFETY: retained once by `open`. A failure leaves the context as it is, which the end of the process ends.
        let _ = unsafe { (self.driver().context_release)(self.device) };
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.device)
    }
}
