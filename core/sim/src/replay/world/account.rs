//! The use of the trace's time: the account from which the report is made, and how activities are entered into it.

use super::Replay;
use crate::host::Host;
use crate::replay::ideal::Ideal;
use crate::replay::ledger::{Activity, Cause, Ledger};
use crate::replay::report::{Point, Report};
use varuna_plan::WorkerId;

/// The data of the report.
pub(super) struct Account {
    pub(super) ideal: Ideal,
    pub(super) ledger: Ledger,
    pub(super) report: Report,
    /// Since when training has been stopped, and since when there have been enough nodes to train.
    pub(super) stopped_at: u64,
    pub(super) possible_at: u64,
}

impl Host<Replay<'_>> {
    /// Determines why a running plan is slower than the best. `moved`: the set of workers has changed and the plan has not been replaced.
    pub(super) fn judge_plan(&mut self, moved: bool) {
        let avoided = |id: &WorkerId| {
            let drained = self.members.get(*id).is_some_and(|w| w.local.drained);
            drained && self.env.in_force.as_ref().is_some_and(|p| !p.has(*id))
        };
        self.env.account.ledger.slower = if self.env.nodes.values().any(avoided) {
            Cause::Notice
        } else if moved {
            Cause::OldPlan
        } else {
            Cause::Choice
        };
    }

    /// The activity changes.
    pub(super) fn turn(&mut self, activity: Activity) {
        if matches!(self.env.account.ledger.activity, Activity::Running { .. }) {
            self.env.account.stopped_at = self.now();
        }
        let real = self.real();
        self.env.account.ledger.turn(real, activity);
        self.mark();
    }

    /// Adds a point to the timeline.
    pub(super) fn mark(&mut self) {
        let (used, rate) = match self.env.account.ledger.activity {
            Activity::Running { rate } => {
                let members = self.env.in_force.as_ref().map_or(0, |p| p.members().len());
                (members, rate)
            }
            Activity::Paused(_) => (0, 0.0),
        };
        let point = Point {
            at_s: self.seconds(),
            there: self.env.nodes.len(),
            used,
            samples_per_s: rate * 1e9,
            best_samples_per_s: self.env.account.ideal.rate(self.env.nodes.len()) * 1e9,
        };
        self.env.account.report.timeline.push(point);
    }
}
