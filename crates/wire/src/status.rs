//! The status of a run, as `status.json` has it.

use crate::error::{WireError, need};
use crate::up::{phase_to_wire, read_phase};
use crate::v1;
use varuna_plan::spare_copies::SpareCopyDecision;
use varuna_plan::{Generation, SegmentRange, Step, WorkerId};
use varuna_protocol::RunMode;
use varuna_protocol::coordinator::{
    LeftOut, LeftOutReason, RunView, SpareCopiesVerdict, SpareCopiesView, WorkerView,
};
use varuna_run_folder::{CheckpointStatus, RunStatus, StepTimings, WorkerStatus};

/// The wire form.
#[must_use]
pub fn to_wire(status: &RunStatus) -> v1::RunStatus {
    let run = &status.run;
    v1::RunStatus {
        job: status.job.clone(),
        mode: mode_to_wire(run.mode),
        term: run.term,
        generation: run.generation.0,
        next: run.next.map(|g| g.0),
        step: run.step.0,
        last_step: run.last_step.0,
        loss: status.loss,
        skipped_steps: status.skipped_steps,
        loss_scale: status.loss_scale,
        plan: run.plan.clone(),
        predicted_ms: run.predicted_ms,
        observed_ms: run.observed_ms,
        compute_factor: run.compute_factor,
        members: run.members as u64,
        min_workers: run.min_workers as u64,
        max_workers: run.max_workers.map(|n| n as u64),
        checkpoint: status.checkpoint.as_ref().map(checkpoint_to_wire),
        spare_copies: run.spare_copies.as_ref().map(spare_copies_to_wire),
        workers: status.workers.iter().map(worker_to_wire).collect(),
    }
}

/// Reads a status from the wire and checks it.
///
/// # Errors
/// A missing field, or a value that is not allowed.
pub fn from_wire(reply: v1::StatusReply) -> Result<RunStatus, WireError> {
    const M: &str = "RunStatus";
    let status = need(reply.status, "StatusReply", "status")?;
    let max_workers = status.max_workers.map(|n| count(n, M, "max_workers"));
    let workers = status.workers.into_iter().map(read_worker);
    Ok(RunStatus {
        job: status.job,
        run: RunView {
            mode: read_mode(status.mode)?,
            term: status.term,
            generation: Generation(status.generation),
            next: status.next.map(Generation),
            step: Step(status.step),
            last_step: Step(status.last_step),
            plan: status.plan,
            predicted_ms: status.predicted_ms,
            observed_ms: status.observed_ms,
            compute_factor: status.compute_factor,
            members: count(status.members, M, "members")?,
            min_workers: count(status.min_workers, M, "min_workers")?,
            max_workers: max_workers.transpose()?,
            spare_copies: status.spare_copies.map(read_spare_copies).transpose()?,
        },
        loss: status.loss,
        skipped_steps: status.skipped_steps,
        loss_scale: status.loss_scale,
        checkpoint: status.checkpoint.map(read_checkpoint),
        workers: workers.collect::<Result<_, _>>()?,
    })
}

/// A mode or a reason of a later release is never reported by this release itself. When it is passed on, it has a number that no release
/// gives to one.
const OF_A_LATER_RELEASE: i32 = -1;

fn mode_to_wire(mode: RunMode) -> i32 {
    let known = match mode {
        RunMode::Starting => v1::RunMode::Starting,
        RunMode::Settling => v1::RunMode::Settling,
        RunMode::Launching => v1::RunMode::Launching,
        RunMode::Training => v1::RunMode::Training,
        RunMode::Changing => v1::RunMode::Changing,
        RunMode::Waiting => v1::RunMode::Waiting,
        RunMode::Recovering => v1::RunMode::Recovering,
        RunMode::Persisting => v1::RunMode::Persisting,
        RunMode::Done => v1::RunMode::Done,
        RunMode::Stopped => v1::RunMode::Stopped,
        RunMode::Ended => v1::RunMode::Ended,
        RunMode::Unknown => return OF_A_LATER_RELEASE,
    };
    known.into()
}

/// Reads a mode. One that only a later release knows does not make the rest of the status unreadable.
fn read_mode(mode: i32) -> Result<RunMode, WireError> {
    Ok(match v1::RunMode::try_from(mode) {
        Ok(v1::RunMode::Starting) => RunMode::Starting,
        Ok(v1::RunMode::Settling) => RunMode::Settling,
        Ok(v1::RunMode::Launching) => RunMode::Launching,
        Ok(v1::RunMode::Training) => RunMode::Training,
        Ok(v1::RunMode::Changing) => RunMode::Changing,
        Ok(v1::RunMode::Waiting) => RunMode::Waiting,
        Ok(v1::RunMode::Recovering) => RunMode::Recovering,
        Ok(v1::RunMode::Persisting) => RunMode::Persisting,
        Ok(v1::RunMode::Done) => RunMode::Done,
        Ok(v1::RunMode::Stopped) => RunMode::Stopped,
        Ok(v1::RunMode::Ended) => RunMode::Ended,
        Ok(v1::RunMode::Unspecified) => {
            return Err(WireError::value("RunStatus", "mode", mode, "a mode"));
        }
        Err(_) => RunMode::Unknown,
    })
}

fn spare_copies_to_wire(view: &SpareCopiesView) -> v1::SpareCopies {
    v1::SpareCopies {
        units: view.units as u64,
        kept: view.kept as u64,
        in_step: view.in_step as u64,
        verdict: view.verdict.as_ref().map(verdict_to_wire),
    }
}

fn verdict_to_wire(verdict: &SpareCopiesVerdict) -> v1::SpareCopiesVerdict {
    let known = match verdict.reason {
        SpareCopyDecision::Kept => Some(v1::SpareCopyDecision::Kept),
        SpareCopyDecision::KeptInPart => Some(v1::SpareCopyDecision::KeptInPart),
        SpareCopyDecision::KeptWhereLinksAllow => Some(v1::SpareCopyDecision::KeptWhereLinksAllow),
        SpareCopyDecision::NotWanted => Some(v1::SpareCopyDecision::NotWanted),
        SpareCopyDecision::NothingAlone => Some(v1::SpareCopyDecision::NothingAlone),
        SpareCopyDecision::NoKeeper => Some(v1::SpareCopyDecision::NoKeeper),
        SpareCopyDecision::LinksTooSlow => Some(v1::SpareCopyDecision::LinksTooSlow),
        SpareCopyDecision::LossesTooRare => Some(v1::SpareCopyDecision::LossesTooRare),
        SpareCopyDecision::Unknown => None,
    };
    v1::SpareCopiesVerdict {
        decision: known.map_or(OF_A_LATER_RELEASE, i32::from),
        why: verdict.why.clone(),
    }
}

/// Reads what was decided about spare copies. A decision that only a later release knows still has its sentence.
fn read_verdict(verdict: v1::SpareCopiesVerdict) -> Result<SpareCopiesVerdict, WireError> {
    let v1::SpareCopiesVerdict { decision, why } = verdict;
    let reason = match v1::SpareCopyDecision::try_from(decision) {
        Ok(v1::SpareCopyDecision::Kept) => SpareCopyDecision::Kept,
        Ok(v1::SpareCopyDecision::KeptInPart) => SpareCopyDecision::KeptInPart,
        Ok(v1::SpareCopyDecision::KeptWhereLinksAllow) => SpareCopyDecision::KeptWhereLinksAllow,
        Ok(v1::SpareCopyDecision::NotWanted) => SpareCopyDecision::NotWanted,
        Ok(v1::SpareCopyDecision::NothingAlone) => SpareCopyDecision::NothingAlone,
        Ok(v1::SpareCopyDecision::NoKeeper) => SpareCopyDecision::NoKeeper,
        Ok(v1::SpareCopyDecision::LinksTooSlow) => SpareCopyDecision::LinksTooSlow,
        Ok(v1::SpareCopyDecision::LossesTooRare) => SpareCopyDecision::LossesTooRare,
        Ok(v1::SpareCopyDecision::Unspecified) => {
            return Err(WireError::value(
                "SpareCopiesVerdict",
                "decision",
                decision,
                "a decision",
            ));
        }
        Err(_) => SpareCopyDecision::Unknown,
    };
    Ok(SpareCopiesVerdict { reason, why })
}

fn read_spare_copies(view: v1::SpareCopies) -> Result<SpareCopiesView, WireError> {
    const M: &str = "SpareCopies";
    let units = |number: u64, field: &'static str| {
        usize::try_from(number).map_err(|_| WireError::value(M, field, number, "a number of units"))
    };
    Ok(SpareCopiesView {
        units: units(view.units, "units")?,
        kept: units(view.kept, "kept")?,
        in_step: units(view.in_step, "in_step")?,
        verdict: view.verdict.map(read_verdict).transpose()?,
    })
}

fn count(number: u64, message: &'static str, field: &'static str) -> Result<usize, WireError> {
    usize::try_from(number).map_err(|_| WireError::value(message, field, number, "a number of workers"))
}

fn checkpoint_to_wire(checkpoint: &CheckpointStatus) -> v1::CheckpointStatus {
    v1::CheckpointStatus {
        newest: checkpoint.newest.clone(),
        newest_step: checkpoint.newest_step.map(|s| s.0),
        steps_behind: checkpoint.steps_behind,
        failing: checkpoint.failing.clone(),
    }
}

fn read_checkpoint(checkpoint: v1::CheckpointStatus) -> CheckpointStatus {
    CheckpointStatus {
        newest: checkpoint.newest,
        newest_step: checkpoint.newest_step.map(Step),
        steps_behind: checkpoint.steps_behind,
        failing: checkpoint.failing,
    }
}

fn worker_to_wire(worker: &WorkerStatus) -> v1::AttachedWorker {
    let range = |range: &SegmentRange| v1::SegmentRange {
        start: range.start,
        end: range.end,
    };
    let view = &worker.view;
    v1::AttachedWorker {
        id: view.id.0,
        name: view.name.clone(),
        node: view.node.clone(),
        up: view.up,
        phase: view.phase.map_or(v1::Phase::Unspecified, phase_to_wire).into(),
        generation: view.generation.0,
        step: view.step.0,
        draining: view.draining,
        speed: view.speed,
        segments: view.segments.iter().map(range).collect(),
        pipeline: view.pipeline.map(|i| i as u64),
        pid: worker.pid,
        host: worker.host.clone(),
        device: worker.device.clone(),
        timings: worker.timings.as_ref().map(timings_to_wire),
        left_out: view.left_out.as_ref().map(left_out_to_wire),
    }
}

fn read_worker(worker: v1::AttachedWorker) -> Result<WorkerStatus, WireError> {
    const M: &str = "AttachedWorker";
    let range = |range: v1::SegmentRange| SegmentRange {
        start: range.start,
        end: range.end,
    };
    Ok(WorkerStatus {
        view: WorkerView {
            id: WorkerId(worker.id),
            name: worker.name,
            node: worker.node,
            up: worker.up,
            phase: read_phase(worker.phase, M)?,
            generation: Generation(worker.generation),
            step: Step(worker.step),
            draining: worker.draining,
            speed: worker.speed,
            segments: worker.segments.into_iter().map(range).collect(),
            pipeline: worker.pipeline.map(|i| count(i, M, "pipeline")).transpose()?,
            left_out: worker.left_out.map(read_left_out).transpose()?,
        },
        pid: worker.pid,
        host: worker.host,
        device: worker.device,
        timings: worker.timings.as_ref().map(read_timings),
    })
}

fn left_out_to_wire(left_out: &LeftOut) -> v1::LeftOut {
    let known = match left_out.reason {
        LeftOutReason::Leaving => Some(v1::LeftOutReason::Leaving),
        LeftOutReason::WrongBits => Some(v1::LeftOutReason::WrongBits),
        LeftOutReason::Unsound => Some(v1::LeftOutReason::Unsound),
        LeftOutReason::NoData => Some(v1::LeftOutReason::NoData),
        LeftOutReason::BadLink => Some(v1::LeftOutReason::BadLink),
        LeftOutReason::Slow => Some(v1::LeftOutReason::Slow),
        LeftOutReason::MaxWorkers => Some(v1::LeftOutReason::MaxWorkers),
        LeftOutReason::NotNeeded => Some(v1::LeftOutReason::NotNeeded),
        LeftOutReason::NotWorthAChange => Some(v1::LeftOutReason::NotWorthAChange),
        LeftOutReason::New => Some(v1::LeftOutReason::New),
        LeftOutReason::NoMemory => Some(v1::LeftOutReason::NoMemory),
        LeftOutReason::Unknown => None,
    };
    v1::LeftOut {
        reason: known.map_or(OF_A_LATER_RELEASE, i32::from),
        why: left_out.why.clone(),
    }
}

/// Reads why a worker is left out. A reason that only a later release knows still has its sentence.
fn read_left_out(left_out: v1::LeftOut) -> Result<LeftOut, WireError> {
    let v1::LeftOut { reason, why } = left_out;
    let reason = match v1::LeftOutReason::try_from(reason) {
        Ok(v1::LeftOutReason::Leaving) => LeftOutReason::Leaving,
        Ok(v1::LeftOutReason::WrongBits) => LeftOutReason::WrongBits,
        Ok(v1::LeftOutReason::Unsound) => LeftOutReason::Unsound,
        Ok(v1::LeftOutReason::NoData) => LeftOutReason::NoData,
        Ok(v1::LeftOutReason::BadLink) => LeftOutReason::BadLink,
        Ok(v1::LeftOutReason::Slow) => LeftOutReason::Slow,
        Ok(v1::LeftOutReason::MaxWorkers) => LeftOutReason::MaxWorkers,
        Ok(v1::LeftOutReason::NotNeeded) => LeftOutReason::NotNeeded,
        Ok(v1::LeftOutReason::NotWorthAChange) => LeftOutReason::NotWorthAChange,
        Ok(v1::LeftOutReason::New) => LeftOutReason::New,
        Ok(v1::LeftOutReason::NoMemory) => LeftOutReason::NoMemory,
        Ok(v1::LeftOutReason::Unspecified) => {
            return Err(WireError::value("LeftOut", "reason", reason, "a reason"));
        }
        Err(_) => LeftOutReason::Unknown,
    };
    Ok(LeftOut { reason, why })
}

fn timings_to_wire(timings: &StepTimings) -> v1::StepMetrics {
    v1::StepMetrics {
        step: timings.step.0,
        step_ms: timings.step_ms,
        forward_ms: timings.forward_ms,
        backward_ms: timings.backward_ms,
        recompute_ms: timings.recompute_ms,
        wait_ms: timings.wait_ms,
        reduce_ms: timings.reduce_ms,
        apply_ms: timings.apply_ms,
        apply_cpu_ms: timings.apply_cpu_ms,
        ..v1::StepMetrics::default()
    }
}

fn read_timings(timings: &v1::StepMetrics) -> StepTimings {
    StepTimings {
        step: Step(timings.step),
        step_ms: timings.step_ms,
        forward_ms: timings.forward_ms,
        backward_ms: timings.backward_ms,
        recompute_ms: timings.recompute_ms,
        wait_ms: timings.wait_ms,
        reduce_ms: timings.reduce_ms,
        apply_ms: timings.apply_ms,
        apply_cpu_ms: timings.apply_cpu_ms,
    }
}
