//! What is said of a job: status and conditions.

use super::notes::notes;
use super::seen::{Ended, Observed, Refused, RunSeen, Setback};
use super::{Course, Crew, Desired, Verdict, objects};
use jiff::Timestamp;
use varuna_api::crd::{CheckpointStatus, Condition, PlanStatus, Status};
use varuna_coordinator::RunMode;

/// A time as Kubernetes writes it.
pub(super) fn time(seconds: i64) -> String {
    Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

/// Seconds since 1970 of such a time.
pub(super) fn parse_time(text: &str) -> Option<i64> {
    text.parse::<Timestamp>().ok().map(Timestamp::as_second)
}

/// How workers crash, in a sentence.
pub(super) fn crash(times: usize, last: &Ended) -> String {
    let words = last.words.trim();
    let words: String = words
        .chars()
        .rev()
        .take(1000)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .collect();
    let hint = if last.reason == "OOMKilled" {
        "; raise the memory limit in spec.workers.template or use more workers"
    } else {
        ""
    };
    let said = if words.is_empty() {
        String::new()
    } else {
        format!("; its last words: {words}")
    };
    format!(
        "{times} workers crashed without a step between them, the last with exit code {} ({}){hint}{said}",
        last.code, last.reason
    )
}

/// What the job is doing, in a word.
#[must_use]
pub fn phase(run: Option<&RunSeen>) -> &'static str {
    let Some(run) = run else { return "Pending" };
    match run.mode {
        RunMode::Training | RunMode::Changing => "Training",
        RunMode::Launching | RunMode::Recovering | RunMode::Persisting if run.step > 0 => "Recovering",
        RunMode::Waiting => "Waiting",
        RunMode::Done => "Complete",
        _ => "Starting",
    }
}

pub(super) fn status(seen: &Observed, crew: &Crew<'_>, course: &Course, desired: &mut Desired) {
    let run = seen.run.as_ref();
    let (phase, message) = match course {
        Course::Refused(_, why) => ("Refused", Some(why.clone())),
        Course::Suspend => ("Suspended", None),
        Course::Complete => ("Complete", None),
        Course::Fail(_, words) => ("Failed", Some(words.clone())),
        Course::Run | Course::Saving => {
            let phase = phase(run);
            (phase, (phase != "Training").then(|| waits(seen, crew)).flatten())
        }
    };
    let trouble = trouble(seen, crew);
    let status = &mut desired.status;
    status.observed_generation = Some(seen.job.generation);
    status.phase = Some(phase.to_owned());
    status.message = message.or_else(|| trouble.as_ref().map(|(_, words)| words.clone()));
    status.selector = Some(objects::selector(&seen.job.name));
    let pods = crew.0.iter().filter(|(_, v)| *v == Verdict::Running).count();
    let per_pod = seen
        .job
        .spec
        .as_ref()
        .map_or(1, |j| i64::from(j.workers.gpus_per_pod));
    status.workers = i64::try_from(pods).unwrap_or(i64::MAX) * per_pod;
    if let Some(run) = run.filter(|r| r.generation > 0) {
        plan(run, status);
    }
    saved(seen, status);
    let stale = stale(seen, status);
    status.conditions = conditions(seen, course, phase, trouble, stale);
    let after = desired.status.clone();
    notes(seen, &after, crew, desired);
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "milliseconds of a step are far below 2^53"
)]
fn plan(run: &RunSeen, status: &mut Status) {
    if let Some(plan) = &status.plan
        && plan.generation < run.generation
    {
        status.reconfigurations = Some(status.reconfigurations.unwrap_or(0) + 1);
    }
    status.plan = Some(PlanStatus {
        generation: run.generation,
        shape: run.shape.clone(),
        workers: run.members,
        idle: (run.attached - run.members).max(0),
        predicted_step_ms: run.predicted_ms.map(|ms| ms.round() as i64),
        observed_step_ms: run.observed_ms.map(|ms| ms.round() as i64),
    });
    status.loss = run.loss.map(|loss| format!("{loss:.4}")).or(status.loss.take());
}

/// What the job waits for.
fn waits(seen: &Observed, crew: &Crew<'_>) -> Option<String> {
    let job = seen.job.spec.as_ref().ok()?;
    let attached = seen.run.as_ref().map_or(0, |r| r.attached);
    let need = i64::from(job.elasticity.min_workers);
    let setback = seen.setbacks.first().map(|s| setback(s).1);
    if let (Some(words), true) = (&setback, attached < need) {
        return Some(format!(
            "{attached} workers of at least {need} are there; {words}"
        ));
    }
    let saved = seen.run.as_ref().and_then(|r| r.saved.as_ref());
    if let Some(failing) = saved.and_then(|s| s.failing.as_ref())
        && seen.run.as_ref().is_some_and(|r| r.generation == 0)
    {
        return Some(format!(
            "whether there is a checkpoint to resume from is not known: {failing}"
        ));
    }
    let why = crew.0.iter().find_map(|(_, v)| match v {
        Verdict::Broken(reason, words) => Some(format!("{reason}: {words}")),
        Verdict::Pending(Some(words)) => Some(words.clone()),
        _ => None,
    });
    if attached < need {
        let why = why.map_or_else(|| "its pods start".to_owned(), |why| format!("a pod says: {why}"));
        return Some(format!("{attached} workers of at least {need} are there; {why}"));
    }
    None
}

/// What is wrong with pods although the job may be training.
fn trouble(seen: &Observed, crew: &Crew<'_>) -> Option<(&'static str, String)> {
    if let Some(first) = seen.setbacks.first() {
        return Some(setback(first));
    }
    let find =
        |f: fn(&Verdict) -> Option<(&'static str, String)>| crew.0.iter().rev().find_map(|(_, v)| f(v));
    find(|v| match v {
        Verdict::Broken(reason, words) => Some((
            "PodsCannotStart",
            format!("{reason}: {words}; correct spec.workers.image or the template"),
        )),
        _ => None,
    })
    .or_else(|| {
        find(|v| match v {
            Verdict::Crashed(end) => Some((
                "WorkersCrash",
                format!(
                    "a worker ended with exit code {} ({}): {}",
                    end.code,
                    end.reason,
                    end.words.trim()
                ),
            )),
            _ => None,
        })
    })
    .or_else(|| {
        find(|v| match v {
            Verdict::Pending(Some(words)) => Some(("PodsCannotBeScheduled", words.clone())),
            _ => None,
        })
    })
}

/// What was refused and what to do, in one word and in a sentence that stays the same while it is so.
pub(super) fn setback(setback: &Setback) -> (&'static str, String) {
    let words = &setback.words;
    match setback.what {
        Refused::Objects => (
            "ObjectsRefused",
            format!("the API server refuses the job's objects: {words}"),
        ),
        Refused::Pods if words.contains("exceeded quota") => (
            "PodsRefused",
            format!(
                "the API server takes no more pods: {words}; raise the quota or lower spec.elasticity.maxWorkers"
            ),
        ),
        Refused::Pods => (
            "PodsRefused",
            format!("the API server takes no pod of spec.workers.template: {words}"),
        ),
        Refused::Coordinator => (
            "CoordinatorFails",
            format!("the job's coordinator cannot run: {words}"),
        ),
    }
}

/// Kind, whether it holds, reason, sentence.
type Said = (&'static str, bool, String, String);

fn said(kind: &'static str, is: bool, reason: &str, words: impl Into<String>) -> Said {
    (kind, is, reason.to_owned(), words.into())
}

/// All conditions, with the time at which each came to its present status.
fn conditions(
    seen: &Observed,
    course: &Course,
    phase: &str,
    trouble: Option<(&'static str, String)>,
    stale: Said,
) -> Vec<Condition> {
    let run = seen.run.as_ref();
    let step = run.map_or(0, |r| r.step);
    let accepted = match course {
        Course::Refused(reason, why) => said("Accepted", false, reason, why),
        _ => said("Accepted", true, "ValidSpec", "the spec is sound"),
    };
    let training = match phase {
        "Training" => said("Training", true, phase, "steps are committed"),
        _ => said(
            "Training",
            false,
            phase,
            format!("the job is not training: {phase}, {step} steps so far"),
        ),
    };
    let degraded = match trouble {
        Some((reason, words)) => said("Degraded", true, reason, words),
        None => said("Degraded", false, "AllIsWell", "nothing is wrong with the pods"),
    };
    let complete = match course {
        Course::Complete => said("Complete", true, "LastStep", "the last step is committed"),
        _ => said("Complete", false, "StepsLeft", "steps are left to train"),
    };
    let failed = match course {
        Course::Fail(reason, words) => said("Failed", true, reason, words),
        _ => said("Failed", false, "NotFailed", "the job has not failed"),
    };
    [
        accepted,
        planned(run),
        training,
        degraded,
        stale,
        suspended(course, run),
        complete,
        failed,
    ]
    .into_iter()
    .map(|(kind, is, reason, words)| condition(seen, kind, is, reason, words))
    .collect()
}

fn planned(run: Option<&RunSeen>) -> Said {
    match run {
        None => said("Planned", false, "NoCoordinator", "no coordinator runs"),
        Some(r) if r.generation == 0 => said("Planned", false, "NoPlan", "no plan yet"),
        Some(r) => {
            let words = format!(
                "plan {} uses {} of {} workers as {}",
                r.generation, r.members, r.attached, r.shape
            );
            said("Planned", true, "PlanInForce", words)
        }
    }
}

fn saved(seen: &Observed, status: &mut Status) {
    let Some(saved) = seen.run.as_ref().and_then(|r| r.saved.as_ref()) else {
        return;
    };
    let known = saved
        .newest
        .or(status.checkpoint.as_ref().and_then(|c| c.newest_step));
    status.checkpoint = Some(CheckpointStatus {
        newest_step: known,
        steps_behind: status.step.map(|step| (step - known.unwrap_or(0)).max(0)),
        failing: saved.failing.clone(),
    });
}

fn stale(seen: &Observed, status: &Status) -> Said {
    let kind = "CheckpointStale";
    let settings = seen.job.spec.as_ref().ok().and_then(|j| j.checkpoint.as_ref());
    let (Some(settings), Some(saved)) = (settings, &status.checkpoint) else {
        return said(kind, false, "NoCheckpoints", "no checkpoint is expected");
    };
    let behind = saved.steps_behind.unwrap_or(0);
    // Intervals of steps and of seconds: the coordinator's to judge.
    let told = seen.run.as_ref().and_then(|r| r.saved.as_ref());
    let newest = saved
        .newest_step
        .map_or("none yet".to_owned(), |s| format!("of step {s}"));
    if let Some(why) = &saved.failing {
        let words = format!(
            "{} cannot be used ({why}); training goes on, the newest checkpoint is {newest}",
            settings.uri
        );
        return said(kind, true, "StoreFails", words);
    }
    if told.is_some_and(|t| t.stale) {
        return said(
            kind,
            true,
            "NoneForLong",
            format!("the newest checkpoint is {newest}, {behind} steps behind"),
        );
    }
    said(kind, false, "Fresh", format!("the newest checkpoint is {newest}"))
}

fn suspended(course: &Course, run: Option<&RunSeen>) -> Said {
    let stopped = run.is_none_or(|r| r.ended.is_some());
    match (course, stopped) {
        (Course::Saving, _) => said(
            "Suspended",
            false,
            "Saving",
            "the run goes on until a checkpoint holds what it has trained",
        ),
        (Course::Suspend, true) => said(
            "Suspended",
            true,
            "SuspendIsTrue",
            "the job rests; set spec.suspend to false to go on",
        ),
        (Course::Suspend, false) => said("Suspended", false, "Stopping", "the run is being stopped"),
        _ => said("Suspended", false, "SuspendIsFalse", "the job is not suspended"),
    }
}

fn condition(seen: &Observed, kind: &str, is: bool, reason: String, message: String) -> Condition {
    let status = if is { "True" } else { "False" };
    let before = seen
        .job
        .status
        .conditions
        .iter()
        .find(|c| c.kind == kind && c.status == status);
    Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        reason,
        message,
        last_transition_time: before.map_or_else(|| time(seen.now), |c| c.last_transition_time.clone()),
        observed_generation: Some(seen.job.generation),
    }
}
