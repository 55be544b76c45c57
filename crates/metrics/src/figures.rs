//! The figures of a run as they are now: written as its coordinator publishes views, and read whenever somebody asks.

use crate::goodput::Goodput;
use parking_lot::Mutex;
use std::time::{Duration, SystemTime};
use varuna_coordinator::View;
use varuna_protocol::coordinator::SpareCopiesView;
use varuna_run_folder::Metric;

/// What the coordinator published last.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Run {
    pub(crate) step: Option<u64>,
    /// The last step and its figures, if it is known here.
    pub(crate) metric: Option<Metric>,
    pub(crate) observed_ms: Option<f64>,
    pub(crate) predicted_ms: Option<f64>,
    pub(crate) members: usize,
    pub(crate) spares: usize,
    pub(crate) spare_copies: Option<SpareCopiesView>,
    pub(crate) failing: bool,
    pub(crate) goodput: Goodput,
    /// Step of the newest checkpoint, and when it was first seen.
    pub(crate) checkpoint: Option<(u64, SystemTime)>,
}

/// The figures of one run.
#[derive(Debug, Default)]
pub struct Figures(Mutex<Run>);

impl Figures {
    /// The coordinator published this view, at this time since its start.
    pub fn observe(&self, view: &View, now: Duration) {
        let Some(snapshot) = &view.snapshot else { return };
        let mut run = self.0.lock();
        run.goodput.observe(now, snapshot.run.mode.is_training());
        let newest = view.checkpoints.as_ref().and_then(|s| s.newest);
        if let Some(newest) = newest.filter(|n| run.checkpoint.is_none_or(|(known, _)| known != n.0)) {
            run.checkpoint = Some((newest.0, SystemTime::now()));
        }
        // Losses are reported in order and a little after the step: show a loss with its own step, not with the newest.
        let metric = view.metric.as_ref().filter(|m| m.step <= snapshot.run.step);
        let attached = snapshot.workers.iter().filter(|w| w.up).count();
        let known_step = (snapshot.run.generation.0 > 0).then_some(snapshot.run.step.0);
        run.step = metric.map(|m| m.step.0).or(known_step);
        run.metric = metric.cloned();
        run.observed_ms = snapshot.run.observed_ms;
        run.predicted_ms = snapshot.run.predicted_ms;
        run.members = snapshot.run.members;
        run.spares = attached.saturating_sub(snapshot.run.members);
        run.spare_copies.clone_from(&snapshot.run.spare_copies);
        run.failing = view.checkpoints.as_ref().is_some_and(|s| s.failing.is_some());
    }

    /// The run went back by a number of steps, each of which took `step_ms` milliseconds.
    pub fn lost(&self, steps: u64, step_ms: f64) {
        #[expect(clippy::cast_precision_loss, reason = "steps are far below 2^52")]
        let time = steps as f64 * step_ms.max(0.0) / 1e3;
        let time = Duration::try_from_secs_f64(time).unwrap_or_default();
        self.0.lock().goodput.lost(time);
    }

    /// All of them at one moment.
    pub(crate) fn now(&self) -> Run {
        self.0.lock().clone()
    }
}
