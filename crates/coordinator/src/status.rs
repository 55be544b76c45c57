//! Builds the status document from its parts.

use crate::streams::{Stream, Streams};
use varuna_plan::StateId;
use varuna_protocol::coordinator::{Observed, Snapshot, WorkerView};
use varuna_run_folder::{CheckpointStatus, Metric, RunStatus, StepTimings, WorkerStatus};
use varuna_wire::StepMetrics;

/// The content of `status.json`, and the answer to a `Status` request. `metric`: the newest published step.
pub(crate) fn run_status(
    job: &str,
    snapshot: Snapshot,
    streams: &Streams,
    metric: Option<&Metric>,
    checkpoint: Option<CheckpointStatus>,
) -> RunStatus {
    let workers = snapshot.workers.into_iter().filter(|w| w.up);
    RunStatus {
        job: job.to_owned(),
        run: snapshot.run,
        loss: metric.and_then(Metric::mean_loss).filter(|loss| loss.is_finite()),
        skipped_steps: metric.map(|m| m.skipped_steps),
        loss_scale: metric.and_then(|m| m.loss_scale),
        checkpoint,
        workers: workers
            .filter_map(|view| Some(worker_status(streams.get(view.id)?, view)))
            .collect(),
    }
}

fn worker_status(stream: &Stream, view: WorkerView) -> WorkerStatus {
    WorkerStatus {
        view,
        pid: stream.hello.pid,
        host: stream.hello.host.clone(),
        device: stream.hello.device.clone(),
        timings: stream.timings.as_ref().map(timings),
    }
}

fn timings(metrics: &StepMetrics) -> StepTimings {
    StepTimings {
        step: metrics.step,
        step_ms: metrics.step_ms,
        forward_ms: metrics.forward_ms,
        backward_ms: metrics.backward_ms,
        recompute_ms: metrics.recompute_ms,
        wait_ms: metrics.wait_ms,
        reduce_ms: metrics.reduce_ms,
        apply_ms: metrics.apply_ms,
        apply_cpu_ms: metrics.apply_cpu_ms,
    }
}

/// The checkpoints of a run that has committed `step` steps.
pub(crate) fn checkpoint_status(
    newest: Option<StateId>,
    failing: Option<String>,
    step: varuna_plan::Step,
) -> CheckpointStatus {
    CheckpointStatus {
        newest: newest.map(varuna_checkpoint::folder_name),
        newest_step: newest.map(|id| id.step),
        steps_behind: newest.map(|id| step.0.saturating_sub(id.step.0)),
        failing,
    }
}

/// The part of a worker's step times that the protocol estimates speeds from.
pub(crate) fn observed(metrics: &StepMetrics) -> Observed {
    let segments = metrics.segments.iter();
    Observed {
        generation: metrics.generation,
        step: metrics.step,
        micro_batch_size: metrics.micro_batch_size,
        busy_ms: metrics.forward_ms + metrics.backward_ms,
        segments: segments
            .map(|s| (s.segment, s.forward_ms + s.backward_ms))
            .collect(),
    }
}
