//! Frees communicators on a thread of its own: a call that frees one can block for ever when a peer is gone.

use crate::POLL;
use crate::context::Context;
use crate::nccl::{IN_PROGRESS, Nccl, SUCCESS};
use cudarc::nccl::sys::ncclComm_t;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long what runs on a communicator may take to end, before it is aborted.
const FLUSH: Duration = Duration::from_secs(2);
/// How often the thread checks whether its owner still exists.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How a communicator is freed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freeing {
    /// Flush it first: nothing is wrong with it.
    Finalize,
    /// Free it without a flush: it was revoked, so that its operations end soon.
    Destroy,
    /// Abort it: its ranks never met, or it has failed.
    Abort,
}

struct Job {
    context: Arc<Context>,
    nccl: Arc<Nccl>,
    raw: ncclComm_t,
    way: Freeing,
}

#[expect(unsafe_code, reason = "the handle has no other owner any more")]
// SAFETY: as the reason says; NCCL's communicators belong to no thread.
unsafe impl Send for Job {}

#[derive(Default)]
struct Work {
    waiting: VecDeque<Job>,
    /// Since when the thread is at one.
    since: Option<Instant>,
}

/// The thread that frees communicators, one after the other. As many wait as there were communicators.
pub struct Reaper {
    work: Mutex<Work>,
    changed: Condvar,
}

impl Reaper {
    /// Starts the thread, which ends when the reaper is dropped and nothing waits.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start() -> std::io::Result<Arc<Reaper>> {
        let reaper = Arc::new(Reaper {
            work: Mutex::default(),
            changed: Condvar::new(),
        });
        let own = Arc::downgrade(&reaper);
        std::thread::Builder::new()
            .name("reaper".into())
            .spawn(move || run(&own))?;
        Ok(reaper)
    }

    pub(crate) fn take(&self, (context, nccl): (&Arc<Context>, &Arc<Nccl>), raw: ncclComm_t, way: Freeing) {
        let job = Job {
            context: Arc::clone(context),
            nccl: Arc::clone(nccl),
            raw,
            way,
        };
        self.work.lock().waiting.push_back(job);
        self.changed.notify_all();
    }

    /// Whether the thread has been at one communicator for longer than `limit`. It will hardly come back: memory and threads of the dead
    /// communicator stay, and the device may be stuck. The process should end and be replaced.
    #[must_use]
    pub fn is_overdue(&self, limit: Duration) -> bool {
        self.work
            .lock()
            .since
            .is_some_and(|since| since.elapsed() > limit)
    }

    /// Waits until everything is freed; false if the deadline passed.
    pub fn wait_until_idle(&self, deadline: Instant) -> bool {
        let mut work = self.work.lock();
        while work.since.is_some() || !work.waiting.is_empty() {
            if self.changed.wait_until(&mut work, deadline).timed_out() {
                return work.since.is_none() && work.waiting.is_empty();
            }
        }
        true
    }
}

fn run(reaper: &Weak<Reaper>) {
    while let Some(reaper) = reaper.upgrade() {
        let mut work = reaper.work.lock();
        let Some(job) = work.waiting.pop_front() else {
            reaper.changed.wait_for(&mut work, POLL_INTERVAL);
            continue;
        };
        work.since = Some(Instant::now());
        drop(work);
        free(&job);
        reaper.work.lock().since = None;
        reaper.changed.notify_all();
    }
}

#[expect(unsafe_code, reason = "the last calls with a handle that nobody else has")]
fn free(job: &Job) {
    // A device that is gone has nothing to free.
    if job.context.bind().is_err() {
        return;
    }
    let nccl = &job.nccl;
    // SAFETY: the communicator lives and is used by nobody else; exactly one of destroy and abort ends it. What they return changes
    // nothing: there is nobody left to tell.
    unsafe {
        let orderly = match job.way {
            Freeing::Abort => false,
            // What ran on it ends first.
            Freeing::Destroy => quiesces(nccl, job.raw),
            Freeing::Finalize => {
                let begun = (nccl.finalize)(job.raw);
                [SUCCESS, IN_PROGRESS].contains(&begun) && quiesces(nccl, job.raw)
            }
        };
        let _ = match orderly {
            true => (nccl.destroy)(job.raw),
            false => (nccl.abort)(job.raw),
        };
    }
}

/// Waits until what NCCL does with the communicator in the background has ended; whether it ended well and in time.
fn quiesces(nccl: &Nccl, communicator: ncclComm_t) -> bool {
    let begun = Instant::now();
    loop {
        match nccl.has_settled(communicator) {
            Ok(true) => return true,
            Ok(false) if begun.elapsed() < FLUSH => std::thread::sleep(POLL),
            Ok(false) | Err(_) => return false,
        }
    }
}
