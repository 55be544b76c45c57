//! The task that asks the checkpoint store which checkpoints can be resumed from. It also deletes old ones, completes those of which only the
//! manifest is missing, and reads what workers doubt.
//!
//! The driver never waits for the store. While the store is slow or fails, the answer is the last known one, so that a recovery from memory
//! does not depend on the store.

mod checks;
mod deletion;
mod lease;
mod second_reading;
mod unfinished;

use crate::inbox::{CheckpointListing, Inbound};
use crate::options::Checkpointing;
use crate::store_error;
use checks::CheckpointCheck;
pub(crate) use deletion::Needs;
use deletion::PRUNE_TIMEOUT;
use lease::Renewals;
use second_reading::SecondReading;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;
use tokio::sync::{Notify, watch};
use unfinished::Unfinished;
use varuna_checkpoint::{CheckpointError, LeaseState, Listed, answer_within};
use varuna_plan::StateId;

/// How often the store is listed without a request.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long a recovery waits for a fresh answer if an older one is known.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the store may send nothing while it is listed. The whole may take minutes: it has as many pages as the store has thousands of
/// files.
const LIST_SILENCE: Duration = Duration::from_secs(30);
/// How long the checks of what was listed may take, and the deletion of a damaged checkpoint before. What is done by then stays done.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a store that has never answered is left alone between two requests.
const PAUSE: Duration = Duration::from_secs(1);
/// How long releasing the location may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// The handle to the task.
pub(crate) struct StoreWatcher {
    requests: Arc<Notify>,
    end: Arc<Notify>,
    task: tokio::task::JoinHandle<()>,
    /// Which checkpoints the run needs; none until its record was read.
    needs: watch::Sender<Option<Needs>>,
    /// A damaged checkpoint that is to be deleted.
    discarded: watch::Sender<Option<StateId>>,
}

impl StoreWatcher {
    /// Starts the task. It sends its answers to `inbound`, and ends when that is closed.
    pub(crate) fn start(given: Checkpointing, inbound: Sender<Inbound>) -> StoreWatcher {
        let (requests, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (needs, needed) = watch::channel(None);
        let (discarded, discards) = watch::channel(None);
        let state = Task::new(given, needed, discards);
        let task = tokio::spawn(state.run(Arc::clone(&requests), Arc::clone(&end), inbound));
        StoreWatcher {
            requests,
            end,
            task,
            needs,
            discarded,
        }
    }

    /// Releases the location, if the store accepts that in time. Otherwise the next run waits until this run's lease has expired.
    pub(crate) async fn end(self) {
        self.end.notify_one();
        let _ = tokio::time::timeout(RELEASE_TIMEOUT, self.task).await;
    }

    /// Asks for a fresh listing.
    pub(crate) fn list_now(&self) {
        self.requests.notify_one();
    }

    /// Deletes what is left of a checkpoint, if it is marked as damaged, and lists the store again.
    pub(crate) fn discard(&self, id: StateId) {
        // An error means that the task has ended.
        let _ = self.discarded.send(Some(id));
        self.list_now();
    }

    /// The last value of `set_needs`.
    #[cfg(test)]
    pub(crate) fn needs(&self) -> Option<Needs> {
        self.needs.borrow().clone()
    }

    /// Sets which checkpoints the run needs. Before this is known, none is deleted.
    pub(crate) fn set_needs(&self, needs: Needs) {
        // An error means that the task has ended.
        let _ = self.needs.send(Some(needs));
    }
}

/// The result of `work`, and whether a request came meanwhile. From the request on, `work` may take [`REQUEST_TIMEOUT`]; after that there
/// is no result.
async fn unless_requested<T>(requests: &Notify, work: impl Future<Output = T>) -> (Option<T>, bool) {
    tokio::pin!(work);
    tokio::select! {
        done = &mut work => return (Some(done), false),
        () = requests.notified() => {}
    }
    (tokio::time::timeout(REQUEST_TIMEOUT, work).await.ok(), true)
}

struct Task {
    given: Checkpointing,
    needed: watch::Receiver<Option<Needs>>,
    discards: watch::Receiver<Option<StateId>>,
    /// Each checkpoint is checked once.
    verdicts: BTreeMap<StateId, CheckpointCheck>,
    unfinished: Unfinished,
    /// Of the shards that workers doubt.
    second_reading: SecondReading,
    /// What the last listing showed; none once old checkpoints were deleted by it.
    listed: Option<Vec<Listed>>,
    listing: CheckpointListing,
    standing: Option<LeaseState>,
    /// Once this run has claimed the location, or was given the claim.
    renewals: Option<Renewals>,
    /// Whether the log already says with which other job's checkpoint this one begins.
    said_origin: bool,
    /// Whether the settings were compared with those of the checkpoints that the job had at the start.
    compared_settings: bool,
    /// If another run's claim was found: when first, and whose it is.
    refused: Option<(Instant, String)>,
    /// Why the last claim failed, other than by another run's.
    claim_failed: Option<String>,
}

impl Task {
    fn new(
        given: Checkpointing,
        needed: watch::Receiver<Option<Needs>>,
        discards: watch::Receiver<Option<StateId>>,
    ) -> Task {
        Task {
            given,
            needed,
            discards,
            verdicts: BTreeMap::new(),
            unfinished: Unfinished::default(),
            second_reading: SecondReading::default(),
            listed: None,
            listing: CheckpointListing::default(),
            standing: None,
            renewals: None,
            said_origin: false,
            compared_settings: false,
            refused: None,
            claim_failed: None,
        }
    }

    async fn run(mut self, requests: Arc<Notify>, end: Arc<Notify>, inbound: Sender<Inbound>) {
        let mut owned: Option<Instant> = None;
        let mut pruned = tokio::time::Instant::now();
        // Whether a request came while something else was done.
        let mut requested = false;
        loop {
            // By the clock, because requests may come without pause, and another run's claim must be noticed.
            if !requested && owned.is_none_or(|at| at.elapsed() >= INTERVAL) {
                owned = Some(Instant::now());
                requested = self.renew(&requests).await;
                if let Some(LeaseState::Taken(run)) = &self.standing {
                    let _ = inbound.send(Inbound::LocationTaken(run.clone())).await;
                }
            }
            let by_request = std::mem::take(&mut requested)
                || tokio::select! {
                    () = requests.notified() => true,
                    () = tokio::time::sleep(INTERVAL) => false,
                    () = end.notified() => return self.give_up().await,
                };
            let listing = tokio::select! {
                listing = self.look(by_request, &requests, &inbound) => listing,
                () = end.notified() => return self.give_up().await,
            };
            self.read_doubted(&inbound);
            let pause = !listing.answered;
            // At the end of the run the driver reads no messages any more.
            let sent = tokio::select! {
                sent = inbound.send(Inbound::Checkpoints(listing)) => sent.is_ok(),
                () = end.notified() => return self.give_up().await,
            };
            if !sent {
                return;
            }
            if pause {
                // While it is not known whether there is a checkpoint, requests come without pause.
                tokio::time::sleep(PAUSE).await;
            }
            // By the clock too: while workers are lost often, a checkpoint is ordered within seconds of the last one, and asked for until it is there.
            if !by_request || pruned.elapsed() >= INTERVAL {
                pruned = tokio::time::Instant::now();
                requested = tokio::select! {
                    (_, requested) = unless_requested(&requests, self.prune(PRUNE_TIMEOUT)) => requested,
                    () = end.notified() => return self.give_up().await,
                };
            }
        }
    }

    async fn give_up(mut self) {
        // One that comes after the release would claim the location once more.
        self.renewals = None;
        self.standing = self.own().await;
        // A run that claims it only now has begun to renew it.
        self.renewals = None;
        // At the end only the configured number remains, unless that takes long: the next run should not have to wait for it.
        self.prune_at_end(RELEASE_TIMEOUT / 2).await;
        if let Some(ownership) = &self.given.ownership
            && let Err(error) = ownership.release().await
        {
            tracing::warn!(%error, "the checkpoint location is not released");
        }
    }

    /// What is known after another look at the store. A request that comes meanwhile is answered with what was known before, if that takes
    /// long, and the listing goes on. Recoveries ask without pause: if each request began a listing anew, a store that takes longer to list
    /// than a request waits would never be listed.
    async fn look(
        &mut self,
        by_request: bool,
        requests: &Notify,
        inbound: &Sender<Inbound>,
    ) -> CheckpointListing {
        if let Some(why) = self.unclaimed() {
            return CheckpointListing {
                failing: Some(why),
                ..CheckpointListing::default()
            };
        }
        let before = CheckpointListing {
            under_way: true,
            ..self.listing.clone()
        };
        let work = self.list(by_request);
        tokio::pin!(work);
        let mut requested = by_request;
        loop {
            if requested && before.answered {
                match tokio::time::timeout(REQUEST_TIMEOUT, &mut work).await {
                    Ok(listing) => return listing,
                    // An error means that the driver has ended, which the next message finds too.
                    Err(_) => drop(inbound.send(Inbound::Checkpoints(before.clone())).await),
                }
            }
            tokio::select! {
                listing = &mut work => return listing,
                () = requests.notified() => requested = true,
            }
        }
    }

    /// The present knowledge.
    async fn list(&mut self, requested: bool) -> CheckpointListing {
        let found = self.find(requested).await;
        let failing = match found {
            Ok(found) => {
                self.listing.answered = true;
                (self.listing.usable, self.listing.damaged) = found;
                None
            }
            Err(error) => Some(store_error::summarize(&error.to_string())),
        };
        if let Some(why) = failing
            .as_ref()
            .filter(|why| self.listing.failing.as_ref() != Some(*why))
        {
            tracing::warn!(why, "the checkpoint store cannot be asked");
        }
        self.listing.failing = failing;
        self.listing.clone()
    }

    /// Lists the store and checks what it shows: the checkpoints that can be resumed from, and the damaged ones. This may take much longer
    /// than the lease lasts, which is renewed meanwhile, and only who still has it after the listing writes.
    async fn find(&mut self, requested: bool) -> Result<(Vec<StateId>, Vec<StateId>), CheckpointError> {
        let all = self.all().await;
        self.note_renewals();
        let usable = answer_within(CHECK_TIMEOUT, self.usable(all?, requested, CHECK_TIMEOUT / 2)).await;
        self.note_renewals();
        usable
    }

    /// All checkpoints in the store, after the deletion of the damaged one that is to be put again.
    async fn all(&mut self) -> Result<Vec<Listed>, CheckpointError> {
        answer_within(CHECK_TIMEOUT, self.discard()).await?;
        self.given.store.location().list_within(LIST_SILENCE).await
    }
}

#[cfg(test)]
mod tests;
