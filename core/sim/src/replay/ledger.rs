//! Accounts for samples: each sample that the best plan would have trained is either trained, or lost to one named cause. Trained and lost
//! samples add up to the ideal, except for rounding.

use serde::Serialize;

/// Why samples were not trained.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// Before the first plan runs.
    Start,
    /// From the loss of a member until the coordinator fences.
    Detect,
    /// From the fence to a persisted plan, or until there are enough workers.
    Plan,
    /// Until the plan's members are connected.
    Connect,
    /// Transfer of state from peers or a checkpoint while training is paused.
    Transfer,
    /// Work on steps that were not finished.
    LostStep,
    /// Committed steps that are trained again, since the last holder of some segment was lost.
    Rollback,
    /// A plan that was made for another set of workers.
    OldPlan,
    /// A plan that leaves out a worker that was notified of its end but still runs.
    Notice,
    /// The plan in force is not the fastest: it keeps a second copy of each segment, moves less state, or a change is not worth it.
    Choice,
    /// Between steps: the norm exchange, and the extra time of a plan's first step.
    Exchange,
}

impl Cause {
    /// All causes, in the order of reports.
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

    /// A short name for tables and charts.
    #[must_use]
    pub fn label(self) -> &'static str {
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

/// The activity of the job.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Activity {
    /// Training is paused, for this cause.
    Paused(Cause),
    /// Steps run at this predicted rate, samples per nanosecond.
    Running { rate: f64 },
}

/// The account of one replay.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    batch: f64,
    /// `ideal` is counted up to this time, nanoseconds of the trace.
    at: u64,
    /// Time of the last commit or change of activity, nanoseconds of the trace.
    boundary: u64,
    /// Rate of the best plan for the present workers, samples per nanosecond.
    best_rate: f64,
    /// Since when a step has been run and waits for state, nanoseconds of the trace.
    run_at: Option<u64>,
    /// Samples of the best plan since `boundary`: not yet trained or lost.
    unassigned: f64,
    pub(crate) activity: Activity,
    /// The cause to which lost samples are counted while the running plan is slower than the best.
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
            run_at: None,
            best_rate: 0.0,
            unassigned: 0.0,
            activity: Activity::Paused(Cause::Start),
            slower: Cause::Choice,
            ideal: 0.0,
            steps: 0,
            losses: [0.0; Cause::ALL.len()],
        }
    }

    fn advance(&mut self, now: u64) {
        let more = self.best_rate * now.saturating_sub(self.at) as f64;
        self.ideal += more;
        self.unassigned += more;
        self.at = now.max(self.at);
    }

    fn lose(&mut self, cause: Cause, samples: f64) {
        self.losses[cause as usize] += samples;
    }

    /// The set of workers changes, and with it the rate of the best plan.
    pub(crate) fn set_top(&mut self, now: u64, best_rate: f64) {
        self.advance(now);
        self.best_rate = best_rate;
    }

    /// Whether there are enough nodes to train.
    pub(crate) fn possible(&self) -> bool {
        self.best_rate > 0.0
    }

    /// The activity changes. An unfinished step counts as lost; see [`Ledger::resume_at`].
    pub(crate) fn turn(&mut self, now: u64, activity: Activity) {
        self.advance(now);
        let cause = match self.activity {
            Activity::Paused(cause) => cause,
            Activity::Running { .. } => Cause::LostStep,
        };
        self.lose(cause, self.unassigned);
        self.unassigned = 0.0;
        self.boundary = now;
        self.run_at = None;
        self.activity = activity;
    }

    /// All members have run a step that began before they had all state. Until it is committed, they wait for state.
    pub(crate) fn step_ended(&mut self, now: u64) {
        self.run_at = Some(now);
    }

    /// Steps were committed since the last commit or change of activity.
    pub(crate) fn commit(&mut self, now: u64, steps: u64) {
        self.advance(now);
        let trained = steps as f64 * self.batch;
        let took = now.saturating_sub(self.boundary) as f64;
        let waited = self.run_at.take().map_or(0, |at| now.saturating_sub(at)) as f64;
        match self.activity {
            Activity::Running { rate } => {
                let between = rate * took - trained;
                self.lose(Cause::Transfer, rate * waited);
                self.lose(Cause::Exchange, between - rate * waited);
                self.lose(self.slower, self.unassigned - trained - between);
            }
            // A member was lost during the norm exchange, and the step was committed all the same.
            Activity::Paused(_) => self.lose(Cause::LostStep, self.unassigned - trained),
        }
        self.steps += steps;
        self.unassigned = 0.0;
        self.boundary = now;
    }

    /// Training resumes after `steps` steps: either an interrupted step was finished after all, or some are trained again.
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
    fn trained_and_lost_samples_sum_up_to_the_ideal() {
        let mut ledger = Ledger::new(0, 8);
        ledger.set_top(0, 1.0);
        ledger.turn(10, Activity::Running { rate: 0.8 });
        ledger.commit(21, 1);
        assert!((ledger.loss(Cause::Start) - 10.0).abs() < 1e-9);
        assert!((ledger.loss(Cause::Exchange) - 0.8).abs() < 1e-9);
        assert!((ledger.loss(Cause::Choice) - 2.2).abs() < 1e-9);
        ledger.set_top(25, 0.5);
        ledger.turn(31, Activity::Paused(Cause::Detect));
        assert!((ledger.loss(Cause::LostStep) - 7.0).abs() < 1e-9);
        ledger.turn(41, Activity::Paused(Cause::Plan));
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
