//! How fast a job is, when it will be done, how its time was spent and what has happened to it. Pure: data that is kept from one report to
//! the next is in the status, so that another leader can continue with it.

use super::decision::{Decision, EventNote, time};
use super::events::deletion_events;
use super::observed::{Observed, ObservedRun, whole};
use std::collections::BTreeMap;
use varuna_api::crd::{
    HISTORY_MAX, HistoryEntry, LEFT_OUT_MAX, LeftOutWorker, RECOVERIES_MAX, Recovery, RecoveryTotals,
    SpareCopiesStatus, Status, TimeSpent,
};
use varuna_api::{JobPhase, Reason};
use varuna_protocol::coordinator::Snapshot;

/// The most characters of a rank map. A longer map is left out, because the status is part of one object in the API server.
const RANK_MAP_MAX: usize = 4096;
/// Causes that recoveries are counted by; a job has five.
const CAUSES_MAX: usize = 8;
/// The cause of all others.
const OTHER_CAUSE: &str = "other";
/// Characters of a sentence in the history.
const SENTENCE_MAX: usize = 300;

/// Notes step, speed, time left and goodput. To be called with the present phase, step and plan in `status`; `lost`: the number of steps by which the
/// job has just gone back.
pub(super) fn note_progress(observed: &Observed, lost: i64, status: &mut Status) {
    let Ok(job) = &observed.job.spec else { return };
    let last = status.steps.unwrap_or_else(|| whole(job.training.steps));
    status.progress = status.step.map(|step| format!("{step}/{last}"));
    note_time(observed, lost, status);
    let run = observed.run.as_ref().and_then(|r| r.snapshot.as_ref());
    // What was observed of another plan, or before a pause, says nothing of now.
    let step_ms = run
        .and_then(|s| s.run.observed_ms)
        .filter(|ms| *ms > 0.0 && status.phase == Some(JobPhase::Training));
    let tokens = job
        .training
        .global_batch_size
        .saturating_mul(u64::from(job.model.sample_length()));
    status.tokens_per_second = step_ms.map(|ms| rounded(to_f64(whole(tokens)) * 1e3 / ms));
    let left = status.step.map(|step| (last - step).max(0));
    status.eta = step_ms
        .zip(left)
        .map(|(ms, left)| duration(rounded(to_f64(left) * ms / 1e3)));
}

/// Counts the time since the last report for the phase of that report.
fn note_time(observed: &Observed, lost: i64, status: &mut Status) {
    let before = &observed.job.status;
    let Some(mut spent) = before.time.clone() else {
        let trains = status.phase == Some(JobPhase::Training);
        status.time = trains.then(|| TimeSpent::since(time(observed.now)));
        return;
    };
    let passed = (observed.now - spent.until.0.as_second()).max(0);
    match before.phase {
        Some(JobPhase::Training) => spent.training_seconds += passed,
        Some(JobPhase::Recovering) => spent.recovering_seconds += passed,
        Some(JobPhase::Waiting) => spent.waiting_seconds += passed,
        Some(JobPhase::Starting | JobPhase::Pending) => spent.starting_seconds += passed,
        _ => {}
    }
    let step_ms = before.plan.as_ref().and_then(|p| p.observed_step_ms).unwrap_or(0);
    spent.repeated_seconds += lost.saturating_mul(step_ms) / 1000;
    spent.until = time(observed.now.max(spent.until.0.as_second()));
    status.goodput = spent.goodput().map(|share| format!("{:.1}%", share * 100.0));
    status.time = Some(spent);
}

/// Adds what has happened to the history, which outlives Events.
pub(super) fn note_history(
    observed: &Observed,
    decision: &Decision<'_>,
    events: &[EventNote],
    lost: i64,
    status: &mut Status,
) {
    let rolled_back = (lost > 0).then(|| EventNote {
        warning: true,
        lasting: false,
        reason: Reason::Resumed,
        text: format!("{lost} steps are trained again: no worker held their state any more"),
    });
    let entry = |event: &EventNote| HistoryEntry {
        at: time(observed.now),
        reason: event.reason.to_string(),
        text: event.text.chars().take(SENTENCE_MAX).collect(),
    };
    let known = &status.history;
    let is_known = |new: &HistoryEntry| known.iter().any(|e| e.reason == new.reason && e.text == new.text);
    // A deletion that could not be carried out is decided again, and no two pods of a job have the same name.
    let deleted = deletion_events(decision);
    let deleted = deleted.iter().map(entry).filter(|new| !is_known(new));
    let deleted: Vec<HistoryEntry> = deleted.collect();
    let happened = events.iter().filter(|e| !e.lasting).chain(&rolled_back);
    status.history.extend(deleted);
    status.history.extend(happened.map(entry));
    let surplus = status.history.len().saturating_sub(HISTORY_MAX);
    status.history.drain(..surplus);
}

/// Adds the recoveries that the coordinator has reported, and counts them by cause. Those of earlier coordinators stay; a coordinator
/// reports all of its own each time.
pub(super) fn note_recoveries(run: &ObservedRun, status: &mut Status) {
    let known = &mut status.recent_recoveries;
    // Of a list that is full older ones have gone, which were counted.
    let is_full = known.len() >= RECOVERIES_MAX;
    let oldest = known.first().filter(|_| is_full).map(|first| first.at.0);
    let is_new = |r: &&Recovery| !known.contains(r) && oldest.is_none_or(|oldest| r.at.0 > oldest);
    let new: Vec<Recovery> = run.recoveries.iter().filter(is_new).cloned().collect();
    for recovery in &new {
        totals_of(&mut status.recovery_totals, &recovery.cause).add(recovery);
    }
    known.extend(new);
    known.sort_by_key(|recovery| recovery.at.0);
    known.drain(..known.len().saturating_sub(RECOVERIES_MAX));
}

/// The totals of a cause. What later releases call causes is counted with `other` where there are many.
fn totals_of<'a>(all: &'a mut Vec<RecoveryTotals>, cause: &str) -> &'a mut RecoveryTotals {
    let is_known = all.iter().any(|totals| totals.cause == cause);
    let cause = if is_known || all.len() < CAUSES_MAX {
        cause
    } else {
        OTHER_CAUSE
    };
    let found = all.iter().position(|totals| totals.cause == cause);
    let at = found.unwrap_or_else(|| {
        all.push(RecoveryTotals {
            cause: cause.to_owned(),
            ..RecoveryTotals::default()
        });
        all.len() - 1
    });
    &mut all[at]
}

/// Which ranks run each stage, in Varuna's form: of two pipelines of four stages `0,4;1,5;2,6;3,7;`. Ranks count the workers of a generation,
/// pipeline by pipeline in the order of their stages. None where no worker has a stage, or the map is too long.
pub(super) fn stage_to_rank_map(snapshot: &Snapshot) -> Option<String> {
    let mut pipelines: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for worker in &snapshot.workers {
        // A worker with several stages has the place of its first.
        if let (Some(pipeline), Some(first)) =
            (worker.pipeline, worker.segments.iter().map(|s| s.start).min())
        {
            pipelines.entry(pipeline).or_default().push(first);
        }
    }
    let depth = pipelines.values().map(Vec::len).max()?;
    let first_ranks: Vec<(usize, usize)> = pipelines
        .values()
        .scan(0, |rank, stages| {
            let first = *rank;
            *rank += stages.len();
            Some((first, stages.len()))
        })
        .collect();
    let mut map = String::new();
    for stage in 0..depth {
        let here = first_ranks.iter().filter(|(_, stages)| stage < *stages);
        let ranks: Vec<String> = here.map(|(first, _)| (first + stage).to_string()).collect();
        map.push_str(&ranks.join(","));
        map.push(';');
    }
    (map.len() <= RANK_MAP_MAX).then_some(map)
}

/// The first workers that the plan leaves out, with the reasons.
pub(super) fn left_out(snapshot: &Snapshot) -> Vec<LeftOutWorker> {
    let workers = snapshot.workers.iter();
    let listed = workers.filter_map(|worker| {
        let left_out = worker.left_out.as_ref()?;
        Some(LeftOutWorker {
            name: worker.name.clone(),
            reason: left_out.reason.as_str().to_owned(),
            message: left_out.why.clone(),
        })
    });
    listed.take(LEFT_OUT_MAX).collect()
}

/// What was decided about spare copies under the plan, if its coordinator knows.
pub(super) fn spare_copies(snapshot: &Snapshot) -> Option<SpareCopiesStatus> {
    let view = snapshot.run.spare_copies.as_ref()?;
    let verdict = view.verdict.as_ref()?;
    Some(SpareCopiesStatus {
        units: whole(view.units),
        kept: whole(view.kept),
        reason: verdict.reason.as_str().to_owned(),
        message: verdict.why.clone(),
    })
}

/// A duration in its two greatest units, as `kubectl` writes ages.
fn duration(seconds: i64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    if days > 0 {
        format!("{days}d{hours}h")
    } else if hours > 0 {
        format!("{hours}h{minutes}m")
    } else if minutes > 0 {
        format!("{minutes}m{}s", seconds % 60)
    } else {
        format!("{seconds}s")
    }
}

#[expect(clippy::cast_precision_loss, reason = "a display's precision")]
fn to_f64(number: i64) -> f64 {
    number as f64
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a display's precision; the cast saturates"
)]
fn rounded(number: f64) -> i64 {
    number.round() as i64
}
