//! The present state for people.

use super::Coordinator;
use super::event::{RunView, Snapshot, WorkerView};
use super::left_out::LeftOut;
use super::mode::Mode;
use super::roster::Worker;
use super::run_mode::RunMode;
use super::shared::Shared;
use crate::message::Time;
use std::time::Duration;
use varuna_plan::{Base, Generation, StateId, Step, WorkerId};

impl Coordinator {
    /// The present state for people and for `status`.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let shared = &self.shared;
        let mut left_out = shared.left_out(self.has_refused_a_change());
        let view = |id: &WorkerId| worker_view(shared, *id, left_out.remove(id));
        Snapshot {
            run: self.run(),
            workers: shared.roster.workers.keys().map(view).collect(),
        }
    }

    /// The workers of this name that it knows, and whether their streams are up. This costs little beside a snapshot: where a thousand workers have gone,
    /// each of them is asked for.
    #[must_use]
    pub fn workers_of_name(&self, name: &str) -> Vec<(WorkerId, bool)> {
        let workers = self.shared.roster.workers.iter();
        let named =
            workers.filter(|(_, worker)| worker.hello.as_ref().is_some_and(|hello| hello.name == name));
        named.map(|(id, worker)| (*id, worker.connected)).collect()
    }

    /// Whether a change to use idle workers in place of the present plan was considered that would not repay its cost.
    fn has_refused_a_change(&self) -> bool {
        let Mode::Active(active) = &self.mode else {
            return false;
        };
        let plan = self.shared.record.stored.plan.as_ref();
        plan.is_some_and(|plan| active.refused.is_some_and(|refused| refused.is_of(plan)))
    }

    /// Whether a requested checkpoint is not complete yet. After a recovery it is one of a state that the run has reached since.
    #[must_use]
    pub fn wants_checkpoint(&self) -> bool {
        self.shared.checkpoints.is_requested()
    }

    /// Checkpoints that were ordered only because of the observed losses, among those that the store shows.
    #[must_use]
    pub fn extra_checkpoints(&self) -> &[StateId] {
        self.shared.checkpoints.extra()
    }

    /// The present state of the run as a whole, without its workers, of which there may be thousands.
    #[must_use]
    pub fn run(&self) -> RunView {
        let shared = &self.shared;
        let record = &shared.record.stored;
        let plan = record.plan.as_ref();
        let mean = shared.progress.commits.mean_step_time();
        RunView {
            mode: self.mode.shown(shared),
            term: shared.record.term,
            generation: shared.record.generation(),
            next: record.next.as_ref().map(|p| p.generation),
            step: step(shared),
            last_step: shared.last_step(),
            plan: plan.map(|p| p.shape.summary()),
            predicted_ms: plan.map(|p| p.shape.predicted.step_ms),
            observed_ms: mean.map(|m| m.as_secs_f64() * 1e3),
            compute_factor: shared.speeds.costs.factor(),
            members: plan.map_or(0, |p| p.members().len()),
            min_workers: shared.config.min_workers,
            max_workers: shared.max_workers,
            spare_copies: shared.spare_copies_view(),
        }
    }
}

/// Functions for simulations.
impl Coordinator {
    /// The newest state that a worker has reported to it.
    #[must_use]
    pub fn newest_heard(&self) -> StateId {
        self.shared.progress.best
    }

    /// The time until it orders a checkpoint because of the observed losses.
    #[must_use]
    pub fn time_to_extra_checkpoint(&self, now: Time) -> Option<Duration> {
        let shared = &self.shared;
        let interval = shared.adaptive_interval(now)?;
        Some(shared.checkpoints.due_in(now, interval))
    }

    /// The time until it reconsiders a change that would not have repaid its cost, if no worker comes or goes until then.
    #[must_use]
    pub fn time_to_reconsider(&self, now: Time) -> Option<Duration> {
        let shared = &self.shared;
        let Mode::Active(active) = &self.mode else {
            return None;
        };
        let plan = shared.record.stored.plan.as_ref()?;
        let refused = active.refused.filter(|r| r.is_of(plan))?;
        Some(refused.due_in(shared, now))
    }
}

/// Number of committed steps, as far as is known. A plan that starts from a state implies this many even before a worker has reported them.
fn step(shared: &Shared) -> Step {
    let plan = shared.record.stored.plan.as_ref();
    let base = plan.and_then(|plan| match &plan.base {
        Base::Fixed { id, .. } => Some(*id),
        Base::AtSwitch { .. } => None,
    });
    let best = shared.progress.best;
    base.map_or(best, |base| base.max(best)).step
}

fn worker_view(shared: &Shared, id: WorkerId, left_out: Option<LeftOut>) -> WorkerView {
    let worker = shared.roster.get(id);
    let hello = shared.roster.hello(id);
    let status = worker.and_then(|w| w.status);
    let plan = shared.record.stored.plan.as_ref();
    let place = plan.and_then(|p| p.place(id));
    let segments = plan.map_or_else(Vec::new, |p| p.segments_of(id));
    WorkerView {
        id,
        name: shared.roster.name(id),
        node: hello.map_or_else(String::new, |h| h.node.clone()),
        up: worker.is_some_and(|w| w.connected),
        phase: status.map(|s| s.phase),
        generation: status.map_or(Generation(0), |s| s.generation),
        step: status.map_or(Step(0), |s| s.at.step),
        draining: worker.is_some_and(Worker::is_draining),
        speed: shared.speed(id),
        segments,
        pipeline: place.map(|(i, _)| i),
        left_out,
    }
}

impl Mode {
    /// The mode as it is shown to people.
    fn shown(&self, shared: &Shared) -> RunMode {
        let record = &shared.record.stored;
        match self {
            Mode::Starting(_) => RunMode::Starting,
            Mode::Settling(_) => RunMode::Settling,
            Mode::Active(_) if record.next.is_some() => RunMode::Changing,
            Mode::Active(active) if active.is_running(shared.record.generation()) => RunMode::Training,
            Mode::Active(_) => RunMode::Launching,
            Mode::Collecting(_) if shared.last_reports.problem.is_some() || record.plan.is_none() => {
                RunMode::Waiting
            }
            Mode::Collecting(_) => RunMode::Recovering,
            Mode::Persisting(write) if write.is_of_wait() => RunMode::Recovering,
            Mode::TakingOver(_) | Mode::Persisting(_) => RunMode::Persisting,
            Mode::Ending(ending) if ending.is_done() => RunMode::Done,
            Mode::Ending(_) => RunMode::Stopped,
            Mode::Ended => RunMode::Ended,
        }
    }
}
