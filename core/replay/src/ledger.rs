//! Where the samples go: what the best plan would have trained is either trained, or lost for a named cause. Nothing is
//! counted twice, and parts and whole agree to rounding.

use serde::Serialize;

/// Why samples were not trained.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// Before the first plan runs.
    Start,
    /// From a loss until the coordinator fences.
    Detect,
    /// From the fence to a persisted plan, or until enough workers are there.
    Plan,
    /// Until the plan's members are connected.
    Connect,
    /// State on its way while training stands, from peers or from a checkpoint.
    Transfer,
    /// Work on a step that was not finished.
    LostStep,
    /// Steps that were committed and are trained again, since no holder of some segment was left.
    Rollback,
    /// A plan that was made for other workers than are there now.
    OldPlan,
    /// A plan that avoids a worker which had notice and is still there.
    Notice,
    /// The plan in force is not the fastest: it holds each segment twice, moves less state, or is not worth a change.
    Choice,
    /// Between steps: the norm exchange, the first step's extra.
    Exchange,
}

impl Cause {
    /// All, in the order in which they are told.
    pub const ALL: [Cause; 11] = [
        Cause::Start,
        Cause::Detect,
        Cause::Plan,
        Cause::Connect,
        Cause::Transfer,
        Cause::LostStep,
        Cause::Rollback,
        Cause::OldPlan,
        Cause::Notice,
        Cause::Choice,
        Cause::Exchange,
    ];

    /// For people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Cause::Start => "start",
            Cause::Detect => "detect",
            Cause::Plan => "plan",
            Cause::Connect => "connect",
            Cause::Transfer => "transfer of state",
            Cause::LostStep => "unfinished steps",
            Cause::Rollback => "rollback",
            Cause::OldPlan => "old plan",
            Cause::Notice => "left early",
            Cause::Choice => "choice of plan",
            Cause::Exchange => "between steps",
        }
    }
}

/// What goes on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Activity {
    /// Training stands, for this cause.
    Standing(Cause),
    /// Steps run, each predicted to train so many samples a nanosecond.
    Running { rate: f64 },
}

/// The account.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    batch: f64,
    /// Up to here all is booked; nanoseconds of the trace.
    at: u64,
    /// The last booked boundary: a commit, or a change of activity.
    boundary: u64,
    /// Samples a nanosecond that the best plan would train.
    top: f64,
    /// What the best plan would have trained since the boundary.
    open: f64,
    pub(crate) activity: Activity,
    /// Why a running plan is slower than the best.
    pub(crate) slower: Cause,
    pub(crate) ideal: f64,
    /// Steps committed and not rolled back.
    pub(crate) steps: u64,
    losses: [f64; Cause::ALL.len()],
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds and steps of a trace")]
impl Ledger {
    pub(crate) fn new(at: u64, global_batch_size: u64) -> Ledger {
        Ledger {
            batch: global_batch_size as f64,
            at,
            boundary: at,
            top: 0.0,
            open: 0.0,
            activity: Activity::Standing(Cause::Start),
            slower: Cause::Choice,
            ideal: 0.0,
            steps: 0,
            losses: [0.0; Cause::ALL.len()],
        }
    }

    fn advance(&mut self, now: u64) {
        let more = self.top * now.saturating_sub(self.at) as f64;
        self.ideal += more;
        self.open += more;
        self.at = now.max(self.at);
    }

    fn lose(&mut self, cause: Cause, samples: f64) {
        self.losses[cause as usize] += samples;
    }

    /// Other workers are there from now on.
    pub(crate) fn set_top(&mut self, now: u64, top: f64) {
        self.advance(now);
        self.top = top;
    }

    /// There are enough nodes to train.
    pub(crate) fn possible(&self) -> bool {
        self.top > 0.0
    }

    /// Something else goes on from now on. A step that was running is lost, for the time being.
    pub(crate) fn turn(&mut self, now: u64, activity: Activity) {
        self.advance(now);
        let cause = match self.activity {
            Activity::Standing(cause) => cause,
            Activity::Running { .. } => Cause::LostStep,
        };
        self.lose(cause, self.open);
        self.open = 0.0;
        self.boundary = now;
        self.activity = activity;
    }

    /// So many steps were committed since the last boundary.
    pub(crate) fn commit(&mut self, now: u64, steps: u64) {
        self.advance(now);
        let trained = steps as f64 * self.batch;
        let took = now.saturating_sub(self.boundary) as f64;
        match self.activity {
            Activity::Running { rate } => {
                let between = rate * took - trained;
                self.lose(Cause::Exchange, between);
                self.lose(self.slower, self.open - trained - between);
            }
            // The norms were on their way when a member was lost: its last step counts after all.
            Activity::Standing(_) => self.lose(Cause::LostStep, self.open - trained),
        }
        self.steps += steps;
        self.open = 0.0;
        self.boundary = now;
    }

    /// Training resumes after `steps` steps: an interrupted one was finished after all, or some are trained again.
    pub(crate) fn resume_at(&mut self, steps: u64) {
        let samples = (self.steps as f64 - steps as f64) * self.batch;
        let cause = if samples < 0.0 {
            Cause::LostStep
        } else {
            Cause::Rollback
        };
        self.lose(cause, samples);
        self.steps = steps;
    }

    pub(crate) fn loss(&self, cause: Cause) -> f64 {
        self.losses[cause as usize]
    }

    pub(crate) fn trained(&self) -> f64 {
        self.steps as f64 * self.batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(ledger: &Ledger) -> f64 {
        Cause::ALL.iter().map(|c| ledger.loss(*c)).sum::<f64>() + ledger.trained() - ledger.ideal
    }

    #[test]
    fn parts_and_whole_agree_whatever_happens() {
        let mut ledger = Ledger::new(0, 8);
        ledger.set_top(0, 1.0);
        ledger.turn(10, Activity::Running { rate: 0.8 });
        ledger.commit(21, 1);
        assert!((ledger.loss(Cause::Start) - 10.0).abs() < 1e-9);
        assert!((ledger.loss(Cause::Exchange) - 0.8).abs() < 1e-9);
        assert!((ledger.loss(Cause::Choice) - 2.2).abs() < 1e-9);
        ledger.set_top(25, 0.5);
        ledger.turn(31, Activity::Standing(Cause::Detect));
        assert!((ledger.loss(Cause::LostStep) - 7.0).abs() < 1e-9);
        ledger.turn(41, Activity::Standing(Cause::Plan));
        assert!((ledger.loss(Cause::Detect) - 5.0).abs() < 1e-9);
        assert!(gap(&ledger).abs() < 1e-9);
        ledger.resume_at(2);
        assert!(gap(&ledger).abs() < 1e-9, "a finished step is no loss");
        assert!((ledger.loss(Cause::LostStep) + 1.0).abs() < 1e-9);
        ledger.resume_at(0);
        assert!((ledger.loss(Cause::Rollback) - 16.0).abs() < 1e-9);
        assert!(gap(&ledger).abs() < 1e-9);
    }
}
