//! Modules of TorchScript whose parameters are given to them for each call.

use crate::{Device, Handle, TorchError, checked, handles};
use std::ffi::{CString, c_char, c_int};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};
use tch::Tensor;

/// The shim's object.
#[repr(C)]
struct Module {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn vt_script_load(
        bytes: *const c_char,
        size: usize,
        gpu: c_int,
        paths: *const *const c_char,
        counts: *const c_int,
        parameters: c_int,
        out: *mut *mut Module,
    ) -> c_int;
    fn vt_script_forward(
        module: *mut Module,
        parameters: *const Handle,
        parameter_count: c_int,
        inputs: *const Handle,
        input_count: c_int,
        training: bool,
        out: *mut Handle,
    ) -> c_int;
    fn vt_script_release(module: *mut Module);
}

/// libtorch's own generators are the process's: between a seed and what is drawn after it nobody else may draw.
static GENERATOR: Mutex<()> = Mutex::new(());

/// How a module is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Call {
    /// What the module reads as `self.training`.
    pub training: bool,
    /// What libtorch's own generators, which the module's operators draw from, are seeded with before.
    pub seed: Option<u64>,
}

/// A module without parameters of its own.
pub struct ScriptModule {
    /// One call at a time: a call sets the module's attributes.
    module: Mutex<NonNull<Module>>,
}

// SAFETY: the shim's object owns reference-counted objects of libtorch, which any thread may use and release; the mutex lets one thread use it at a time.
unsafe impl Send for ScriptModule {}
// SAFETY: as above: a shared reference gives access through the mutex alone.
unsafe impl Sync for ScriptModule {}

impl Drop for ScriptModule {
    fn drop(&mut self) {
        let module = self.module.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `load` made it, and nobody else releases it.
        unsafe { vt_script_release(module.as_ptr()) }
    }
}

fn text(text: &str) -> Result<CString, TorchError> {
    CString::new(text).map_err(|_| TorchError(format!("{text:?} holds a zero byte")))
}

fn count(count: usize) -> Result<c_int, TorchError> {
    c_int::try_from(count).map_err(|_| TorchError(format!("{count} are too many")))
}

impl ScriptModule {
    /// Reads a module from the bytes of its file. `slots` has for each parameter, in order, the paths of the module's attributes that hold it.
    ///
    /// # Errors
    /// The bytes are no module, or the module has no such attribute.
    pub fn load(bytes: &[u8], device: Device, slots: &[Vec<String>]) -> Result<ScriptModule, TorchError> {
        let gpu = match device {
            Device::Cpu | Device::CpuSeparateMemory => -1,
            Device::Cuda(number) => count(number)?,
        };
        let paths = slots.iter().flatten().map(|path| text(path));
        let paths = paths.collect::<Result<Vec<CString>, TorchError>>()?;
        let pointers: Vec<*const c_char> = paths.iter().map(|path| path.as_ptr()).collect();
        let counts = slots.iter().map(|own| count(own.len()));
        let counts = counts.collect::<Result<Vec<c_int>, TorchError>>()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: so many bytes, NUL-terminated texts, as many paths as the counts add up to, all borrowed for the call.
        checked(unsafe {
            vt_script_load(
                bytes.as_ptr().cast(),
                bytes.len(),
                gpu,
                pointers.as_ptr(),
                counts.as_ptr(),
                count(slots.len())?,
                &raw mut module,
            )
        })?;
        let module = NonNull::new(module).ok_or_else(|| TorchError("no module was read".into()))?;
        Ok(ScriptModule {
            module: Mutex::new(module),
        })
    }

    /// The module's forward with these parameters, in the order of [`ScriptModule::load`]'s slots.
    ///
    /// # Errors
    /// There are more or fewer parameters, the module refuses its inputs, or it returns something other than one tensor.
    pub fn forward(
        &self,
        parameters: &[&Tensor],
        inputs: &[&Tensor],
        call: Call,
    ) -> Result<Tensor, TorchError> {
        let module = self.module.lock().unwrap_or_else(PoisonError::into_inner);
        let (parameters, inputs) = (handles(parameters), handles(inputs));
        let counts = (count(parameters.len())?, count(inputs.len())?);
        let _alone = call.seed.map(|seed| {
            let alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
            tch::manual_seed(seed.cast_signed());
            alone
        });
        let mut out: Handle = std::ptr::null_mut();
        // SAFETY: a live module that no other thread uses, and as many live handles as is said, borrowed for the call.
        checked(unsafe {
            vt_script_forward(
                module.as_ptr(),
                parameters.as_ptr(),
                counts.0,
                inputs.as_ptr(),
                counts.1,
                call.training,
                &raw mut out,
            )
        })?;
        // SAFETY: the shim returned a new heap tensor that this Tensor now owns.
        Ok(unsafe { Tensor::from_ptr(out.cast()) })
    }
}
