//! The functions of the CUDA driver. There is one device, which uses host memory.

use crate::handles::Handles;
use crate::stream::{Event, Stream};
use parking_lot::Mutex;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock};

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
pub(crate) const INVALID_HANDLE: c_int = 400;
const NOT_READY: c_int = 600;

/// Handle of the only context.
const CONTEXT: usize = 0xc0;
/// Initial content of new device memory: code must not rely on zeros.
const FILL: u8 = 0xab;

static STREAMS: Handles<Stream> = Handles::new();
static EVENTS: Handles<Event> = Handles::new();
static ALLOCATED: Mutex<BTreeMap<usize, Layout>> = Mutex::new(BTreeMap::new());

/// The stream of a handle. Handle 0 is the device's default stream, which is created when it is first used.
pub(crate) fn stream_of(handle: usize) -> Option<Arc<Stream>> {
    static OWN: OnceLock<Option<Arc<Stream>>> = OnceLock::new();
    match handle {
        0 => OWN.get_or_init(|| Stream::start().ok()).clone(),
        _ => STREAMS.get(handle),
    }
}

/// An address that is sent to a stream's thread.
#[derive(Clone, Copy)]
pub(crate) struct Address(pub(crate) *mut u8);
// SAFETY: an address is a number. The code that uses it is responsible for the memory there.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

fn allocate(bytes: usize) -> Option<usize> {
    let layout = Layout::from_size_align(bytes, 256)
        .ok()
        .filter(|l| l.size() > 0)?;
    // SAFETY: the layout is not empty.
    let pointer = unsafe { alloc(layout) };
    if pointer.is_null() {
        return None;
    }
    // SAFETY: this memory was just allocated with this size.
    unsafe { pointer.write_bytes(FILL, bytes) };
    ALLOCATED.lock().insert(pointer as usize, layout);
    Some(pointer as usize)
}

fn free(address: usize) -> c_int {
    match ALLOCATED.lock().remove(&address) {
        // SAFETY: this memory was allocated above with this layout, and not freed since.
        Some(layout) => unsafe { dealloc(address as *mut u8, layout) },
        None => return INVALID_VALUE,
    }
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_: c_uint) -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(code: c_int, name: *mut *const c_char) -> c_int {
    let text = match code {
        INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
        500 => c"CUDA_ERROR_NOT_FOUND",
        _ => return INVALID_VALUE,
    };
    // SAFETY: the caller passes a valid pointer to a pointer.
    unsafe { *name = text.as_ptr() };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: the caller passes a valid pointer to a number.
    unsafe { *count = 1 };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    // SAFETY: the caller passes a valid pointer to a number.
    unsafe { *device = ordinal };
    if ordinal == 0 { SUCCESS } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, _: c_int) -> c_int {
    // SAFETY: the caller passes a valid pointer to a handle.
    unsafe { *context = CONTEXT };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(_: c_int) -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: usize) -> c_int {
    if context == CONTEXT {
        SUCCESS
    } else {
        INVALID_HANDLE
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut usize, _: c_uint) -> c_int {
    let Ok(new) = Stream::start() else {
        return OUT_OF_MEMORY;
    };
    // SAFETY: the caller passes a valid pointer to a handle.
    unsafe { *stream = STREAMS.add(new) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: usize) -> c_int {
    STREAMS.remove(stream).map_or(INVALID_HANDLE, |_| SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, _: c_uint) -> c_int {
    let (Some(stream), Some(event)) = (stream_of(stream), EVENTS.get(event)) else {
        return INVALID_HANDLE;
    };
    event.hold(&stream);
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut usize, _: c_uint) -> c_int {
    // SAFETY: the caller passes a valid pointer to a handle.
    unsafe { *event = EVENTS.add(Arc::new(Event::default())) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: usize) -> c_int {
    EVENTS.remove(event).map_or(INVALID_HANDLE, |_| SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: usize, stream: usize) -> c_int {
    let (Some(event), Some(stream)) = (EVENTS.get(event), stream_of(stream)) else {
        return INVALID_HANDLE;
    };
    event.record(&stream);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: usize) -> c_int {
    match EVENTS.get(event) {
        None => INVALID_HANDLE,
        Some(event) if event.is_done() => SUCCESS,
        Some(_) => NOT_READY,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime(ms: *mut f32, start: usize, end: usize) -> c_int {
    let (Some(start), Some(end)) = (EVENTS.get(start), EVENTS.get(end)) else {
        return INVALID_HANDLE;
    };
    let (Some(start), Some(end)) = (start.at(), end.at()) else {
        return NOT_READY;
    };
    // SAFETY: the caller passes a valid pointer to a number.
    unsafe { *ms = end.saturating_duration_since(start).as_secs_f32() * 1e3 };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(pointer: *mut usize, bytes: usize, _: c_uint) -> c_int {
    let Some(address) = allocate(bytes) else {
        return OUT_OF_MEMORY;
    };
    // SAFETY: the caller passes a valid pointer to an address.
    unsafe { *pointer = address };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(pointer: usize) -> c_int {
    free(pointer)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(pointer: *mut usize, bytes: usize) -> c_int {
    // SAFETY: the caller's promise is the same.
    unsafe { cuMemHostAlloc(pointer, bytes, 0) }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(pointer: usize) -> c_int {
    free(pointer)
}

fn copy(to: *mut c_void, from: *const c_void, bytes: usize, stream: usize) -> c_int {
    let Some(stream) = stream_of(stream) else {
        return INVALID_HANDLE;
    };
    if to.is_null() || from.is_null() {
        return INVALID_VALUE;
    }
    let (to, from) = (Address(to.cast()), Address(from.cast_mut().cast()));
    stream.push(move || {
        let (to, from) = (to, from);
        // SAFETY: the caller that issued the copy promises that both have this many bytes and live until it has ended.
        unsafe { std::ptr::copy(from.0, to.0, bytes) };
    });
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: usize, bytes: usize, stream: usize) -> c_int {
    copy(to, from as *const c_void, bytes, stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: usize, from: *const c_void, bytes: usize, stream: usize) -> c_int {
    copy(to as *mut c_void, from, bytes, stream)
}
