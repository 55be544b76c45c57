//! Operations: sends, receives, sums and broadcasts over communicators, each with the memory that it works on.

use crate::POLL;
use crate::communicator::{Communicator, Flight, Outcome, Phase, lock, revoke};
use crate::memory::DeviceMemory;
use crate::nccl::{IN_PROGRESS, NcclError, SUCCESS};
use crate::stream::{Event, Stream};
use cudarc::nccl::sys::{ncclDataType_t, ncclRedOp_t};
use parking_lot::Mutex;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the numbers of an operation are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Element {
    /// Single precision.
    Float32,
    /// Half precision.
    Float16,
    /// Single precision's range in 16 bits.
    BFloat16,
}

impl Element {
    /// Bytes of one.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Element::Float32 => 4,
            Element::Float16 | Element::BFloat16 => 2,
        }
    }

    fn raw(self) -> ncclDataType_t {
        match self {
            Element::Float32 => ncclDataType_t::ncclFloat32,
            Element::Float16 => ncclDataType_t::ncclFloat16,
            Element::BFloat16 => ncclDataType_t::ncclBfloat16,
        }
    }
}

/// What is done with an operation's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send the memory to a rank.
    Send {
        /// The receiving rank.
        to: u32,
    },
    /// Overwrite the memory with what a rank sends.
    Receive {
        /// The sending rank.
        from: u32,
    },
    /// Replace the memory by the sum over all ranks, the same bits on each.
    AllReduceSum,
    /// Replace the memory on one rank by the sum over all ranks; on the others it may hold anything afterwards.
    ReduceSum {
        /// The rank that has the sum.
        root: u32,
    },
    /// Replace the memory of all ranks by that of one rank.
    Broadcast {
        /// Rank of the root.
        root: u32,
    },
}

/// One operation. It runs after what is in the stream, and after all that was issued with the same communicator before.
pub struct Operation<'a, M> {
    /// Communicator of the operation.
    pub communicator: &'a Communicator,
    /// Kind of the operation.
    pub action: Action,
    /// Memory of the operation, a whole number of elements.
    pub memory: M,
    /// What the memory consists of.
    pub element: Element,
    /// Stream with the work after which the operation runs.
    pub stream: &'a Stream,
}

/// An issued operation. Dropping it while it runs gives its memory up: the device may still use it.
pub struct Pending<M> {
    communicator: Communicator,
    /// The operation's end, or why that could not be recorded.
    flight: Result<Arc<Flight>, NcclError>,
    memory: Option<M>,
}

/// Operations that NCCL has not seen.
pub struct Refused<M> {
    /// Reason of the refusal.
    pub error: NcclError,
    /// Memory of each operation.
    pub memory: Vec<M>,
}

impl<M> std::fmt::Debug for Refused<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Refused({:?})", self.error)
    }
}

/// What is wrong with an operation, before NCCL sees it.
fn wrong<M: DeviceMemory>(operation: &Operation<'_, M>) -> Result<(), NcclError> {
    let (of, bytes) = (operation.communicator, operation.memory.bytes());
    let argument = |field, value: u64, allowed: String| {
        Err(NcclError::Argument {
            field,
            value,
            allowed,
        })
    };
    let size = operation.element.bytes();
    if !bytes.is_multiple_of(size) {
        return argument(
            "the memory's length",
            bytes as u64,
            format!("a multiple of {size} bytes"),
        );
    }
    if !Arc::ptr_eq(operation.stream.context(), &of.0.context) {
        let allowed = format!("one of the communicator's device, {:?}", of.0.context);
        return argument("the stream's device", 0, allowed);
    }
    match operation.action {
        Action::Send { to: peer } | Action::Receive { from: peer }
            if peer >= of.ranks() || peer == of.rank() =>
        {
            let allowed = format!("another rank than {}, below {}", of.rank(), of.ranks());
            argument("the peer", peer.into(), allowed)
        }
        Action::ReduceSum { root } | Action::Broadcast { root } if root >= of.ranks() => {
            argument("the root", root.into(), format!("below {}", of.ranks()))
        }
        _ => Ok(()),
    }
}

#[expect(
    unsafe_code,
    reason = "a call of NCCL's function with handles and memory that live"
)]
fn call<M: DeviceMemory>(operation: &Operation<'_, M>) -> (&'static str, c_int) {
    let inner = &operation.communicator.0;
    let nccl = &inner.nccl;
    let (pointer, stream) = (operation.memory.pointer(), operation.stream.raw());
    let count = operation.memory.bytes() / operation.element.bytes();
    let element = operation.element.raw();
    let rank = |peer: u32| c_int::try_from(peer).unwrap_or(c_int::MAX);
    // SAFETY: the communicator and the stream live; the memory is of this length and stays until the operation has ended, since `Pending`
    // owns it; the communicator is locked.
    unsafe {
        match operation.action {
            Action::Send { to } => (
                "ncclSend",
                (nccl.send)(pointer, count, element, rank(to), inner.raw, stream),
            ),
            Action::Receive { from } => (
                "ncclRecv",
                (nccl.receive)(pointer, count, element, rank(from), inner.raw, stream),
            ),
            Action::AllReduceSum => {
                let sum = ncclRedOp_t::ncclSum;
                let code = (nccl.all_reduce)(pointer, pointer, count, element, sum, inner.raw, stream);
                ("ncclAllReduce", code)
            }
            Action::ReduceSum { root } => {
                let (sum, root) = (ncclRedOp_t::ncclSum, rank(root));
                let code = (nccl.reduce)(pointer, pointer, count, element, sum, root, inner.raw, stream);
                ("ncclReduce", code)
            }
            Action::Broadcast { root } => {
                let root = rank(root);
                let code = (nccl.broadcast)(pointer, pointer, count, element, root, inner.raw, stream);
                ("ncclBroadcast", code)
            }
        }
    }
}

/// Hands all operations to NCCL as one group.
fn hand_over<M: DeviceMemory>(operations: &[Operation<'_, M>]) -> Result<(), NcclError> {
    let Some(first) = operations.first() else {
        return Ok(());
    };
    let inner = &first.communicator.0;
    let nccl = &inner.nccl;
    #[expect(unsafe_code, reason = "a call of NCCL's function without arguments")]
    // SAFETY: it takes nothing, and is followed by one end on this thread.
    let started = unsafe { (nccl.group_start)() };
    nccl.checked("ncclGroupStart", started, inner.raw)?;
    let failed = operations
        .iter()
        .map(|o| (o, call(o)))
        .find(|(_, (_, code))| ![SUCCESS, IN_PROGRESS].contains(code));
    #[expect(unsafe_code, reason = "a call of NCCL's function without arguments")]
    // SAFETY: it takes nothing, and follows a start on this thread.
    let ended = unsafe { (nccl.group_end)() };
    match failed {
        Some((operation, (name, code))) => nccl.checked(name, code, operation.communicator.0.raw),
        None => nccl.checked("ncclGroupEnd", ended, inner.raw),
    }
}

/// How long NCCL may take to end what it does in the background of a communicator that was revoked.
const SETTLES: Duration = Duration::from_secs(5);

/// Why operations were not put into their streams as they should.
enum NotIssued {
    /// The device has them, or never will.
    Ended(NcclError),
    /// NCCL may still put them there.
    Unknown(NcclError),
}

/// Waits until NCCL has put the operations into their streams: the first ones between two ranks connect them in the background. It is
/// waited for where the communicator is revoked meanwhile, too: what comes into a stream later, no event would come after. A peer that does not come in
/// time is no fault of this device: then the communicators are revoked here.
fn wait_until_issued<M>(operations: &[Operation<'_, M>], deadline: Instant) -> Result<(), NotIssued> {
    let mut revoked: Option<(Instant, NcclError)> = None;
    for operation in operations {
        let inner = &operation.communicator.0;
        loop {
            let mut state = inner.state.lock();
            if state.phase == Phase::Revoked && revoked.is_none() {
                revoked = Some((Instant::now() + SETTLES, NcclError::Revoked));
            }
            if inner.has_settled(&mut state).map_err(NotIssued::Ended)? {
                break;
            }
            drop(state);
            let what = "the connection of two ranks";
            match &revoked {
                Some((settles, _)) if Instant::now() >= *settles => {
                    return Err(NotIssued::Unknown(NcclError::Deadline { what }));
                }
                None if Instant::now() >= deadline => {
                    let all: Vec<Communicator> = operations.iter().map(|o| o.communicator.clone()).collect();
                    revoke(&all).map_err(NotIssued::Unknown)?;
                    revoked = Some((Instant::now() + SETTLES, NcclError::Deadline { what }));
                }
                Some(_) | None => std::thread::sleep(POLL),
            }
        }
    }
    match revoked {
        Some((_, why)) => Err(NotIssued::Ended(why)),
        None => Ok(()),
    }
}

/// Issues operations together: those of one communicator run at once, so that a send and a receive of one group never wait for
/// each other. Returns them in their order; what goes wrong from here on, each of them tells.
///
/// # Errors
/// An argument is wrong, or a communicator was revoked or has failed before.
pub fn issue<M: DeviceMemory>(
    operations: Vec<Operation<'_, M>>,
    deadline: Instant,
) -> Result<Vec<Pending<M>>, Refused<M>> {
    let checked = || -> Result<(), NcclError> {
        operations.iter().try_for_each(wrong)?;
        match operations.first() {
            Some(first) => Ok(first.communicator.0.context.bind()?),
            None => Ok(()),
        }
    };
    let begun = checked().and_then(|()| {
        let mut locked = lock(operations.iter().map(|o| o.communicator));
        for (inner, state) in &mut locked {
            match state.phase {
                Phase::Ready => {}
                Phase::Revoked => return Err(NcclError::Revoked),
                Phase::Joining | Phase::Broken => {
                    return inner.has_settled(state).and(Err(NcclError::Revoked));
                }
            }
        }
        Ok(hand_over(&operations))
    });
    let handed = match begun {
        Err(error) => {
            return Err(Refused {
                error,
                memory: operations.into_iter().map(|o| o.memory).collect(),
            });
        }
        Ok(handed) => handed
            .map_err(NotIssued::Ended)
            .and_then(|()| wait_until_issued(&operations, deadline)),
    };
    let take_off = |operation| take_off(operation, &handed);
    Ok(operations.into_iter().map(take_off).collect())
}

/// Records the end of an operation that NCCL has.
fn take_off<M>(operation: Operation<'_, M>, handed: &Result<(), NotIssued>) -> Pending<M> {
    let mut pending = Pending {
        communicator: operation.communicator.clone(),
        flight: Err(NcclError::Revoked),
        memory: Some(operation.memory),
    };
    if let Err(NotIssued::Unknown(why)) = handed {
        // Nobody knows when the device will use the memory: it is given up.
        pending.flight = Err(why.clone());
        return pending;
    }
    let event = match operation.stream.record() {
        Ok(event) => event,
        Err(error) => {
            pending.flight = Err(error.into());
            return pending;
        }
    };
    let mut state = operation.communicator.0.state.lock();
    let outcome = match (handed, state.phase) {
        (Err(NotIssued::Ended(error) | NotIssued::Unknown(error)), _) => Outcome::Lost(error.clone()),
        (Ok(()), Phase::Revoked) => Outcome::Lost(NcclError::Revoked),
        (Ok(()), _) => Outcome::Running,
    };
    let flight = Arc::new(Flight {
        event,
        outcome: Mutex::new(outcome.clone()),
    });
    if outcome == Outcome::Running {
        state.flights.push(Arc::clone(&flight));
    }
    drop(state);
    pending.flight = Ok(flight);
    pending
}

impl<M> Pending<M> {
    /// Whether the operation is done.
    ///
    /// # Errors
    /// The operation will never be done: its communicator was revoked before, or NCCL reports a failure.
    pub fn is_done(&self) -> Result<bool, NcclError> {
        let flight = self.flight.as_ref().map_err(NcclError::clone)?;
        let inner = &self.communicator.0;
        let mut state = inner.state.lock();
        if *flight.outcome.lock() == Outcome::Running {
            state.flights.retain(|f| !Arc::ptr_eq(f, flight));
            Arc::clone(flight).note(inner, &mut state);
        }
        match &*flight.outcome.lock() {
            Outcome::Running => Ok(false),
            Outcome::Done => Ok(true),
            Outcome::Lost(error) => Err(error.clone()),
        }
    }

    /// Whether the device has let go of the memory, whether the operation was done or not. Its communicator then need not remember it.
    pub fn has_ended(&self) -> bool {
        let ended = self.event().is_some_and(|e| e.is_done() == Ok(true));
        if ended {
            let _ = self.is_done();
        }
        ended
    }

    /// Waits until the operation is done.
    ///
    /// # Errors
    /// As [`Pending::is_done`], or the deadline passed.
    pub fn wait(&self, deadline: Instant) -> Result<(), NcclError> {
        while !self.is_done()? {
            if Instant::now() >= deadline {
                return Err(NcclError::Deadline { what: "an operation" });
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// The point behind the operation: what must come after it waits for this. None if it could not be recorded.
    #[must_use]
    pub fn event(&self) -> Option<&Event> {
        self.flight.as_ref().ok().map(|f| &f.event)
    }

    /// Waits until the device has let go of the memory, done or not, and returns it. None: the deadline passed, or the device is broken; it is given up.
    pub fn release(mut self, deadline: Instant) -> Option<M> {
        self.event()?.wait("an operation", deadline).ok()?;
        self.memory.take()
    }
}

impl<M> Drop for Pending<M> {
    fn drop(&mut self) {
        let ended = self.event().is_some_and(|e| e.is_done() == Ok(true));
        if !ended {
            std::mem::forget(self.memory.take());
        }
    }
}
