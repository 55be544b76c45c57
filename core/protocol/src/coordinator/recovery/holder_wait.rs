//! How long a recovery waits for holders that do not answer, and what it may do once it has waited.
//!
//! The waiting time is that of all coordinators together: the record holds how long earlier ones have waited. Otherwise a recovery whose
//! coordinator is killed again and again would never end. The record holds a duration and not a date, since there is no clock that two
//! processes share.

use super::super::config::Timing;
use super::super::resume::Resume;
use super::super::shared::Shared;
use super::{Action, Collecting};
use crate::message::{Inventory, Time};
use std::time::Duration;
use varuna_plan::WorkerId;

/// A run is given up after this multiple of [`Timing::restore`], even if a holder is connected that does not answer.
const SILENT: u32 = 4;
/// The waiting time is first written to the record after this fraction of [`Timing::restore`], and then each time after twice as long. So a
/// wait costs few writes, and at most half of what a coordinator has waited is lost with it.
const FIRST_NOTE: u32 = 16;

/// How long the recovery has waited for holders.
pub(super) struct HolderWait {
    /// The time waited by earlier coordinators, and by this one until it last wrote it.
    before: Duration,
    /// When this coordinator's wait began.
    began: Time,
    /// The waiting time since then is not in the record yet.
    since: Time,
    /// The waiting time is written once this much of it is not in the record.
    note_after: Duration,
}

impl HolderWait {
    pub(super) fn begin(now: Time, shared: &Shared) -> Self {
        let known = shared.record.stored.waited_ms;
        Self {
            before: Duration::from_millis(if bug!(WaitAnew) { 0 } else { known }),
            began: now,
            since: now,
            note_after: shared.config.timing.restore / FIRST_NOTE,
        }
    }

    fn waited(&self, now: Time, shared: &Shared) -> Duration {
        self.before
            .saturating_add(now.since(self.since.max(resumed_at(shared))))
    }

    /// Whether the wait has lasted for `patience`. This coordinator itself must have waited for at least as long as a worker takes to find
    /// it.
    fn is_over(&self, now: Time, patience: Duration, shared: &Shared) -> bool {
        let own = now.since(self.began.max(resumed_at(shared)));
        let least = patience.min(shared.config.timing.silent);
        (own >= least || bug!(GiveUpAtTakeOver)) && self.waited(now, shared) >= patience
    }
}

impl Collecting {
    /// Writes the waiting time to the record, if that is due.
    pub(super) fn note_wait(&mut self, shared: &Shared, now: Time) -> Action {
        let wait = &mut self.holder_wait;
        let unnoted = now.since(wait.since.max(resumed_at(shared)));
        let planned = shared.record.stored.plan.is_some();
        if unnoted < wait.note_after || !planned || shared.record.delays_writes(now) {
            return Action::Wait;
        }
        wait.before = wait.waited(now, shared);
        wait.since = now;
        wait.note_after *= 2;
        Action::Note(shared.record.with_wait(wait.before))
    }

    /// Whether training may resume here now. A state in memory can be resumed from at once if nothing newer is known. Steps are given up
    /// only after a while, and so is what may have come into the store since it last answered.
    pub(super) fn may_resume(
        &self,
        resume: &Resume,
        missing: &[WorkerId],
        shared: &Shared,
        now: Time,
    ) -> bool {
        let ended = missing.iter().all(|w| shared.roster.has_ended(*w)) || bug!(GiveUpStepsAtOnce);
        // State held by the workers of a stopped run went with them or returns with them, so it is not waited for.
        let ended = ended || shared.record.stored.is_stopped();
        let waited = self.holder_wait.is_over(now, patience(missing, shared), shared);
        let newest = (resume.tip && !self.may_be_far_behind(shared)) || ended || waited;
        let confirmed = !resume.checkpoint || self.is_listing_fresh() || waited;
        newest && confirmed && (self.listing.is_some() || !resume.checkpoint)
    }

    /// Whether everything that is known may be far behind the run: workers that train under a plan of an earlier coordinator may not have
    /// found this one yet. A checkpoint that they have put says little about how far they are, and a newcomer holds nothing.
    ///
    /// Every commit needs every member, so a single member that answers now, or was heard before, shows how far all are. A member that has
    /// left the plan for the next one and no longer holds anything does not.
    fn may_be_far_behind(&self, shared: &Shared) -> bool {
        let record = &shared.record.stored;
        let inherited = record.plan.as_ref().filter(|_| shared.record.is_inherited());
        let Some(plan) = inherited.filter(|_| !bug!(CheckpointIsNewestForNewcomers)) else {
            return false;
        };
        let heard = shared.progress.best.run_gen >= plan.generation;
        let knows = |(worker, inventory): (&WorkerId, &Inventory)| {
            let ran = inventory.ran.is_some_and(|r| r.generation >= plan.generation);
            ran || (plan.has(*worker) && (record.next.is_none() || !inventory.units.is_empty()))
        };
        !heard && !self.answers.iter().any(knows)
    }

    /// Whether the run may be given up. This needs a fresh answer from the store, and that all workers that may hold state have been gone
    /// for long, including those that no plan names any more; or a still longer wait.
    pub(super) fn may_give_up(&self, mut missing: Vec<WorkerId>, shared: &Shared, now: Time) -> bool {
        let answered = |w: &WorkerId| self.answers.contains_key(w);
        missing.extend(shared.roster.workers.keys().filter(|w| !answered(w)));
        let timing = &shared.config.timing;
        let waited = |patience: Duration| self.holder_wait.is_over(now, patience, shared);
        let gone = |w: &WorkerId| is_certainly_lost(*w, shared, now);
        let all_gone = !missing.is_empty() && missing.iter().all(gone);
        let longest = waited((timing.restore * SILENT).max(timing.lost)) || bug!(GiveUpOnConnected);
        // State that the last workers put may still be on its way to the store.
        let put = shared.config.final_checkpoint && !bug!(GiveUpBeforeUploads);
        let all_gone = all_gone && (!put || waited(timing.restore));
        let just_now = now <= self.confirmed_at.after(timing.ask_again * 3) || bug!(TrustOldListing);
        self.is_listing_fresh() && just_now && (all_gone || longest)
    }

    /// Whether all committed steps may be given up, if the user allows it. Permission is no reason to hurry: holders are waited for as long
    /// as without it, until the run would end. Workers of a run that was stopped in order have nothing to come back with.
    pub(super) fn may_begin_anew(&self, missing: &[WorkerId], shared: &Shared, now: Time) -> bool {
        // If a lost run ends as soon as steps may be given up, the wait in [`Collecting::may_resume`] is enough.
        let waits_for_lost = !shared.config.timing.lost.is_zero() && !bug!(BeginAnewAtOnce);
        let stopped = shared.record.stored.is_stopped();
        shared.may_begin_anew
            && (stopped || !waits_for_lost || self.may_give_up(missing.to_vec(), shared, now))
    }

    pub(super) fn is_listing_fresh(&self) -> bool {
        bug!(TrustOldListing) || self.listing.as_ref().is_some_and(|l| l.fresh)
    }
}

/// How long to wait for holders that do not answer. Longer if one is connected: it was paused, or its engine is busy, after which its
/// process ends by itself.
fn patience(missing: &[WorkerId], shared: &Shared) -> Duration {
    let connected = |w: &WorkerId| {
        let is = shared.roster.status(*w).is_some() && !bug!(GiveUpOnConnected);
        is || bug!(WaitForDeadAsForSilent)
    };
    let Timing {
        restore, unanswered, ..
    } = shared.config.timing;
    if missing.iter().any(connected) {
        unanswered.max(restore)
    } else {
        restore
    }
}

/// Whether the worker has ended, or its stream has been down for so long that state held only by it is lost. For a worker that left before
/// this coordinator started, the total waiting time counts, since it is not known to have gone.
fn is_certainly_lost(worker: WorkerId, shared: &Shared, now: Time) -> bool {
    let timing = &shared.config.timing;
    let away = if bug!(GiveUpBeforeRestore) {
        timing.grace
    } else {
        timing.restore.max(timing.grace).max(timing.lost)
    };
    let down = shared.roster.disconnected_at(worker).max(resumed_at(shared));
    shared.roster.is_disconnected(worker) && (shared.roster.has_ended(worker) || now > down.after(away))
}

/// Waiting is counted from this time: while the coordinator itself was paused, nobody could come back or answer.
fn resumed_at(shared: &Shared) -> Time {
    if bug!(CountOwnPauseAsWaiting) {
        Time(0)
    } else {
        shared.resumed_at
    }
}
