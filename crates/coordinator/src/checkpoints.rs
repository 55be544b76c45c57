//! What the driver knows about the run's checkpoints. Only the [`StoreWatcher`] asks the store.

use crate::inbox::{CheckpointListing, Inbound};
use crate::options::Checkpointing;
use crate::status::checkpoint_status;
use crate::store_watcher::StoreWatcher;
use crate::view::CheckpointHealth;
use std::time::{Instant, SystemTime};
use tokio::sync::mpsc::Sender;
use varuna_plan::{StateId, Step};
use varuna_protocol::Listing;
use varuna_run_folder::{CheckpointEvent, CheckpointStatus};

/// Checkpoints are stale if the newest is older than this many save intervals: one may be on its way to the store, and one may have been
/// skipped because of that.
const STALE_INTERVALS: u64 = 3;

pub(crate) struct Checkpoints {
    /// The job's settings; none if it names no location.
    settings: Option<varuna_api::Checkpoint>,
    watcher: Option<StoreWatcher>,
    listing: CheckpointListing,
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
            events.push(CheckpointEvent::Checkpointed {
                step: id.step,
                state: id,
            });
            self.newest_since = Instant::now();
            self.newest_at = Some(SystemTime::now());
        }
        if let (Some(why), None) = (&listing.failing, &self.listing.failing) {
            events.push(CheckpointEvent::CheckpointsFail {
                why: why.clone(),
                newest_step: newest.map(|id| id.step),
            });
        }
        self.listing = listing;
        if self.listing.answered {
            events.extend(self.update_staleness(step));
        }
        events
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

    pub(crate) fn health(&self) -> Option<CheckpointHealth> {
        self.settings.as_ref().map(|_| CheckpointHealth {
            newest: self.newest().map(|id| id.step),
            newest_at: self.newest_at,
            failing: self.listing.failing.clone(),
            stale: self.stale,
        })
    }

    pub(crate) fn status(&self, step: Step) -> Option<CheckpointStatus> {
        let failing = self.listing.failing.clone();
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
mod tests {
    use super::*;
    use crate::test_job::job;
    use std::time::Duration;
    use varuna_plan::Generation;
    use varuna_plan::state::Chain;

    /// The checkpoints of a job that saves every ten steps, or at this interval in seconds.
    fn checkpoints(interval: &str) -> Checkpoints {
        let job = job(Some(&format!("uri: nowhere, {interval}")));
        let (inbound, _) = tokio::sync::mpsc::channel(1);
        Checkpoints::start(job.checkpoint, None, &inbound)
    }

    fn listed(steps: &[u64], failing: Option<&str>) -> CheckpointListing {
        let state = |step: &u64| StateId {
            run_gen: Generation(1),
            step: Step(*step),
            chain: Chain(*step),
        };
        CheckpointListing {
            answered: true,
            usable: steps.iter().map(state).collect(),
            damaged: vec![],
            newest_generation: Generation(1),
            failing: failing.map(str::to_owned),
            ..CheckpointListing::default()
        }
    }

    fn said(events: &[CheckpointEvent]) -> Vec<String> {
        let word = |event: &CheckpointEvent| match event {
            CheckpointEvent::Checkpointed { step, .. } => format!("checkpoint of {step}"),
            CheckpointEvent::CheckpointsFail { why, .. } => format!("fails: {why}"),
            CheckpointEvent::CheckpointStale { steps_behind, .. } => format!("{steps_behind} behind"),
            CheckpointEvent::ShardMisread { unit, by, .. } => format!("{unit} misread by {by}"),
            CheckpointEvent::CheckpointsTaken { by } => format!("taken by {by}"),
        };
        events.iter().map(word).collect()
    }

    #[test]
    fn each_change_of_the_store_is_said_once() {
        let mut own = checkpoints("intervalSteps: 10");
        assert!(own.usable().is_none(), "nothing is known yet");
        let mut update = |steps: &[u64], failing, at| said(&own.update(listed(steps, failing), Step(at)));
        assert_eq!(update(&[0, 10], None, 12), ["checkpoint of 10"]);
        assert!(update(&[0, 10], None, 40).is_empty(), "three intervals behind");
        assert_eq!(update(&[0, 10], None, 41), ["31 behind"]);
        assert!(update(&[0, 10], None, 60).is_empty(), "said once");
        assert_eq!(update(&[10], Some("full"), 61), ["fails: full"]);
        assert!(update(&[10], Some("full"), 62).is_empty());
        assert_eq!(update(&[10, 60], None, 63), ["checkpoint of 60"]);
        assert_eq!(update(&[10, 60], None, 91), ["31 behind"], "stale anew");
        assert!(own.usable().is_some_and(|listing| listing.fresh));
        assert_eq!(
            own.taken("other".into()).map(|e| said(&[e])),
            Some(vec!["taken by other".into()])
        );
        assert!(own.taken("third".into()).is_none());
    }

    #[test]
    fn a_checkpoint_that_was_given_up_is_not_the_newest() {
        let mut own = checkpoints("intervalSteps: 10");
        own.update(listed(&[10, 20], None), Step(20));
        let newest = |own: &Checkpoints| own.status(Step(20)).and_then(|status| status.newest_step);
        assert_eq!(newest(&own), Some(Step(20)));
        own.set_given_up(listed(&[20], None).usable);
        assert_eq!(newest(&own), Some(Step(10)));
        assert_eq!(own.health().and_then(|health| health.newest), Some(Step(10)));
        assert!(own.update(listed(&[10, 20], None), Step(20)).is_empty());
        let behind = own.update(listed(&[10, 20], None), Step(41));
        assert_eq!(said(&behind), ["31 behind"]);
        let known = own.usable().unwrap().complete;
        assert_eq!(known.len(), 2, "retention sees it");
    }

    #[test]
    fn what_is_known_from_before_a_listing_is_stale_not_failed() {
        let mut own = checkpoints("intervalSteps: 10");
        own.update(listed(&[10], None), Step(10));
        let before = CheckpointListing {
            under_way: true,
            ..listed(&[10], None)
        };
        assert!(own.update(before, Step(10)).is_empty());
        let known = own.usable().unwrap();
        assert_eq!((known.fresh, known.complete.len()), (false, 1));
        own.update(listed(&[10], None), Step(10));
        assert!(own.usable().unwrap().fresh);
    }

    #[test]
    fn by_the_clock_a_checkpoint_is_stale_after_three_intervals() {
        let mut own = checkpoints("intervalSeconds: 60");
        own.update(listed(&[10], None), Step(10));
        for (seconds, behind) in [(170, vec![]), (190, vec!["1 behind".to_owned()])] {
            let since = Instant::now().checked_sub(Duration::from_secs(seconds));
            own.newest_since = since.expect("the machine has run for so long");
            assert_eq!(said(&own.update(listed(&[10], None), Step(11))), behind);
        }
    }
}
