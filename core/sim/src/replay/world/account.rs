//! What becomes of the trace's time: the account that the report is made of, and how what goes on is entered.

use super::Replay;
use crate::host::Host;
use crate::replay::ideal::Ideal;
use crate::replay::ledger::{Activity, Cause, Ledger};
use crate::replay::report::{Point, Report};
use varuna_plan::WorkerId;

/// What is reported.
pub(super) struct Account {
    pub(super) ideal: Ideal,
    pub(super) ledger: Ledger,
    pub(super) report: Report,
    /// Since when training stands, and since when there are enough nodes to train.
    pub(super) stopped_at: u64,
    pub(super) possible_at: u64,
}

impl Host<Replay<'_>> {
    /// Why a running plan is slower than the best: `moved` = other workers are there, and it has not been replaced.
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

    /// Something else goes on.
    pub(super) fn turn(&mut self, activity: Activity) {
        if matches!(self.env.account.ledger.activity, Activity::Running { .. }) {
            self.env.account.stopped_at = self.now();
        }
        let real = self.real();
        self.env.account.ledger.turn(real, activity);
        self.mark();
    }

    /// A point of the picture.
    pub(super) fn mark(&mut self) {
        let (used, rate) = match self.env.account.ledger.activity {
            Activity::Running { rate } => {
                let members = self.env.in_force.as_ref().map_or(0, |p| p.members().len());
                (members, rate)
            }
            Activity::Standing(_) => (0, 0.0),
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
