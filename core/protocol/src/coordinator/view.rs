//! The present state for people.

use super::{Coordinator, Mode, RunMode, Snapshot, WorkerView};
use varuna_plan::{Generation, Step, WorkerId};

impl Coordinator {
    /// The present state for people and for `status`.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let plan = self.record.plan.as_ref();
        let generation = plan.map_or(Generation(0), |p| p.generation);
        Snapshot {
            mode: self.run_mode(generation),
            term: self.term,
            generation,
            next: self.record.next.as_ref().map(|p| p.generation),
            step: self.published.step().max(self.best.step),
            last_step: self.config.last_step,
            plan: plan.map(|p| p.shape.summary()),
            predicted_ms: plan.map(|p| p.shape.predicted.step_ms),
            observed_ms: self.published.pace().map(|p| p.as_secs_f64() * 1e3),
            members: plan.map_or(0, |p| p.members().len()),
            min_workers: self.config.min_workers,
            max_workers: self.max_workers,
            workers: self.workers.keys().map(|id| self.worker_view(*id)).collect(),
        }
    }

    fn run_mode(&self, generation: Generation) -> RunMode {
        match self.mode {
            Mode::Boot => RunMode::Starting,
            Mode::Settling { .. } => RunMode::Settling,
            Mode::Active if self.record.next.is_some() => RunMode::Changing,
            Mode::Active if self.gone == generation => RunMode::Training,
            Mode::Active => RunMode::Launching,
            Mode::Collecting { .. } if self.complained.is_some() || self.record.plan.is_none() => {
                RunMode::Waiting
            }
            Mode::Collecting { .. } => RunMode::Recovering,
            Mode::Persisting => RunMode::Persisting,
            Mode::Done { .. } => RunMode::Done,
            Mode::Stopping { .. } => RunMode::Stopped,
            Mode::Lost | Mode::Deposed | Mode::Ended => RunMode::Ended,
        }
    }

    fn worker_view(&self, id: WorkerId) -> WorkerView {
        let worker = self.workers.get(&id);
        let hello = worker.and_then(|w| w.hello.as_ref());
        let status = worker.and_then(|w| w.status);
        let plan = self.record.plan.as_ref();
        let place = plan.and_then(|p| p.shape.place(id));
        let segments = plan.map_or_else(Vec::new, |p| p.shape.segments_of(id));
        WorkerView {
            id,
            name: self.name(id),
            node: hello.map_or_else(String::new, |h| h.node.clone()),
            up: worker.is_some_and(|w| w.up),
            phase: status.map(|s| s.phase),
            generation: status.map_or(Generation(0), |s| s.generation),
            step: status.map_or(Step(0), |s| s.at.step),
            draining: status.is_some_and(|s| s.draining),
            speed: self.speed(id),
            segments,
            pipeline: place.map(|(i, _)| i),
        }
    }
}
