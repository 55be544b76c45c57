//! How far training is, which commits were published, and how fast they come.

use crate::message::Time;
use std::collections::BTreeMap;
use std::time::Duration;
use varuna_plan::{Decision, StateId, Step};

/// Steps that are remembered for late reports.
const KEPT: usize = 10_000;

/// How far training is, as far as known.
pub(super) struct Progress {
    /// The greatest state that a member of a plan was at.
    pub(super) best: StateId,
    /// When there last was some: a greater state, a recovery's plan, or Go.
    pub(super) at: Time,
    pub(super) commits: Commits,
}

impl Progress {
    /// After a state that an earlier coordinator published.
    pub(super) fn after(published: Option<StateId>) -> Self {
        Self {
            best: StateId::INITIAL,
            at: Time(0),
            commits: Commits::after(published),
        }
    }

    /// A step is known to have been committed at some time.
    pub(super) fn is_known(&self) -> bool {
        self.commits.anything() || self.best != StateId::INITIAL
    }

    /// Steps committed, as far as known.
    pub(super) fn step(&self) -> Step {
        self.commits.step().max(self.best.step)
    }
}

/// The first report of each state is published; later ones, and those of histories that were given up, are not.
#[derive(Clone, Debug)]
pub(super) struct Commits {
    before: Option<StateId>,
    newest: BTreeMap<Step, StateId>,
    forgotten: Step,
    last: Option<(StateId, Time)>,
    mean_step_time: Option<Duration>,
    /// The newest step's own time, where the one before was of the same generation.
    took: Option<Duration>,
}

impl Commits {
    fn after(before: Option<StateId>) -> Self {
        Self {
            before,
            newest: BTreeMap::new(),
            forgotten: Step(0),
            last: None,
            mean_step_time: None,
            took: None,
        }
    }

    /// Whether this is the first report of the decision's state, and worth telling.
    pub(super) fn first(&mut self, now: Time, decision: &Decision) -> bool {
        let id = decision.id;
        let published_before = self.before.is_some_and(|b| id.step <= b.step && id <= b);
        let published = self.newest.get(&id.step).is_some_and(|t| id <= *t);
        if published_before || published || id.step <= self.forgotten {
            return false;
        }
        self.newest.insert(id.step, id);
        if self.newest.len() > KEPT
            && let Some((step, _)) = self.newest.pop_first()
        {
            self.forgotten = step;
        }
        self.time(now, decision);
        true
    }

    /// Exponentially weighted mean of the time between two commits of one generation (weight 1/8 for the newest).
    fn time(&mut self, now: Time, decision: &Decision) {
        self.took = None;
        if let Some((last, at)) = self.last
            && last == decision.parent
            && last.run_gen == decision.id.run_gen
        {
            let took = now.since(at);
            self.took = Some(took);
            self.mean_step_time = Some(self.mean_step_time.map_or(took, |mean| (mean * 7 + took) / 8));
        }
        self.last = Some((decision.id, now));
    }

    /// What the newest step took.
    pub(super) fn took(&self) -> Option<Duration> {
        self.took
    }
    pub(super) fn mean_step_time(&self) -> Option<Duration> {
        self.mean_step_time
    }
    /// A step was published at some time.
    fn anything(&self) -> bool {
        self.before.is_some_and(|b| b != StateId::INITIAL) || !self.newest.is_empty()
    }
    /// The step that was published last.
    fn step(&self) -> Step {
        let before = self.before.map_or(Step(0), |b| b.step);
        self.last.map_or(before, |(id, _)| id.step)
    }
}
