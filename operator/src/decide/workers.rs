//! What a job's coordinator reports about its workers, by the names of their pods. This is made once for each reconciliation. A job
//! may have thousands of pods and workers, and a search through all workers for each pod would take longer than everything else.

use super::observed::{ObservedPod, ObservedRun, PodPhase};
use std::collections::BTreeSet;

/// The workers that a coordinator knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Workers<'a> {
    attached: BTreeSet<&'a str>,
    placed: BTreeSet<&'a str>,
    /// Workers that have been part of a plan, attached or not.
    had_part: BTreeSet<&'a str>,
    /// Steps are committed.
    trains: bool,
    /// Whether the coordinator has had reports of the workers that ran before it started.
    is_settled: bool,
    /// Whether the coordinator leads a run and knows the plan in force.
    has_plan: bool,
}

impl<'a> Workers<'a> {
    /// The workers of a run; none are known without one.
    pub(super) fn of(run: Option<&'a ObservedRun>) -> Workers<'a> {
        let Some(run) = run else {
            return Workers::default();
        };
        let workers = run.snapshot.iter().flat_map(|s| &s.workers);
        let had_part = workers.filter(|w| w.generation.0 > 0);
        Workers {
            attached: run.workers(true).collect(),
            placed: run.placed(),
            had_part: had_part.map(|w| w.name.as_str()).collect(),
            trains: run.is_training(),
            is_settled: !run.is_settling(),
            has_plan: run.ended.is_none() && run.generation() > 0,
        }
    }

    /// Whether a worker of the pod is attached.
    pub(super) fn is_attached(&self, pod: &ObservedPod) -> bool {
        self.attached.contains(pod.name.as_str())
    }

    /// Whether the pod's worker answers its coordinator, or could: one that has just taken over has heard from no worker yet.
    pub(super) fn may_answer(&self, pod: &ObservedPod) -> bool {
        pod.phase == PodPhase::Running && (!self.is_settled || self.is_attached(pod))
    }

    /// Whether it is certain that nothing is lost with the pod: it has not started, or its workers are not attached and have no place in
    /// the plan in force. A worker with a place may hold state that no other worker has, even while it is out of reach. If no steps are
    /// being committed, the same holds for a worker that was part of an earlier plan.
    pub(super) fn holds_nothing(&self, pod: &ObservedPod) -> bool {
        let name = pod.name.as_str();
        let is_known = self.is_settled && self.has_plan;
        let may_hold = self.placed.contains(name) || (!self.trains && self.had_part.contains(name));
        pod.phase == PodPhase::Pending || (is_known && !may_hold && !self.is_attached(pod))
    }
}
