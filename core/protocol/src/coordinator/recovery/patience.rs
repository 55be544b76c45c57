//! How long a recovery waits for holders that do not answer, and what may follow once it has waited.
//!
//! The wait is that of all coordinators together: what an earlier one has waited stands in the record. It is measured and not dated,
//! since the machine knows no clock that two processes share. A coordinator that is killed again and again would else never come to its end.

use super::super::config::Timing;
use super::super::resume::Resume;
use super::super::shared::Shared;
use super::{Collecting, Step};
use crate::message::{Inventory, Time};
use std::time::Duration;
use varuna_plan::WorkerId;

/// A run is given up after so many times [`Timing::restore`] although a holder is connected that does not answer.
const SILENT: u32 = 4;
/// The first note of the wait in the record comes after this part of [`Timing::restore`], each later one after twice the time. So a wait
/// costs few writes, and of what a coordinator waited no more than half is lost with it.
const FIRST_NOTE: u32 = 16;

/// For how long holders have been waited for.
pub(super) struct Patience {
    /// By coordinators before this one, and by this one until its last note.
    before: Duration,
    /// When this coordinator's wait began.
    began: Time,
    /// Since when it is not noted.
    since: Time,
    /// It is noted once so much is not.
    note_after: Duration,
}

impl Patience {
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

    /// It was waited for so long. This coordinator itself has to have waited for as long as it takes a worker to find it.
    fn is_over(&self, now: Time, patience: Duration, shared: &Shared) -> bool {
        let own = now.since(self.began.max(resumed_at(shared)));
        let least = patience.min(shared.config.timing.silent);
        (own >= least || bug!(GiveUpAtTakeOver)) && self.waited(now, shared) >= patience
    }
}

impl Collecting {
    /// Notes the wait where that is due.
    pub(super) fn note_wait(&mut self, shared: &Shared, now: Time) -> Step {
        let patience = &mut self.patience;
        let unnoted = now.since(patience.since.max(resumed_at(shared)));
        let planned = shared.record.stored.plan.is_some();
        if unnoted < patience.note_after || !planned || shared.record.delays_writes(now) {
            return Step::Wait;
        }
        patience.before = patience.waited(now, shared);
        patience.since = now;
        patience.note_after *= 2;
        Step::Note(shared.record.with_wait(patience.before))
    }

    /// What is in memory and nothing newer is known of can be resumed from at once. Steps are given up only after a while; so is
    /// what the store may have since it last answered.
    pub(super) fn may_resume(
        &self,
        resume: &Resume,
        missing: &[WorkerId],
        shared: &Shared,
        now: Time,
    ) -> bool {
        let ended = missing.iter().all(|w| shared.roster.has_ended(*w)) || bug!(GiveUpStepsAtOnce);
        // What those of a stopped run held went with them, or comes with them: it is not waited for.
        let ended = ended || shared.record.stored.is_stopped();
        let waited = self.patience.is_over(now, patience(missing, shared), shared);
        let newest = (resume.tip && !self.may_be_far_behind(shared)) || ended || waited;
        let confirmed = !resume.checkpoint || self.is_listing_fresh() || waited;
        newest && confirmed && (self.listing.is_some() || !resume.checkpoint)
    }

    /// Whatever is known may be far behind: those who train under a plan that an earlier coordinator made may not have found this one yet. A
    /// checkpoint that they have put says little of how far they are, and who has just come holds nothing.
    ///
    /// Every commit needs every member, so that one member that answers, or was heard before, shows how far all are. One that has left the plan
    /// for the next one, and holds nothing any more, does not.
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

    /// Only by what the store says now, and when all who may hold state are gone for long: also those whom no plan names any more.
    pub(super) fn may_give_up(&self, mut missing: Vec<WorkerId>, shared: &Shared, now: Time) -> bool {
        let answered = |w: &WorkerId| self.answers.contains_key(w);
        missing.extend(shared.roster.workers.keys().filter(|w| !answered(w)));
        let timing = &shared.config.timing;
        let waited = |patience: Duration| self.patience.is_over(now, patience, shared);
        let gone = |w: &WorkerId| is_long_gone(*w, shared, now);
        let all_gone = !missing.is_empty() && missing.iter().all(gone);
        let longest = waited((timing.restore * SILENT).max(timing.lost)) || bug!(GiveUpOnConnected);
        // What the last ones put may still be on its way to the store.
        let put = shared.config.final_checkpoint && !bug!(GiveUpBeforeUploads);
        let all_gone = all_gone && (!put || waited(timing.restore));
        let just_now = now <= self.confirmed_at.after(timing.ask_again * 3) || bug!(TrustOldListing);
        self.is_listing_fresh() && just_now && (all_gone || longest)
    }

    /// Whether all committed steps may be given up, where the user allows it. Permission is no reason to hurry: holders are waited for as long as
    /// without it, when the run would end. Those of a run that was stopped in order have nothing to come back with.
    pub(super) fn may_begin_anew(&self, missing: &[WorkerId], shared: &Shared, now: Time) -> bool {
        // Where a lost run ends as soon as steps may be given up, waiting for that ([`Collecting::may_resume`]) is enough.
        let waits_for_lost = !shared.config.timing.lost.is_zero() && !bug!(BeginAnewAtOnce);
        let stopped = shared.record.stored.is_stopped();
        shared.may_begin_anew
            && (stopped || !waits_for_lost || self.may_give_up(missing.to_vec(), shared, now))
    }

    pub(super) fn is_listing_fresh(&self) -> bool {
        bug!(TrustOldListing) || self.listing.as_ref().is_some_and(|l| l.fresh)
    }
}

/// How long holders are waited for that do not answer. Longer where one is connected: it was paused, or what it has in hand
/// takes its time, after which its process ends by itself.
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

/// The worker has ended, or its stream has been down for so long that what only it holds is lost. Who went before this coordinator came
/// is not known to have gone: for them counts how long was waited in all.
fn is_long_gone(worker: WorkerId, shared: &Shared, now: Time) -> bool {
    let timing = &shared.config.timing;
    let away = if bug!(GiveUpBeforeRestore) {
        timing.grace
    } else {
        timing.restore.max(timing.grace).max(timing.lost)
    };
    let down = shared.roster.disconnected_at(worker).max(resumed_at(shared));
    shared.roster.is_disconnected(worker) && (shared.roster.has_ended(worker) || now > down.after(away))
}

/// While the coordinator itself was paused nobody could come back or answer: time counts from here.
fn resumed_at(shared: &Shared) -> Time {
    if bug!(CountOwnPauseAsWaiting) {
        Time(0)
    } else {
        shared.resumed_at
    }
}
