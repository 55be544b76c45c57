//! NVRTC, and the driver's functions for kernels. A launch runs the host's build of the kernel on its stream, with the usual delay.
//!
//! NVRTC's "compiled" output is the source text itself, so that a kernel that is missing in the text is not found.

use crate::driver::{INVALID_HANDLE, INVALID_VALUE, SUCCESS, stream_of};
use crate::handles::Handles;
use parking_lot::Mutex;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use varuna_cuda::HostKernel;

/// `CUDA_ERROR_NOT_FOUND`.
const NOT_FOUND: c_int = 500;
/// `NVRTC_ERROR_INVALID_PROGRAM`.
const INVALID_PROGRAM: c_int = 4;
/// The device's compute capability: 9.0.
const CAPABILITY: [c_int; 2] = [9, 0];
/// Threads of a block, for which the kernels are written.
const THREADS: c_uint = 256;

static PROGRAMS: Handles<CString> = Handles::new();
/// The text of a module's image, by the module's handle.
static MODULES: Handles<String> = Handles::new();
static FUNCTIONS: Handles<HostKernel> = Handles::new();
/// Functions are never freed.
static FOUND: Mutex<Vec<(CString, usize)>> = Mutex::new(Vec::new());

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcCreateProgram(
    program: *mut usize,
    source: *const c_char,
    _: *const c_char,
    _: c_int,
    _: *const *const c_char,
    _: *const *const c_char,
) -> c_int {
    // SAFETY: the caller passes a valid text and a valid pointer to a handle.
    unsafe { *program = PROGRAMS.add(Arc::new(CStr::from_ptr(source).to_owned())) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcDestroyProgram(program: *mut usize) -> c_int {
    // SAFETY: the caller passes a valid pointer to a handle.
    PROGRAMS
        .remove(unsafe { *program })
        .map_or(INVALID_PROGRAM, |_| SUCCESS)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcCompileProgram(
    program: usize,
    count: c_int,
    options: *const *const c_char,
) -> c_int {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller promises that there are this many texts.
    let options = unsafe { std::slice::from_raw_parts(options, count) };
    // SAFETY: as above.
    let given = |option: &&CStr| options.iter().any(|o| unsafe { CStr::from_ptr(*o) } == *option);
    // The bits of results depend on this option.
    let exact = [c"--gpu-architecture=sm_90", c"--fmad=false"].iter().all(given);
    match PROGRAMS.get(program) {
        Some(_) if exact => SUCCESS,
        _ => INVALID_PROGRAM,
    }
}

fn size(program: usize, bytes: *mut usize) -> c_int {
    let Some(text) = PROGRAMS.get(program) else {
        return INVALID_PROGRAM;
    };
    // SAFETY: the caller passes a valid pointer to a number.
    unsafe { *bytes = text.as_bytes_with_nul().len() };
    SUCCESS
}

fn write(program: usize, to: *mut c_char) -> c_int {
    let Some(text) = PROGRAMS.get(program) else {
        return INVALID_PROGRAM;
    };
    let bytes = text.as_bytes_with_nul();
    // SAFETY: the caller's memory has the size that the function above returned.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetCUBINSize(program: usize, bytes: *mut usize) -> c_int {
    size(program, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetCUBIN(program: usize, to: *mut c_char) -> c_int {
    write(program, to)
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetPTXSize(program: usize, bytes: *mut usize) -> c_int {
    size(program, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetPTX(program: usize, to: *mut c_char) -> c_int {
    write(program, to)
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetProgramLogSize(program: usize, bytes: *mut usize) -> c_int {
    size(program, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetProgramLog(program: usize, to: *mut c_char) -> c_int {
    write(program, to)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _: c_int) -> c_int {
    let [major, minor] = CAPABILITY;
    let found = match attribute {
        75 => major,
        76 => minor,
        _ => return INVALID_VALUE,
    };
    // SAFETY: the caller passes a valid pointer to a number.
    unsafe { *value = found };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: *mut usize, image: *const c_char) -> c_int {
    // SAFETY: the caller passes an image that the functions above wrote: a text that ends with a zero byte.
    let text = unsafe { CStr::from_ptr(image) }.to_string_lossy().into_owned();
    // SAFETY: the caller passes a valid pointer to a handle.
    unsafe { *module = MODULES.add(Arc::new(text)) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: usize) -> c_int {
    MODULES.remove(module).map_or(INVALID_HANDLE, |_| SUCCESS)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) -> c_int {
    let Some(text) = MODULES.get(module) else {
        return INVALID_HANDLE;
    };
    // SAFETY: the caller passes a valid text.
    let name = unsafe { CStr::from_ptr(name) };
    let written = name.to_str().is_ok_and(|n| text.contains(&format!("({n}, ")));
    let Some(kernel) = HostKernel::find(name).filter(|_| written) else {
        return NOT_FOUND;
    };
    let mut found = FOUND.lock();
    let known = found
        .iter()
        .find(|(own, _)| **own == *name)
        .map(|(_, handle)| *handle);
    let handle = known.unwrap_or_else(|| {
        let handle = FUNCTIONS.add(Arc::new(kernel));
        found.push((name.to_owned(), handle));
        handle
    });
    // SAFETY: the caller passes a valid pointer to a handle.
    unsafe { *function = handle };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    function: usize,
    blocks: c_uint,
    blocks_y: c_uint,
    blocks_z: c_uint,
    threads: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    shared_bytes: c_uint,
    stream: usize,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> c_int {
    let (Some(kernel), Some(stream)) = (FUNCTIONS.get(function), stream_of(stream)) else {
        return INVALID_HANDLE;
    };
    let flat = [blocks_y, blocks_z, threads_y, threads_z, shared_bytes] == [1, 1, 1, 1, 0];
    if blocks == 0 || threads != THREADS || !flat || arguments.is_null() || !extra.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's list has one element.
    if unsafe { *arguments }.is_null() {
        return INVALID_VALUE;
    }
    // The buffer consists of 64-bit words, so that the arguments are aligned.
    let mut own = vec![0u64; kernel.argument_bytes.div_ceil(8)];
    // SAFETY: the caller's only argument has the kernel's size. As with the driver, it need not live longer than this call.
    unsafe {
        let from: *const u8 = (*arguments).cast();
        std::ptr::copy_nonoverlapping(from, own.as_mut_ptr().cast::<u8>(), kernel.argument_bytes);
    }
    stream.push(move || {
        // SAFETY: the caller that launched the kernel promises that the memory lives until the kernel has ended.
        unsafe { kernel.run(0..u64::from(blocks), own.as_ptr().cast()) };
    });
    SUCCESS
}
