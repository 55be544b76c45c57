//! Compiled kernels on a device, and their launch.

use crate::compiler::Image;
use crate::context::Context;
use crate::driver::CudaError;
use crate::kernels::{Kernel, THREADS};
use crate::stream::Stream;
use cudarc::driver::sys::{CUfunction, CUmodule};
use std::ffi::c_void;
use std::sync::Arc;

/// The kernels of an image on one device.
pub struct Module {
    context: Arc<Context>,
    raw: CUmodule,
    /// Functions by the number of their kernel.
    functions: [CUfunction; Kernel::ALL.len()],
}

#[expect(unsafe_code, reason = "the driver's handles belong to no thread")]
// SAFETY: a module does not change after it was loaded; the driver locks what a launch changes.
unsafe impl Send for Module {}
#[expect(unsafe_code, reason = "the driver's handles belong to no thread")]
// SAFETY: as above.
unsafe impl Sync for Module {}

#[expect(
    unsafe_code,
    reason = "calls of the driver's functions with handles that live"
)]
impl Module {
    /// Loads the kernels of an image.
    ///
    /// # Errors
    /// The driver refuses: the image is for another kind of GPU.
    pub fn load(context: &Arc<Context>, image: &Image) -> Result<Module, CudaError> {
        context.bind()?;
        let driver = context.driver();
        let mut raw = std::ptr::null_mut();
        // SAFETY: a place for a handle, and an image that says where it ends.
        let loaded = unsafe { (driver.module_load)(&raw mut raw, image.binary.as_ptr().cast()) };
        driver.checked("cuModuleLoadData", loaded)?;
        let mut module = Module {
            context: Arc::clone(context),
            raw,
            functions: [std::ptr::null_mut(); _],
        };
        for (function, kernel) in module.functions.iter_mut().zip(Kernel::ALL) {
            // SAFETY: a place for a handle, a module that lives, and a text that ends with a zero.
            let found = unsafe { (driver.module_function)(function, raw, kernel.name().as_ptr()) };
            driver.checked("cuModuleGetFunction", found)?;
        }
        Ok(module)
    }

    /// Launches a kernel with so many blocks, after what is in the stream.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Safety
    /// `arguments` points to the kernel's arguments. What they point to is memory of the device that stays until the kernel has ended, and
    /// that nobody else uses meanwhile.
    pub unsafe fn launch(
        &self,
        kernel: Kernel,
        blocks: u32,
        arguments: *const c_void,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        if blocks == 0 {
            return Ok(());
        }
        self.context.bind()?;
        let mut list = [arguments.cast_mut()];
        let function = self.functions[kernel as usize];
        let none = std::ptr::null_mut();
        // SAFETY: the handles live; the driver copies the arguments, of the size that the kernel has, within the call.
        let launched = unsafe {
            (self.context.driver().launch)(
                function,
                blocks,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                stream.raw(),
                list.as_mut_ptr(),
                none,
            )
        };
        self.context.driver().checked("cuLaunchKernel", launched)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let bound = self.context.bind();
        #[expect(unsafe_code, reason = "gives back what `load` loaded")]
        // SAFETY: loaded by `load`, unloaded once.
        let _ = bound.map(|()| unsafe { (self.context.driver().module_unload)(self.raw) });
    }
}
