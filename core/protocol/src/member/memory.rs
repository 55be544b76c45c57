//! What a member keeps from one plan to the next besides its state: due checkpoints, waiting orders, and commits that may have to be
//! reported again.

use crate::message::{Report, TOLD_AT_ONCE, Time};
use std::collections::VecDeque;
use std::sync::Arc;
use varuna_plan::{Decision, Generation, Plan, StateId, Step};

/// Number of commits that can still be reported, so that a coordinator that was away misses none.
const HISTORY: usize = 4096;

/// The last commits.
#[derive(Default)]
pub(super) struct History {
    commits: VecDeque<Decision>,
}

impl History {
    /// Adds a commit. After a step was given up, another one with the same number follows.
    pub(super) fn push(&mut self, decision: Decision) {
        while self
            .commits
            .back()
            .is_some_and(|last| last.id.step >= decision.id.step)
        {
            self.commits.pop_back();
        }
        if self.commits.len() == HISTORY {
            self.commits.pop_front();
        }
        self.commits.push_back(decision);
    }

    /// The decision that was applied to this state.
    pub(super) fn from(&self, parent: StateId) -> Option<Decision> {
        let mut newest_first = self.commits.iter().rev();
        newest_first.find(|d| d.parent == parent).copied()
    }

    /// The commits after a step, oldest first.
    pub(super) fn after(&self, step: Step) -> Report {
        let beyond = self.commits.iter().filter(|d| d.id.step > step);
        Report::Commits {
            after: step,
            decisions: beyond.take(TOLD_AT_ONCE).copied().collect(),
        }
    }
}

/// Orders that wait until nothing runs.
#[derive(Default)]
pub(super) struct Waiting {
    /// The greatest fence that waits, and since when a fence has been waiting.
    fence: Option<(Generation, Time)>,
    pub(super) plan: Option<Arc<Plan>>,
}

impl Waiting {
    pub(super) fn put_fence(&mut self, now: Time, upto: Generation) {
        let (before, since) = self.fence.unwrap_or((upto, now));
        self.fence = Some((before.max(upto), since));
    }

    pub(super) fn take_fence(&mut self) -> Option<Generation> {
        self.fence.take().map(|(upto, _)| upto)
    }

    pub(super) fn has_fence(&self) -> bool {
        self.fence.is_some()
    }

    pub(super) fn fence_since(&self) -> Option<Time> {
        self.fence.map(|(_, since)| since)
    }

    pub(super) fn is_any(&self) -> bool {
        self.fence.is_some() || self.plan.is_some()
    }
}

/// Which checkpoints were ordered, and which were made.
#[derive(Default)]
pub(super) struct Checkpoints {
    /// A checkpoint beyond this step is requested.
    wanted_after: Option<Step>,
    /// Step of the last state that was put.
    pub(super) put_at: Step,
}

impl Checkpoints {
    pub(super) fn want(&mut self, after: Step) {
        self.wanted_after = self.wanted_after.max(Some(after));
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.wanted_after.is_some_and(|after| self.put_at <= after)
    }

    /// Training begins at `step`. If steps were given up, what was put or requested beyond it is no longer valid.
    pub(super) fn begin_at(&mut self, step: Step) {
        self.put_at = self.put_at.min(step);
        self.wanted_after = self.wanted_after.min(Some(step));
    }
}
