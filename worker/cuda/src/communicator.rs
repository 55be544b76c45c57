//! Communicators: made without blocking, revoked in a fence, freed on the reaper's thread.

use crate::POLL;
use crate::context::Context;
use crate::nccl::{Nccl, NcclError, config};
use crate::reaper::{Freeing, Reaper};
use crate::stream::Event;
use crate::unique_id::UniqueId;
use cudarc::nccl::sys::ncclComm_t;
use parking_lot::{Mutex, MutexGuard};
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Numbers communicators: who needs several locks takes them in this order.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// What this process is in a communicator that is to be made.
#[derive(Clone, Debug)]
pub struct Membership {
    /// Id by which the ranks meet.
    pub id: UniqueId,
    /// Number of its ranks, at least 1.
    pub ranks: u32,
    /// Rank of this process, below `ranks`.
    pub rank: u32,
    /// Blocks that a kernel of it may take of the device, at least 1; None: as NCCL likes.
    pub blocks_max: Option<u32>,
}

/// A communicator of NCCL. Copies are the same communicator. It is freed on the reaper's thread when the last copy and the last operation
/// are gone.
#[derive(Clone)]
pub struct Communicator(pub(crate) Arc<Inner>);

/// Whether an operation has ended, and how.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Running,
    /// The operation is done, and its memory holds the result.
    Done,
    /// The operation ended, or will end, and its memory may hold anything.
    Lost(NcclError),
}

/// The end of an operation, as its communicator knows it.
pub(crate) struct Flight {
    pub(crate) event: Event,
    pub(crate) outcome: Mutex<Outcome>,
}

impl Flight {
    /// Looks whether the operation has ended; under the communicator's lock. What has not, or not well, is lost if the
    /// communicator is revoked or broken, and else still in flight.
    pub(crate) fn note(self: Arc<Flight>, of: &Inner, state: &mut State) {
        let ended = self.event.is_done();
        // NCCL marks a failure before it lets a kernel end; so it is asked after the event.
        let outcome = match (state.phase, ended) {
            (Phase::Revoked, _) => Outcome::Lost(NcclError::Revoked),
            (_, Err(error)) => Outcome::Lost(error.into()),
            (_, Ok(ended)) => match of.has_settled(state) {
                Err(error) => Outcome::Lost(error),
                Ok(_) if ended => Outcome::Done,
                Ok(_) => Outcome::Running,
            },
        };
        self.outcome.lock().clone_from(&outcome);
        if outcome == Outcome::Running {
            state.flights.push(self);
        }
    }
}

/// What operations may be done with a communicator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The ranks are connecting to each other.
    Joining,
    /// The communicator can be used.
    Ready,
    /// Revoked: what ran ends with anything in its memory, nothing more is taken.
    Revoked,
    /// NCCL has reported a failure.
    Broken,
}

pub(crate) struct State {
    pub(crate) phase: Phase,
    /// Operations whose end nobody has seen: at most those that were issued and not yet asked for.
    pub(crate) flights: Vec<Arc<Flight>>,
}

pub(crate) struct Inner {
    number: u64,
    pub(crate) context: Arc<Context>,
    pub(crate) nccl: Arc<Nccl>,
    pub(crate) raw: ncclComm_t,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// Held for each call with this communicator: NCCL does not lock it.
    pub(crate) state: Mutex<State>,
    reaper: Arc<Reaper>,
}

#[expect(unsafe_code, reason = "the handle is used under a lock")]
// SAFETY: NCCL's communicators belong to no thread; all calls with one are made under its lock.
unsafe impl Send for Inner {}
#[expect(unsafe_code, reason = "the handle is used under a lock")]
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl State {
    /// Notes which operations have ended: those stay known when the communicator is revoked after this.
    fn note(&mut self, of: &Inner) {
        for flight in std::mem::take(&mut self.flights) {
            flight.note(of, self);
        }
    }
}

impl Inner {
    /// Whether what NCCL does in the background has ended. A failure marks the communicator.
    pub(crate) fn has_settled(&self, state: &mut State) -> Result<bool, NcclError> {
        let settled = self.nccl.has_settled(self.raw);
        if settled.is_err() && state.phase != Phase::Revoked {
            state.phase = Phase::Broken;
        }
        settled
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let way = match self.state.get_mut().phase {
            Phase::Ready => Freeing::Finalize,
            Phase::Revoked => Freeing::Destroy,
            Phase::Joining | Phase::Broken => Freeing::Abort,
        };
        self.reaper.take((&self.context, &self.nccl), self.raw, way);
    }
}

impl Communicator {
    /// This process's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.0.rank
    }

    /// Number of its ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.0.ranks
    }
}

/// Locks several communicators, each once, in the order that everybody takes.
pub(crate) fn lock<'a>(
    communicators: impl Iterator<Item = &'a Communicator>,
) -> Vec<(&'a Inner, MutexGuard<'a, State>)> {
    let mut distinct: Vec<&Inner> = communicators.map(|c| &*c.0).collect();
    distinct.sort_by_key(|inner| inner.number);
    distinct.dedup_by_key(|inner| inner.number);
    distinct
        .into_iter()
        .map(|inner| (inner, inner.state.lock()))
        .collect()
}

/// Starts the making of one; it goes on in the background.
fn start(
    context: &Arc<Context>,
    reaper: &Arc<Reaper>,
    membership: &Membership,
) -> Result<Communicator, NcclError> {
    let &Membership { ranks, rank, .. } = membership;
    let numbers = c_int::try_from(ranks).ok().zip(c_int::try_from(rank).ok());
    let Some((count, place)) = numbers.filter(|_| rank < ranks) else {
        return Err(NcclError::Argument {
            field: "rank",
            value: rank.into(),
            allowed: format!("a number below the {ranks} ranks"),
        });
    };
    if membership.blocks_max == Some(0) {
        return Err(NcclError::Argument {
            field: "blocks_max",
            value: 0,
            allowed: "at least 1".to_owned(),
        });
    }
    let nccl = context.libraries.nccl()?;
    let (mut raw, mut config) = (std::ptr::null_mut(), config(membership.blocks_max));
    #[expect(unsafe_code, reason = "a call of NCCL's function with places of its types")]
    // SAFETY: `raw` is a place for a handle, `config` one that is read within the call; the id is passed by value.
    let started = unsafe { (nccl.init)(&raw mut raw, count, membership.id.raw(), place, &raw mut config) };
    nccl.checked("ncclCommInitRankConfig", started, std::ptr::null_mut())?;
    Ok(Communicator(Arc::new(Inner {
        number: NEXT.fetch_add(1, Ordering::Relaxed),
        context: Arc::clone(context),
        nccl,
        raw,
        rank,
        ranks,
        state: Mutex::new(State {
            phase: Phase::Joining,
            flights: Vec::new(),
        }),
        reaper: Arc::clone(reaper),
    })))
}

/// Makes all communicators of a generation, at once: each waits for its own ranks, so that the order does not matter. `stop` ends the
/// wait from another thread. What was begun is freed if not all succeed.
///
/// # Errors
/// NCCL refuses, a rank did not come by the deadline, or `stop` was set.
pub fn init(
    context: &Arc<Context>,
    reaper: &Arc<Reaper>,
    memberships: &[Membership],
    stop: &AtomicBool,
    deadline: Instant,
) -> Result<Vec<Communicator>, NcclError> {
    context.bind()?;
    let mut all = Vec::with_capacity(memberships.len());
    for membership in memberships {
        all.push(start(context, reaper, membership)?);
    }
    for communicator in &all {
        let inner = &communicator.0;
        loop {
            let mut state = inner.state.lock();
            if inner.has_settled(&mut state)? {
                state.phase = Phase::Ready;
                break;
            }
            drop(state);
            if stop.load(Ordering::Relaxed) {
                return Err(NcclError::Revoked);
            }
            if Instant::now() >= deadline {
                return Err(NcclError::Deadline {
                    what: "the initialization of a communicator",
                });
            }
            std::thread::sleep(POLL);
        }
    }
    Ok(all)
}

/// Ends what runs on these communicators, within this process, without waiting for any peer. First all are locked and what has
/// been done is noted: that stays done. Then all are revoked: what was still running ends soon, with anything in its memory.
///
/// Nothing is aborted: aborting frees memory of the device, which waits for all that runs there, so that of several communicators the first
/// can wait for the second for ever.
///
/// # Errors
/// NCCL refuses to revoke one of them, the others are revoked; then what it runs may never end, and the process should.
pub fn revoke(communicators: &[Communicator]) -> Result<(), NcclError> {
    let mut locked = lock(communicators.iter());
    for (inner, state) in &mut locked {
        state.note(inner);
    }
    let mut result = Ok(());
    for (inner, state) in &mut locked {
        if state.phase == Phase::Revoked {
            continue;
        }
        let nccl = &inner.nccl;
        #[expect(unsafe_code, reason = "a call of NCCL's function with a handle that lives")]
        // SAFETY: the communicator lives; the flags must be 0.
        let revoked = inner
            .context
            .bind()
            .map(|()| unsafe { (nccl.revoke)(inner.raw, 0) });
        let revoked = revoked
            .map_err(NcclError::from)
            .and_then(|code| nccl.checked("ncclCommRevoke", code, inner.raw));
        state.phase = match revoked {
            Ok(()) => Phase::Revoked,
            Err(_) => Phase::Broken,
        };
        result = result.and(revoked);
    }
    result
}

/// Waits until nothing runs any more on communicators that were revoked: the end of a fence.
///
/// # Errors
/// NCCL reports a failure, or the deadline passed. Then the device may be stuck, and the process should end.
pub fn quiesce(communicators: &[Communicator], deadline: Instant) -> Result<(), NcclError> {
    for communicator in communicators {
        let inner = &communicator.0;
        while !inner.has_settled(&mut inner.state.lock())? {
            if Instant::now() >= deadline {
                return Err(NcclError::Deadline {
                    what: "the end of what was revoked",
                });
            }
            std::thread::sleep(POLL);
        }
    }
    Ok(())
}
