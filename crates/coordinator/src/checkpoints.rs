//! What the driver knows about the run's checkpoints. Only the [`StoreWatcher`] asks the store.

use crate::inbox::{CheckpointListing, Inbound};
use crate::options::Checkpointing;
use crate::status::checkpoint_status;
use crate::store_error;
use crate::store_watcher::StoreWatcher;
use crate::upload_failures::UploadFailures;
use crate::view::CheckpointHealth;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::Sender;
use varuna_plan::{StateId, Step, WorkerId};
use varuna_protocol::Listing;
use varuna_run_folder::{CheckpointEvent, CheckpointStatus};

/// Checkpoints are stale if the newest is older than this many save intervals: one may be on its way to the store, and one may have been
/// skipped because of that.
const STALE_INTERVALS: u64 = 3;
/// How long the last checkpoint may take before it is said that the run waits for it. In most runs it is complete within seconds.
const AWAITED_AFTER: Duration = Duration::from_secs(10);

/// The wait for the checkpoint of the last step.
struct Wait {
    since: Instant,
    is_said: bool,
}

pub(crate) struct Checkpoints {
    /// The job's settings; none if it names no location.
    settings: Option<varuna_api::Checkpoint>,
    watcher: Option<StoreWatcher>,
    listing: CheckpointListing,
    uploads: UploadFailures,
    /// It was said last that checkpoints fail.
    said_failing: bool,
    /// Once all steps are done.
    last_awaited: Option<Wait>,
    /// Listed checkpoints that the run has given up, because their bits may be wrong. It never resumes from them.
    given_up: Vec<StateId>,
    /// When the newest checkpoint was first seen.
    newest_since: Instant,
    /// The same, by this machine's clock, for people.
    newest_at: Option<SystemTime>,
    stale: bool,
    /// The run that has taken the location.
    taken_by: Option<String>,
}

impl Checkpoints {
    pub(crate) fn start(
        settings: Option<varuna_api::Checkpoint>,
        store: Option<Checkpointing>,
        inbound: &Sender<Inbound>,
    ) -> Checkpoints {
        Checkpoints {
            settings,
            watcher: store.map(|store| StoreWatcher::start(store, inbound.clone())),
            listing: CheckpointListing::default(),
            uploads: UploadFailures::default(),
            said_failing: false,
            last_awaited: None,
            given_up: Vec::new(),
            newest_since: Instant::now(),
            newest_at: None,
            stale: false,
            taken_by: None,
        }
    }

    /// The task that asks the store; none if the run has no store.
    pub(crate) fn watcher(&self) -> Option<&StoreWatcher> {
        self.watcher.as_ref()
    }

    /// Sets which of the listed checkpoints the run has given up. They stay listed, because retention must see them.
    pub(crate) fn set_given_up(&mut self, given_up: Vec<StateId>) {
        self.given_up = given_up;
    }

    /// The newest checkpoint of a listing that the run can resume from.
    fn newest_of(&self, listing: &CheckpointListing) -> Option<StateId> {
        let usable = listing.usable.iter();
        usable.filter(|id| !self.given_up.contains(id)).max().copied()
    }

    /// The newest checkpoint that the run can resume from.
    fn newest(&self) -> Option<StateId> {
        self.newest_of(&self.listing)
    }

    /// Takes a listing of the store at `step`. Returns what changed.
    pub(crate) fn update(&mut self, listing: CheckpointListing, step: Step) -> Vec<CheckpointEvent> {
        let mut events = Vec::new();
        let newest = self.newest_of(&listing);
        if let Some(id) = newest.filter(|_| newest > self.newest()) {
            // Another job's checkpoint was not made by this run.
            if listing.origin != newest {
                events.push(CheckpointEvent::Checkpointed {
                    step: id.step,
                    state: id,
                });
            }
            self.newest_since = Instant::now();
            self.newest_at = Some(SystemTime::now());
        }
        self.listing = listing;
        events.extend(self.update_failing());
        if self.listing.answered {
            events.extend(self.update_staleness(step));
        }
        events
    }

    /// Notes whether this worker's uploads fail, and why. Returns what changed.
    pub(crate) fn note_uploads(
        &mut self,
        worker: WorkerId,
        name: &str,
        why: Option<&str>,
    ) -> Option<CheckpointEvent> {
        let newest = self.newest();
        let location = &self.settings.as_ref()?.uri;
        match why {
            Some(why) => {
                let why = store_error::summarize(why);
                let text = format!("{name} cannot upload to {location}: {why}");
                self.uploads.failed(worker, text, newest);
            }
            None => self.uploads.work(worker),
        }
        self.update_failing()
    }

    /// Why checkpoints fail; none if they do not. The store's own answer comes first: without it, uploads fail too.
    fn failing(&self) -> Option<String> {
        let store = self.listing.failing.clone();
        store.or_else(|| self.uploads.text(self.newest()))
    }

    /// Reports once that checkpoints fail, and once that they work again.
    fn update_failing(&mut self) -> Option<CheckpointEvent> {
        let failing = self.failing();
        let newest_step = self.newest().map(|id| id.step);
        let was_failing = std::mem::replace(&mut self.said_failing, failing.is_some());
        match (failing, was_failing) {
            (Some(why), false) => Some(CheckpointEvent::CheckpointsFail { why, newest_step }),
            (None, true) => Some(CheckpointEvent::CheckpointsWork { newest_step }),
            (Some(_), true) | (None, false) => None,
        }
    }

    /// Reports once that all steps are done and the run waits for the checkpoint of the last one, if that takes long.
    pub(crate) fn note_end(&mut self, step: Step, last_step: Step) -> Option<CheckpointEvent> {
        let is_saved = self.newest().is_some_and(|id| id.step >= last_step);
        if self.settings.is_none() || step < last_step || is_saved {
            self.last_awaited = None;
            return None;
        }
        let wait = self.last_awaited.get_or_insert_with(|| Wait {
            since: Instant::now(),
            is_said: false,
        });
        if wait.is_said || wait.since.elapsed() < AWAITED_AFTER {
            return None;
        }
        wait.is_said = true;
        Some(CheckpointEvent::LastCheckpointAwaited {
            step: last_step,
            why: self.failing(),
        })
    }

    /// Reports once that checkpoints fall behind, and again only after they have caught up.
    fn update_staleness(&mut self, step: Step) -> Option<CheckpointEvent> {
        let settings = self.settings.as_ref()?;
        let newest_step = self.newest().map_or(Step(0), |id| id.step);
        let steps_behind = step.0.saturating_sub(newest_step.0);
        let steps = STALE_INTERVALS.saturating_mul(settings.regular_steps());
        let seconds = self.newest_since.elapsed().as_secs();
        let old = |interval: u64| seconds > STALE_INTERVALS.saturating_mul(interval);
        let stale = steps_behind > 0 && (steps_behind > steps || settings.interval_seconds.is_some_and(old));
        let was_stale = std::mem::replace(&mut self.stale, stale);
        (stale && !was_stale).then_some(CheckpointEvent::CheckpointStale {
            newest_step,
            steps_behind,
        })
    }

    /// The states that can be resumed from; none while that is not known.
    pub(crate) fn usable(&self) -> Option<Listing> {
        self.listing.answered.then(|| Listing {
            complete: self.listing.usable.clone(),
            damaged: self.listing.damaged.clone(),
            newest_generation: self.listing.newest_generation,
            fresh: self.listing.failing.is_none() && !self.listing.under_way,
        })
    }

    /// Notes that another run has taken the location. Returns what changed.
    pub(crate) fn taken(&mut self, run: String) -> Option<CheckpointEvent> {
        if self.taken_by.is_some() {
            return None;
        }
        self.taken_by = Some(run.clone());
        Some(CheckpointEvent::CheckpointsTaken { by: run })
    }

    /// Bytes of the checkpoints that are on their way to the store, as its last listing shows them.
    pub(crate) fn unfinished_bytes(&self) -> u64 {
        self.listing.unfinished_bytes
    }

    /// Whether the store's last answer was an error, or there is no store. Failing uploads do not count: each is tried again, and may succeed.
    pub(crate) fn store_fails(&self) -> bool {
        self.settings.is_none() || self.listing.failing.is_some()
    }

    pub(crate) fn health(&self) -> Option<CheckpointHealth> {
        self.settings.as_ref().map(|_| CheckpointHealth {
            newest: self.newest().map(|id| id.step),
            newest_at: self.newest_at,
            failing: self.failing(),
            stale: self.stale,
        })
    }

    pub(crate) fn status(&self, step: Step) -> Option<CheckpointStatus> {
        let failing = self.failing();
        let newest = self.newest();
        let settings = self.settings.as_ref();
        settings.map(|_| checkpoint_status(newest, failing, step))
    }

    /// Releases the location, if the store accepts that. Returns the run that has taken it, if any.
    pub(crate) async fn end(&mut self) -> Option<String> {
        if let Some(watcher) = self.watcher.take() {
            watcher.end().await;
        }
        self.taken_by.take()
    }
}

#[cfg(test)]
mod tests;
