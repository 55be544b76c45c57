//! The functions of NCCL.

use crate::communicator::{
    Communicator, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, Kind, Operation, REMOTE_ERROR, SUCCESS,
    SYSTEM_ERROR,
};
use crate::driver::{Address, stream_of};
use crate::handles::Handles;
use crate::numbers::Element;
use crate::{faults, group};
use std::ffi::{c_char, c_int, c_void};
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

static COMMUNICATORS: Handles<Communicator> = Handles::new();

/// The type `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

/// The beginning of `ncclConfig_t`.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

/// Number of random bytes in an id: few, because the name of a socket must be short.
const DRAWN: usize = 8;

/// A call with a communicator. A second call at the same time, from another thread, ends the process, because NCCL does not allow it.
struct Entry(Arc<Communicator>);

impl Entry {
    fn of(handle: usize) -> Option<Entry> {
        let communicator = COMMUNICATORS.get(handle)?;
        assert!(
            !communicator.entered.swap(true, Ordering::Acquire),
            "two calls with one communicator at a time"
        );
        Some(Entry(communicator))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.0.entered.store(false, Ordering::Release);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    let mut drawn = [0; DRAWN];
    let random = std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut drawn));
    if random.is_err() {
        return SYSTEM_ERROR;
    }
    let mut new = UniqueId([0; 128]);
    new.0[..DRAWN].copy_from_slice(&drawn);
    // SAFETY: the caller passes a valid pointer to an id.
    unsafe { *id = new };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankConfig(
    communicator: *mut usize,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *mut Config,
) -> c_int {
    // SAFETY: the caller passes a valid configuration, which is read within this call.
    let config = unsafe { &*config };
    let (Ok(ranks), Ok(rank)) = (usize::try_from(ranks), usize::try_from(rank)) else {
        return INVALID_ARGUMENT;
    };
    let fits = config.magic == 0xcafe_beef && config.size >= 80 && config.version >= 22_800;
    if !fits || config.blocking != 0 || rank >= ranks {
        return INVALID_ARGUMENT;
    }
    let folder = std::env::var_os("VARUNA_FAKE_NCCL_FOLDER").map_or_else(std::env::temp_dir, PathBuf::from);
    let new = Communicator::new(ranks, rank);
    // SAFETY: the caller passes a valid pointer to a handle.
    unsafe { *communicator = COMMUNICATORS.add(Arc::clone(&new)) };
    let name: String = id.0[..DRAWN].iter().map(|b| format!("{b:02x}")).collect();
    std::thread::spawn(move || new.join(&folder, &name));
    IN_PROGRESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(communicator: usize, error: *mut c_int) -> c_int {
    let Some(entry) = Entry::of(communicator) else {
        return INVALID_ARGUMENT;
    };
    // SAFETY: the caller passes a valid pointer to a result.
    unsafe { *error = entry.0.state() };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommRevoke(communicator: usize, flags: c_int) -> c_int {
    let Some(entry) = Entry::of(communicator).filter(|_| flags == 0) else {
        return INVALID_ARGUMENT;
    };
    entry.0.revoke();
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(communicator: usize) -> c_int {
    match Entry::of(communicator) {
        None => INVALID_ARGUMENT,
        Some(entry) if entry.0.is_revoked() => INVALID_USAGE,
        Some(_) => SUCCESS,
    }
}

/// Ends a communicator once none of its operations is running. If a peer is gone and the communicator was not revoked, this waits for ever.
#[unsafe(no_mangle)]
extern "C" fn ncclCommDestroy(communicator: usize) -> c_int {
    let Some(entry) = Entry::of(communicator) else {
        return INVALID_ARGUMENT;
    };
    while faults::destroy_is_stuck() {
        std::thread::park();
    }
    if entry.0.state() == IN_PROGRESS {
        return INVALID_USAGE;
    }
    entry.0.drain();
    COMMUNICATORS.remove(communicator);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(communicator: usize) -> c_int {
    let Some(entry) = Entry::of(communicator) else {
        return INVALID_ARGUMENT;
    };
    entry.0.revoke();
    entry.0.drain();
    COMMUNICATORS.remove(communicator);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> c_int {
    group::start()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> c_int {
    group::end()
}

fn operation(
    communicator: usize,
    stream: usize,
    (from, to): (*const c_void, *mut c_void),
    (count, element): (usize, c_int),
    kind: impl FnOnce(&Communicator) -> Option<Kind>,
) -> c_int {
    let (Some(entry), Some(stream)) = (Entry::of(communicator), stream_of(stream)) else {
        return INVALID_ARGUMENT;
    };
    let communicator = Arc::clone(&entry.0);
    let (Some(kind), Some(element)) = (kind(&communicator), Element::of(element)) else {
        return INVALID_ARGUMENT;
    };
    if communicator.is_revoked() || communicator.state() != SUCCESS {
        return INVALID_USAGE;
    }
    let operation = Operation {
        kind,
        from: Address(from.cast_mut().cast()),
        to: Address(to.cast()),
        count,
        element,
    };
    group::add(communicator, stream, operation)
}

/// The rank of a peer; none if it is invalid or this rank.
fn other(communicator: &Communicator, peer: c_int) -> Option<usize> {
    let peer = usize::try_from(peer).ok()?;
    (peer < communicator.ranks && peer != communicator.rank).then_some(peer)
}

/// A rank; none if it is invalid.
fn any(communicator: &Communicator, rank: c_int) -> Option<usize> {
    usize::try_from(rank)
        .ok()
        .filter(|rank| *rank < communicator.ranks)
}

#[unsafe(no_mangle)]
extern "C" fn ncclSend(
    from: *const c_void,
    count: usize,
    element: c_int,
    peer: c_int,
    communicator: usize,
    stream: usize,
) -> c_int {
    let memory = (from, from.cast_mut());
    operation(communicator, stream, memory, (count, element), |c| {
        other(c, peer).map(Kind::Send)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclRecv(
    to: *mut c_void,
    count: usize,
    element: c_int,
    peer: c_int,
    communicator: usize,
    stream: usize,
) -> c_int {
    let memory = (to.cast_const(), to);
    operation(communicator, stream, memory, (count, element), |c| {
        other(c, peer).map(Kind::Receive)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: c_int,
    reduction: c_int,
    communicator: usize,
    stream: usize,
) -> c_int {
    let sums = reduction == 0;
    operation(communicator, stream, (from, to), (count, element), |_| {
        sums.then_some(Kind::AllReduce)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: c_int,
    reduction: c_int,
    root: c_int,
    communicator: usize,
    stream: usize,
) -> c_int {
    let sums = reduction == 0;
    operation(communicator, stream, (from, to), (count, element), |c| {
        any(c, root).filter(|_| sums).map(Kind::Reduce)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclBroadcast(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: c_int,
    root: c_int,
    communicator: usize,
    stream: usize,
) -> c_int {
    operation(communicator, stream, (from, to), (count, element), |c| {
        any(c, root).map(Kind::Broadcast)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    let text = match code {
        SUCCESS => c"no error",
        SYSTEM_ERROR => c"unhandled system error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_: usize) -> *const c_char {
    c"the fake keeps no messages".as_ptr()
}
