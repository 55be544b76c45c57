//! What a member keeps from one plan to the next besides its state: checkpoints that are due, orders that wait, commits to retell.

use super::io::MemberEffect;
use crate::message::Report;
use std::collections::VecDeque;
use std::sync::Arc;
use varuna_plan::{Decision, Generation, Plan, Step};

/// Commits that are told again on a new stream, so that a coordinator that was away misses none.
const HISTORY: usize = 4096;

/// The last commits.
#[derive(Default)]
pub(super) struct History {
    commits: VecDeque<Decision>,
}

impl History {
    pub(super) fn push(&mut self, decision: Decision) {
        if self.commits.len() == HISTORY {
            self.commits.pop_front();
        }
        self.commits.push_back(decision);
    }

    pub(super) fn reports(&self) -> impl Iterator<Item = MemberEffect> {
        let commits = self.commits.iter().copied();
        commits.map(|decision| MemberEffect::Report(Report::Committed { decision }))
    }
}

/// Orders that wait until nothing runs.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) fence: Option<Generation>,
    pub(super) plan: Option<Arc<Plan>>,
}

impl Waiting {
    pub(super) fn is_any(&self) -> bool {
        self.fence.is_some() || self.plan.is_some()
    }
}

/// Which checkpoints were ordered, and made.
#[derive(Default)]
pub(super) struct Checkpoints {
    /// A checkpoint beyond this step is wanted.
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

    /// Where steps were given up, what was put and what was wanted beyond here counts no more.
    pub(super) fn begin_at(&mut self, step: Step) {
        self.put_at = self.put_at.min(step);
        self.wanted_after = self.wanted_after.min(Some(step));
    }
}
