//! Handles listings of the checkpoint store, and which of the checkpoints the run needs.

use super::Driver;
use crate::inbox::CheckpointListing;
use crate::store_watcher::Needs;
use varuna_plan::{Base, StateId, WorkerId};
use varuna_protocol::coordinator::{CoordinatorInput, Outcome};
use varuna_protocol::{Listing, Report, RunMode};

impl Driver {
    /// Takes a listing of the checkpoint store: reports changes to people, and passes to the state machine what it can resume from.
    pub(super) fn take_listing(&mut self, listing: CheckpointListing) {
        let run = self.machine.run();
        let step = run.step;
        let given_up = self.given_up(&listing.usable);
        self.checkpoints.set_given_up(given_up);
        let mut events = self.checkpoints.update(listing, step);
        events.extend(self.checkpoints.note_end(step, run.last_step));
        for event in events {
            self.log_checkpoint(event);
        }
        if let Some(usable) = self.checkpoints.usable() {
            self.feed(CoordinatorInput::Checkpoints(usable));
        }
        // The state machine knows only now which of the new ones are extra.
        self.send_needs();
    }

    /// Takes a worker's report, and why its uploads fail, if it says so with its status.
    pub(super) fn take_report(&mut self, from: WorkerId, report: Report, failure: Option<&str>) {
        if let (Report::Status(_), Some(stream)) = (&report, self.streams.get(from)) {
            let name = &stream.hello.name;
            if let Some(event) = self.checkpoints.note_uploads(from, name, failure) {
                self.log_checkpoint(event);
            }
        }
        self.feed(CoordinatorInput::Report { from, report });
    }

    /// Tells the store watcher which checkpoints the run needs, with each listing and as soon as the record changes. A plan may start from
    /// a checkpoint that becomes too old to be kept once another upload completes.
    pub(super) fn send_needs(&mut self) {
        self.needs_told = self.machine.record().version;
        // Before the record is read, it is not known what the run needs.
        let is_known = self.machine.run().mode != RunMode::Starting;
        let Some(usable) = self.checkpoints.usable().filter(|_| is_known) else {
            return;
        };
        let needs = self.needs(&usable);
        // A rollback may have given up the newest one since the listing.
        self.checkpoints.set_given_up(needs.void.clone());
        if let Some(watcher) = self.checkpoints.watcher() {
            watcher.set_needs(needs);
        }
    }

    /// Tells the store watcher for the last time which checkpoints are needed. No worker loads the one that the plan began with any more: it may go,
    /// so that only the configured number is left. After another end than this, somebody else may still need it.
    pub(super) fn send_last_needs(&mut self, outcome: &Outcome) {
        if matches!(outcome, Outcome::Done | Outcome::Stopped) {
            self.is_last_told = true;
            self.send_needs();
        }
    }

    /// The states among these that the run has given up in a rollback.
    fn given_up(&self, states: &[StateId]) -> Vec<StateId> {
        let trust = &self.machine.record().trust;
        let given_up = states.iter().filter(|id| trust.is_rolled_back(**id));
        given_up.copied().collect()
    }

    /// Which of these checkpoints the run needs according to its record.
    fn needs(&self, usable: &Listing) -> Needs {
        let record = self.machine.record();
        let plans = [&record.plan, &record.next].into_iter().flatten();
        let plans = plans.filter(|_| !self.is_last_told);
        let bases = plans.filter_map(|plan| match plan.base {
            Base::Fixed { id, .. } => Some(id),
            Base::AtSwitch { .. } => None,
        });
        // A rollback goes to the newest compared checkpoint, which may be older than those that are kept.
        let compared = record.trust.newest_compared(&usable.complete);
        Needs {
            protected: bases.chain(compared).collect(),
            void: self.given_up(&usable.complete),
            extra: self.machine.extra_checkpoints().to_vec(),
            newest: usable.complete.iter().max().copied(),
        }
    }
}
