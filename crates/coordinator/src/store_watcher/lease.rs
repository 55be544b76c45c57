//! The right to write at the location: claims it, renews it whatever else the store is asked, and knows which other run may have it.

use super::{INTERVAL, Task, unless_requested};
use crate::location_lease::claimant_has_ended;
use crate::store_error;
use std::time::Instant;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use varuna_checkpoint::{CheckpointError, LEASE, LeaseState, Ownership, answer_within};

/// The renewals of a lease, in a task of their own. In a store that takes seconds for each of its requests a renewal takes a good part of the
/// lease, and whatever else the watcher is asked or asks meanwhile must not delay it or cut it short. The task ends when this is dropped.
pub(super) struct Renewals {
    /// What the last one has found; none if the store did not answer.
    found: watch::Receiver<Option<LeaseState>>,
    /// Whether anything was found yet, by the claim or by a renewal.
    has_found: bool,
    pub(super) task: JoinHandle<()>,
}

impl Renewals {
    /// Begins to renew. `known`: what the claim has found, if it was just made.
    fn start(ownership: Ownership, known: Option<LeaseState>) -> Renewals {
        let has_found = known.is_some();
        let (find, found) = watch::channel(known);
        Renewals {
            found,
            has_found,
            task: tokio::spawn(keep(ownership, has_found, find)),
        }
    }

    /// Waits until something is found, if nothing was yet.
    async fn first(&mut self) {
        if !self.has_found {
            // An error means that the task has ended, as after a panic.
            let _ = self.found.changed().await;
            self.has_found = true;
        }
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Task {
    /// Claims the right to write, or takes what its renewals have found. Returns whether a request came meanwhile. A request cuts short only
    /// the waiting for the first renewal, not the renewal; claiming is not cut short, because nothing may begin without it.
    pub(super) async fn renew(&mut self, requests: &Notify) -> bool {
        let Some(ownership) = self.given.ownership.clone() else {
            self.standing = self.own().await;
            return false;
        };
        let renewals = self
            .renewals
            .get_or_insert_with(|| Renewals::start(ownership, None));
        let (_, requested) = unless_requested(requests, renewals.first()).await;
        self.note_renewals();
        requested
    }

    /// Takes what the renewals have found. If they have ended, as after a panic, nothing is known any more, and others begin.
    pub(super) fn note_renewals(&mut self) {
        let Some(renewals) = &self.renewals else {
            return;
        };
        if renewals.task.is_finished() {
            tracing::error!(
                "the renewal of the right to write to the checkpoint location has ended; it begins again"
            );
            self.standing = None;
            let ownership = self.given.ownership.clone();
            self.renewals = ownership.map(|ownership| Renewals::start(ownership, None));
            return;
        }
        self.standing.clone_from(&renewals.found.borrow());
    }

    /// Ends once a renewal has found another owner; never without renewals.
    pub(super) fn deposed(&self) -> impl Future<Output = ()> + use<> {
        let found = self.renewals.as_ref().map(|renewals| renewals.found.clone());
        async move {
            let is_lost = |state: &Option<LeaseState>| {
                matches!(state, Some(LeaseState::Succeeded | LeaseState::Taken(_)))
            };
            let Some(mut found) = found else {
                return std::future::pending().await;
            };
            // An error means that the renewals have ended, as after a panic.
            let is_deposed = found.wait_for(is_lost).await.is_ok();
            if !is_deposed {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The other run that may still write to the location. Nothing begins until that is settled: otherwise each run would resume from the
    /// other's states.
    pub(super) fn other_owner(&self) -> Option<&str> {
        let refused = self.refused.as_ref().filter(|_| self.given.ownership.is_none());
        refused.map(|(_, run)| run.as_str())
    }

    /// Why nothing may begin yet: the location is another run's, or it is not known whether it is. None once this run has claimed it.
    pub(super) fn unclaimed(&self) -> Option<String> {
        if self.given.ownership.is_some() {
            return None;
        }
        Some(match (self.other_owner(), &self.claim_failed) {
            (Some(run), _) => {
                format!("run {run} owns the checkpoint location; waiting until its lease expires")
            }
            (None, Some(why)) => format!("the checkpoint location cannot be claimed: {why}"),
            (None, None) => "the checkpoint location is not claimed yet".to_owned(),
        })
    }

    /// Claims or renews the right to write; none if the store does not answer. What takes longer than a lease lasts is not waited for. A
    /// claim that is given up may have reached the store; the next one finds it and follows it.
    pub(super) async fn own(&mut self) -> Option<LeaseState> {
        if let Some(ownership) = &self.given.ownership {
            return renewed(ownership).await.0;
        }
        let location = self.given.store.location();
        let claim = location.claim(self.given.claim.clone(), claimant_has_ended);
        match answer_within(LEASE, claim).await {
            Ok(ownership) => {
                let owner = Some(LeaseState::Owner);
                self.renewals = Some(Renewals::start(ownership.clone(), owner.clone()));
                self.given.ownership = Some(ownership);
                owner
            }
            Err(CheckpointError::Owned { run, .. }) => {
                // An owner that was killed does not renew its lease; one that is alive does.
                let (since, _) = self.refused.get_or_insert_with(|| (Instant::now(), run.clone()));
                let is_alive = since.elapsed() >= LEASE + 2 * INTERVAL;
                is_alive.then_some(LeaseState::Taken(run))
            }
            Err(error) => {
                tracing::warn!(%error, "the checkpoint location cannot be claimed now");
                self.claim_failed = Some(store_error::summarize(&error.to_string()));
                None
            }
        }
    }
}

/// What a renewal has found, and since when at the least a lease that it has written lasts. Nothing is found if the store does not answer
/// before a new lease would have ended.
async fn renewed(ownership: &Ownership) -> (Option<LeaseState>, tokio::time::Instant) {
    let mut since = tokio::time::Instant::now();
    let renewal = ownership.renew_noting(|| since = tokio::time::Instant::now());
    let outcome = answer_within(LEASE, renewal).await;
    let found = outcome
        .inspect_err(|error| tracing::warn!(%error, "the checkpoint location cannot be claimed now"))
        .ok();
    (found, since)
}

/// Renews the lease again and again. Once the lease has ended, this run must not take itself for the owner until a renewal is done. That
/// renewal goes on meanwhile: one that is begun anew would be done later still. `claimed`: the lease has just begun.
async fn keep(ownership: Ownership, claimed: bool, find: watch::Sender<Option<LeaseState>>) {
    let mut began = tokio::time::Instant::now();
    let mut end = began + LEASE;
    if claimed {
        tokio::time::sleep_until(began + INTERVAL).await;
    }
    loop {
        began = tokio::time::Instant::now();
        let renewal = renewed(&ownership);
        tokio::pin!(renewal);
        let (found, since) = tokio::select! {
            biased;
            done = &mut renewal => done,
            () = tokio::time::sleep_until(end) => {
                // What is known of another owner is still true.
                find.send_if_modified(|found| found.take_if(|found| *found == LeaseState::Owner).is_some());
                renewal.await
            }
        };
        if found == Some(LeaseState::Owner) {
            end = since + LEASE;
        }
        find.send_replace(found);
        tokio::time::sleep_until(began + INTERVAL).await;
    }
}
