//! A plan as text and as JSON.

use serde_json::{Value, json};
use std::fmt::Write as _;
use varuna_plan::predict::Spread;
use varuna_plan::{
    Costs, Explained, PlanRequest, Recompute, RunnerUp, ScheduleKind, ScheduleSpec, Shape, schedule,
};

/// Stages and micro-batches up to which a schedule is listed; larger ones are shown by --svg.
const LISTED: (usize, u64) = (8, 16);

/// Name of a way to recompute, as in the job file.
fn recompute_name(recompute: Recompute) -> &'static str {
    match recompute {
        Recompute::None => "none",
        Recompute::Selective => "selective",
        Recompute::Full => "full",
    }
}

/// Text of a schedule, for example `1f1b w=2, recompute full`.
fn schedule_name(spec: &ScheduleSpec) -> String {
    let order = match spec.kind {
        ScheduleKind::Gpipe => "gpipe".to_owned(),
        ScheduleKind::OneForwardOneBackward { warmup_factor } => format!("1f1b w={warmup_factor}"),
        ScheduleKind::Interleaved { chunks } => format!("interleaved x{chunks}"),
    };
    match spec.recompute {
        Recompute::None => order,
        some => format!("{order}, recompute {}", recompute_name(some)),
    }
}

/// Samples per second.
#[expect(clippy::cast_precision_loss, reason = "a batch")]
pub(super) fn rate(batch: u64, step_ms: f64) -> f64 {
    batch as f64 / step_ms * 1e3
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1u32 << 30)
}

pub(super) fn text(explained: &Explained, request: &PlanRequest, noisy: Spread, costs: &Costs) -> String {
    let shape = &explained.shape;
    let (p, parts) = (&shape.predicted, explained.parts);
    let workers = shape.members().len();
    let mut text = format!(
        "plan {}  workers {workers} of {}  micro-batch {}  {}\n\
         predicted step {:.1} ms  (p95 {:.1} ms with times up to 10 % longer)  {:.2} samples/s  bubble {:.0} %{}\n\
         of the step: {:.1} ms at the rate of the slowest stage, {:.1} ms fill and drain, {:.1} ms rings and optimizer\n",
        shape.summary(),
        request.workers.len(),
        shape.micro_batch_size,
        schedule_name(&shape.schedule),
        p.step_ms,
        noisy.p95_ms,
        rate(request.global_batch_size, p.step_ms),
        p.bubble * 100.0,
        if p.calibrated {
            ""
        } else {
            "  (estimated, not calibrated)"
        },
        parts.steady_ms,
        // Rounding may make it slightly negative.
        parts.fill_ms.max(0.0),
        parts.rings_ms,
    );
    if request.parent.is_some() {
        let _ = writeln!(text, "to move: {:.2} GiB of state", gib(explained.moved_bytes));
    }
    pipelines(&mut text, explained, costs);
    spares(&mut text, shape);
    runners_up(&mut text, explained);
    text
}

/// Each pipeline; of equal neighbours only the first.
fn pipelines(text: &mut String, explained: &Explained, costs: &Costs) {
    let shape = &explained.shape;
    let alike = |a: usize, b: usize| {
        let (a, b) = (&shape.pipelines[a], &shape.pipelines[b]);
        let stages = a
            .stages
            .iter()
            .map(|s| (s.segments, s.recompute))
            .eq(b.stages.iter().map(|s| (s.segments, s.recompute)));
        stages && a.samples.len() == b.samples.len()
    };
    let mut i = 0;
    while i < shape.pipelines.len() {
        let pipeline = &shape.pipelines[i];
        let until = (i + 1..shape.pipelines.len())
            .find(|j| !alike(i, *j))
            .unwrap_or(shape.pipelines.len());
        let batches = pipeline.micro_batches(shape.micro_batch_size);
        let more = match until - i {
            1 => String::new(),
            n => format!(" (and {} alike up to pipeline {})", n - 1, until - 1),
        };
        let _ = writeln!(
            text,
            "pipeline {i}: samples {}..{} of each step, {batches} micro-batches{more}",
            pipeline.samples.start, pipeline.samples.end
        );
        for (j, stage) in pipeline.stages.iter().enumerate() {
            let m = shape.micro_batch_size;
            let _ = writeln!(
                text,
                "  stage {j}: worker {} segments {}  recompute {}  forward {:.2} ms  backward {:.2} ms  memory {:.2} GiB",
                stage.worker.0,
                stage.segments,
                recompute_name(shape.schedule_of(stage).recompute),
                costs.forward_ms(stage.segments, m),
                costs.backward_ms(stage.segments, m),
                gib(explained.memory_bytes[i][j]),
            );
        }
        if pipeline.stages.len() <= LISTED.0 && batches <= LISTED.1 {
            let batches = u32::try_from(batches).unwrap_or(u32::MAX);
            let specs: Vec<_> = pipeline.stages.iter().map(|s| shape.schedule_of(s)).collect();
            for line in schedule::text(&specs, batches).lines() {
                let _ = writeln!(text, "    {line}");
            }
        }
        i = until;
    }
}

/// Spare workers, grouped by reason.
fn spares(text: &mut String, shape: &Shape) {
    for same in shape.spares.chunk_by(|a, b| a.reason == b.reason) {
        let ids: Vec<String> = same.iter().take(8).map(|s| s.worker.0.to_string()).collect();
        let more = if same.len() > 8 {
            format!(" and {} more", same.len() - 8)
        } else {
            String::new()
        };
        let _ = writeln!(text, "spare: worker {}{more}: {}", ids.join(", "), same[0].reason);
    }
}

fn runners_up(text: &mut String, explained: &Explained) {
    let _ = writeln!(
        text,
        "runners-up (of {} plans scored, {} simulated):",
        explained.scored, explained.simulated
    );
    for r in &explained.runners_up {
        let RunnerUp { summary, workers, .. } = r;
        let _ = writeln!(
            text,
            "  {summary:<14} workers {workers:<5} micro-batch {:<3} {:<24} {:>9.1} ms  bubble {:>2.0} %  {}",
            r.micro_batch_size,
            schedule_name(&r.schedule),
            r.step_ms,
            r.bubble * 100.0,
            r.why
        );
    }
    if explained.runners_up.is_empty() {
        let _ = writeln!(text, "  none: no other plan comes near");
    }
}

/// The plan as JSON: its own fields and what the planner knows about it, at one level.
pub(super) fn json(explained: &Explained, request: &PlanRequest, noisy: Spread) -> Value {
    let shape = &explained.shape;
    let runner_up = |r: &RunnerUp| {
        json!({
            "summary": r.summary, "microBatchSize": r.micro_batch_size, "schedule": r.schedule, "workers": r.workers,
            "stepMs": r.step_ms, "bubble": r.bubble, "why": r.why,
        })
    };
    let mut value = serde_json::to_value(shape).unwrap_or_default();
    let parts = explained.parts;
    let more = json!({
        "summary": shape.summary(),
        "workers": shape.members().len(),
        "samplesPerS": rate(request.global_batch_size, shape.predicted.step_ms),
        "p95Ms": noisy.p95_ms,
        "parts": {"steadyMs": parts.steady_ms, "fillMs": parts.fill_ms, "ringsMs": parts.rings_ms},
        "memoryBytes": explained.memory_bytes,
        "movedBytes": explained.moved_bytes,
        "scored": explained.scored,
        "simulated": explained.simulated,
        "runnersUp": explained.runners_up.iter().map(runner_up).collect::<Vec<_>>(),
    });
    if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
        value.extend(more);
    }
    value
}
