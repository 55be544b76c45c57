//! The right to write at the location: claims it, renews it, also while the store is listed, and knows which other run may have it.

use super::{INTERVAL, Task, limited, unless_requested};
use crate::location_lease::claimant_has_ended;
use crate::store_error;
use std::convert::Infallible;
use std::time::Instant;
use tokio::sync::Notify;
use varuna_checkpoint::{CheckpointError, LEASE, LeaseState, Ownership};

impl Task {
    /// Claims or renews the right to write. Returns whether a request came meanwhile. Renewing it may be repeated, so that a
    /// request may cut it short; claiming it is not cut short, because nothing may begin without it.
    pub(super) async fn renew(&mut self, requests: &Notify) -> bool {
        if self.given.ownership.is_none() {
            self.standing = self.own().await;
            return false;
        }
        let (standing, requested) = unless_requested(requests, self.own()).await;
        self.standing = standing.flatten();
        requested
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
            return renewed(ownership).await;
        }
        let location = self.given.store.location();
        let claim = location.claim(self.given.claim.clone(), claimant_has_ended);
        match limited(LEASE, claim).await {
            Ok(ownership) => {
                self.given.ownership = Some(ownership);
                Some(LeaseState::Owner)
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

/// What a renewal has found; none if the store does not answer.
async fn renewed(ownership: &Ownership) -> Option<LeaseState> {
    let outcome = limited(LEASE, ownership.renew()).await;
    outcome
        .inspect_err(|error| tracing::warn!(%error, "the checkpoint location cannot be claimed now"))
        .ok()
}

/// The result of `work`, which may take longer than the lease lasts: it is renewed meanwhile, and `standing` becomes what the last
/// renewal has found. Without ownership there is nothing to renew.
pub(super) async fn while_renewing<T>(
    ownership: Option<&Ownership>,
    standing: &mut Option<LeaseState>,
    work: impl Future<Output = T>,
) -> T {
    let Some(ownership) = ownership else {
        return work.await;
    };
    tokio::select! {
        done = work => done,
        never = keep(ownership, standing) => match never {},
    }
}

/// Renews the lease again and again.
async fn keep(ownership: &Ownership, standing: &mut Option<LeaseState>) -> Infallible {
    loop {
        tokio::time::sleep(INTERVAL).await;
        *standing = renewed(ownership).await;
    }
}
