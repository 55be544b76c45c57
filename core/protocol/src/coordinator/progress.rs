//! How far training has come, which commits were published, and how fast they come.

use crate::message::Time;
use std::collections::BTreeMap;
use std::time::Duration;
use varuna_plan::deadline::RecentSteps;
use varuna_plan::{Decision, Generation, Plan, StateId, Step};

/// Steps that are remembered for late reports.
const KEPT: usize = 10_000;

/// How far training has come, as far as is known.
pub(super) struct Progress {
    /// The greatest state that a member of a plan was seen at.
    pub(super) best: StateId,
    /// When there was last some progress: a greater state, a recovery's plan, or Go.
    pub(super) at: Time,
    pub(super) commits: Commits,
    /// The times of the last steps of this generation.
    recent: (Generation, RecentSteps),
    unreported_commits: UnreportedCommits,
}

/// Commits that the coordinator knows to exist but that nobody reported to it: it was away, or a report was lost.
#[derive(Default)]
pub(super) struct UnreportedCommits {
    since: Option<Time>,
    /// Number of workers that were asked and did not know the next commit.
    misses: usize,
    /// Number of workers that may know it.
    candidates: usize,
    /// The greatest state that was known when the first of them was asked: later commits may be known to those who did not know these.
    asked_up_to: Option<StateId>,
}

/// The fewest and the most workers that are asked for a commit before it is left out: otherwise everyone who may know it is asked. Among
/// many newcomers only a few may have run the step.
const ASKED_FOR_COMMIT: (usize, usize) = (3, 64);

/// Generations in a row that ran and committed nothing: the deadline of steps grows with them.
#[derive(Default)]
pub(super) struct GenerationsWithoutCommit {
    pub(super) generations: u32,
    /// The last one that was counted.
    last: Generation,
}

impl GenerationsWithoutCommit {
    /// The running generation is about to be fenced. One that never ran, because a member died while it was loading, shows nothing.
    pub(super) fn note(&mut self, running: Generation, progress: &Progress) {
        let newest = progress
            .commits
            .last
            .map_or(progress.best, |(id, _)| id.max(progress.best));
        let uncounted = running > self.last || bug!(CountUnrunGenerations);
        if uncounted && newest.run_gen < running {
            self.last = running;
            self.generations = self.generations.saturating_add(1);
        }
    }
}

impl Progress {
    /// Continues after a state that an earlier coordinator published.
    pub(super) fn after(published: Option<StateId>) -> Self {
        Self {
            best: StateId::INITIAL,
            at: Time(0),
            commits: Commits::after(published),
            recent: (Generation(0), RecentSteps::default()),
            unreported_commits: UnreportedCommits::default(),
        }
    }

    /// Whether the decision is to be published now, for the first time.
    pub(super) fn publishes(&mut self, now: Time, decision: &Decision) -> bool {
        !self.commits.is_early(decision) && self.commits.first(now, decision)
    }

    /// Since when there have been known commits that nobody reported, and how many workers did not know them.
    pub(super) fn unreported_commits(&mut self, now: Time) -> Option<(Time, usize)> {
        if self.best.step <= self.commits.step() {
            self.unreported_commits = UnreportedCommits::default();
            return None;
        }
        let since = *self.unreported_commits.since.get_or_insert(now);
        Some((since, self.unreported_commits.misses))
    }

    /// Notes how many workers may know the commits that were not reported. One of them is asked now.
    pub(super) fn note_asked(&mut self, candidates: usize) {
        let unreported = &mut self.unreported_commits;
        unreported.candidates = candidates;
        if unreported.misses == 0 {
            unreported.asked_up_to = Some(self.best);
        }
    }

    /// Takes the commits after `after` that a worker reported, and returns those to be published. `alone`: only this worker was asked, so
    /// others are asked next if it does not know the next commit.
    pub(super) fn take_reported(
        &mut self,
        now: Time,
        after: Step,
        mut reported: Vec<Decision>,
        alone: bool,
    ) -> Vec<Decision> {
        let known = self.commits.step();
        reported.retain(|d| d.id.step > known);
        // The answer to an earlier order counts if it continues the last published state.
        let continues = |d: &Decision| after == known || self.commits.is_last(d.parent);
        let next = reported
            .first()
            .is_some_and(|d| d.id.step == known.next() && continues(d));
        if !next {
            if after != known || !alone {
                return Vec::new();
            }
            self.unreported_commits.misses += 1;
            let (least, most) = ASKED_FOR_COMMIT;
            if self.unreported_commits.misses < self.unreported_commits.candidates.clamp(least, most) {
                return Vec::new();
            }
            let nobody_knows = self.unreported_commits.asked_up_to;
            if let Some(upto) = nobody_knows.filter(|upto| reported.is_empty() && upto.step > known) {
                self.commits.before = Some(upto);
                self.commits.last = None;
            }
        }
        self.unreported_commits.misses = 0;
        reported.retain(|d| self.commits.first(now, d));
        reported
    }

    /// How long the plan's present step may take.
    pub(super) fn step_deadline(&self, plan: &Plan) -> Duration {
        let none = RecentSteps::default();
        let (generation, recent) = &self.recent;
        let here = *generation == plan.generation;
        plan.deadline.of(self.step(), if here { recent } else { &none })
    }

    /// A commit was reported for the first time. `plan` is the plan in force.
    pub(super) fn note_step_time(&mut self, plan: &Plan) {
        let Some((id, _)) = self.commits.last.filter(|(id, _)| id.run_gen == plan.generation) else {
            return;
        };
        if self.recent.0 != plan.generation {
            self.recent = (plan.generation, RecentSteps::default());
        }
        if let (Some(took), Some(step)) = (self.commits.took, id.step.0.checked_sub(1)) {
            self.recent.1.note(&plan.deadline, Step(step), took);
        }
    }

    /// Whether a step is known to have been committed at any time.
    pub(super) fn is_known(&self) -> bool {
        self.commits.anything() || self.best != StateId::INITIAL
    }

    /// Whether a step is known to have been committed in this generation or a later one.
    pub(super) fn is_known_since(&self, generation: Generation) -> bool {
        self.newest_since(generation).is_some()
    }

    /// The newest state that is known to have been committed in this generation or a later one.
    pub(super) fn newest_since(&self, generation: Generation) -> Option<StateId> {
        let last = self.commits.last.map(|(id, _)| id);
        let known = [Some(self.best), self.commits.before, last];
        let since = |id: &StateId| id.run_gen >= generation;
        known.into_iter().flatten().filter(since).max()
    }

    /// Number of committed steps, as far as is known.
    pub(super) fn step(&self) -> Step {
        self.commits.step().max(self.best.step)
    }
}

/// The commits that were published. The first report of each state is published; later reports, and those of histories that were given up,
/// are not.
#[derive(Clone, Debug)]
pub(super) struct Commits {
    before: Option<StateId>,
    newest: BTreeMap<Step, StateId>,
    forgotten: Step,
    last: Option<(StateId, Time)>,
    /// The coordinator itself was paused since the last commit: the next commit says nothing about the time of a step.
    paused_since: bool,
    mean_step_time: Option<Duration>,
    /// The time of the newest step, if the step before was of the same generation.
    took: Option<Duration>,
}

impl Commits {
    fn after(before: Option<StateId>) -> Self {
        Self {
            before,
            newest: BTreeMap::new(),
            forgotten: Step(0),
            last: None,
            paused_since: false,
            mean_step_time: None,
            took: None,
        }
    }

    /// Whether there are unpublished steps between the last published one and this one, which is then published after them.
    fn is_early(&self, decision: &Decision) -> bool {
        decision.id.step > self.step().next() && !bug!(PublishEarlySteps)
    }

    /// Whether the state was published last.
    fn is_last(&self, id: StateId) -> bool {
        let last = self.last.map(|(last, _)| last).or(self.before);
        last.unwrap_or(StateId::INITIAL) == id
    }

    /// Whether this is the first report of the decision's state, and worth telling.
    fn first(&mut self, now: Time, decision: &Decision) -> bool {
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
        let paused = std::mem::take(&mut self.paused_since) && !bug!(CountOwnPauseAsStep);
        if let Some((last, at)) = self.last.filter(|_| !paused)
            && last == decision.parent
            && last.run_gen == decision.id.run_gen
            && decision.eval_loss.is_none()
        // the time of a step that began with an evaluation says nothing about other steps
        {
            let took = now.since(at);
            self.took = Some(took);
            self.mean_step_time = Some(self.mean_step_time.map_or(took, |mean| (mean * 7 + took) / 8));
        }
        self.last = Some((decision.id, now));
    }

    /// The coordinator itself was paused: the time that passed meanwhile is not counted for any step.
    pub(super) fn note_own_pause(&mut self) {
        self.paused_since = true;
    }

    /// The time of the newest step.
    pub(super) fn took(&self) -> Option<Duration> {
        self.took
    }
    pub(super) fn mean_step_time(&self) -> Option<Duration> {
        self.mean_step_time
    }

    /// When the next commit is expected: a mean step after the last one, but not before now.
    pub(super) fn next_at(&self, now: Time) -> Time {
        let step = self.mean_step_time.unwrap_or_default();
        self.last
            .map_or(now.after(step), |(_, at)| at.after(step).max(now))
    }

    /// Whether any step was published.
    fn anything(&self) -> bool {
        self.before.is_some_and(|b| b != StateId::INITIAL) || !self.newest.is_empty()
    }
    /// The step that was published last.
    pub(super) fn step(&self) -> Step {
        let before = self.before.map_or(Step(0), |b| b.step);
        self.last.map_or(before, |(id, _)| id.step)
    }
}
