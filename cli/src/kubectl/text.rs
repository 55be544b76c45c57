//! What `kubectl varuna` prints. Pure.

use crate::failure::Failure;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use std::fmt::Write as _;
use varuna_api::crd::{RecoveryTotals, Status};
use varuna_api::{ConditionType, Reason};

/// Recoveries and changes of plan that `status` shows.
const RECENT: usize = 5;

/// A job as its API server has it.
pub(super) struct JobView {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    /// `spec.elasticity.maxWorkers`.
    pub(super) most_workers: Option<i64>,
    /// Whether the job names a location for checkpoints.
    pub(super) saves: bool,
    pub(super) status: Status,
}

/// Something that happened to a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct JobEvent {
    pub(super) at: Timestamp,
    pub(super) reason: String,
    pub(super) text: String,
}

/// A text with its control characters escaped. Whoever may write Events, or end a container with a message, could otherwise change what a
/// terminal shows, or begin a line that looks like one of this program's own.
pub(super) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// The same for all texts of a document.
pub(super) fn make_printable(document: &mut Value) {
    match document {
        Value::String(text) => *text = printable(text),
        Value::Array(entries) => entries.iter_mut().for_each(make_printable),
        Value::Object(fields) => fields.values_mut().for_each(make_printable),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Events and history together, oldest first. An entry that is in both is shown once: the operator writes both within a few seconds.
pub(super) fn merged(status: &Status, events: impl Iterator<Item = JobEvent>) -> Vec<JobEvent> {
    let mut all: Vec<JobEvent> = events.collect();
    for entry in &status.history {
        let known = |event: &JobEvent| {
            event.text == entry.text && (event.at.as_second() - entry.at.0.as_second()).abs() <= 10
        };
        if !all.iter().any(known) {
            all.push(JobEvent {
                at: entry.at.0,
                reason: entry.reason.clone(),
                text: entry.text.clone(),
            });
        }
    }
    all.sort_by_key(|happened| happened.at);
    all
}

fn or_dash(text: Option<impl ToString>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| text.to_string())
}

/// Phase, progress, time, plan, checkpoint, what is wrong, latest recoveries.
pub(super) fn status(job: &JobView, happened: &[JobEvent]) -> String {
    let status = &job.status;
    let mut text = format!("{}/{}: {}", job.namespace, job.name, or_dash(status.phase));
    let _ = writeln!(
        text,
        "  step {}  loss {}  {} tok/s  ETA {}",
        or_dash(status.progress.as_ref()),
        or_dash(status.loss.as_ref()),
        or_dash(status.tokens_per_second),
        or_dash(status.eta.as_ref())
    );
    if let Some(message) = &status.message {
        let _ = writeln!(text, "{message}");
    }
    let most = job
        .most_workers
        .map_or(String::new(), |most| format!(" of {most}"));
    let _ = writeln!(text, "workers     {}{most}", status.workers);
    let _ = writeln!(text, "goodput     {}", goodput(status));
    for totals in &status.recovery_totals {
        let _ = writeln!(text, "            {}", recoveries_of(totals));
    }
    let _ = writeln!(text, "plan        {}", plan_line(status));
    for worker in status.plan.iter().flat_map(|plan| &plan.left_out) {
        let _ = writeln!(
            text,
            "            {} is left out: {}",
            worker.name, worker.message
        );
    }
    if let Some(copies) = status.plan.as_ref().and_then(|plan| plan.spare_copies.as_ref()) {
        let (kept, units, why) = (copies.kept, copies.units, &copies.message);
        let _ = writeln!(
            text,
            "            spare copies of {kept} of {units} units that one worker alone holds: {why}"
        );
    }
    let _ = writeln!(text, "checkpoint  {}", checkpoint(status));
    if let Some(time) = &status.time {
        // If only steps change, they are reported less and less often.
        let _ = writeln!(text, "reported    {}", shown_time(time.until.0));
    }
    for kind in [
        ConditionType::Degraded,
        ConditionType::CheckpointStale,
        ConditionType::Failed,
    ] {
        if let Some(condition) = status.if_true(kind) {
            let _ = writeln!(text, "{kind}: {}: {}", condition.reason, condition.message);
        }
    }
    let recoveries = |h: &&JobEvent| {
        [Reason::Resumed, Reason::Planned]
            .iter()
            .any(|reason| h.reason == reason.as_str())
    };
    let recent: Vec<&JobEvent> = happened.iter().rev().filter(recoveries).take(RECENT).collect();
    if !recent.is_empty() {
        let _ = writeln!(text, "recently");
    }
    for happened in recent.into_iter().rev() {
        let _ = writeln!(text, "  {}", line(happened));
    }
    text
}

fn goodput(status: &Status) -> String {
    let Some(time) = &status.time else {
        return "-".to_owned();
    };
    let lost: Vec<String> = [
        (time.repeated_seconds, "trained again"),
        (time.recovering_seconds, "recovering"),
        (time.waiting_seconds, "waiting for workers"),
        (time.starting_seconds, "starting"),
    ]
    .iter()
    .filter(|(seconds, _)| *seconds > 0)
    .map(|(seconds, cause)| format!("{seconds} s {cause}"))
    .collect();
    let lost = if lost.is_empty() {
        "nothing lost".to_owned()
    } else {
        lost.join(", ")
    };
    let share = or_dash(status.goodput.as_ref());
    format!("{share}  ({} s training; {lost})", time.training_seconds)
}

/// What recoveries of one cause have cost.
fn recoveries_of(totals: &RecoveryTotals) -> String {
    let cause = match totals.cause.as_str() {
        "lost" => "losses of workers",
        "notice" => "notices",
        "joined" => "changes for workers that came",
        "takeover" => "changes of the coordinator",
        _ => "other changes",
    };
    let (count, pause) = (totals.count, seconds(totals.pause_ms));
    let workers = match totals.workers_lost {
        0 => String::new(),
        lost => format!(" ({lost} workers)"),
    };
    format!(
        "{count} {cause}{workers}: {pause} s without training, {} steps lost",
        totals.steps_lost
    )
}

fn plan_line(status: &Status) -> String {
    let Some(plan) = &status.plan else {
        return "none yet".to_owned();
    };
    let ms = |ms: Option<i64>| or_dash(ms.map(|ms| format!("{ms} ms")));
    format!(
        "{} ({}) with {} workers, {} idle; a step takes {}, predicted {}",
        plan.generation,
        plan.shape,
        plan.workers,
        plan.idle,
        ms(plan.observed_step_ms),
        ms(plan.predicted_step_ms)
    )
}

fn checkpoint(status: &Status) -> String {
    let Some(checkpoint) = &status.checkpoint else {
        return "-".to_owned();
    };
    let newest = checkpoint
        .newest_step
        .map_or("none yet".to_owned(), |s| format!("of step {s}"));
    let behind = or_dash(checkpoint.steps_behind);
    let failing = checkpoint.failing.as_ref();
    let failing = failing.map_or(String::new(), |why| format!("; the store fails: {why}"));
    format!("{newest}, {behind} steps behind{failing}")
}

/// The plan in force, and the ranks of each stage.
///
/// # Errors
/// There is none yet.
pub(super) fn plan(job: &JobView) -> Result<String, Failure> {
    let Some(plan) = &job.status.plan else {
        return Err(Failure::Input(format!("{} has no plan yet", job.name)));
    };
    let mut text = format!("plan {}\n", plan_line(&job.status));
    if let Some(map) = &plan.rank_map {
        let _ = writeln!(text, "rank map {map}");
        for (stage, ranks) in map.split_terminator(';').enumerate() {
            let _ = writeln!(text, "  stage {stage:<3} ranks {}", ranks.replace(',', ", "));
        }
    }
    Ok(text)
}

/// A line for each.
pub(super) fn events(happened: &[JobEvent]) -> String {
    happened
        .iter()
        .fold(String::new(), |text, happened| text + &line(happened) + "\n")
}

fn shown_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// Milliseconds as seconds.
fn seconds(ms: i64) -> String {
    format!("{}.{:03}", ms / 1000, (ms % 1000).abs())
}

fn line(happened: &JobEvent) -> String {
    let at = shown_time(happened.at);
    format!("{at}  {:<16} {}", happened.reason, happened.text)
}

#[cfg(test)]
mod tests;
