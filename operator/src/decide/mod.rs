//! What shall be, from what is: pure. No client, no clock, no randomness; the same observation gives the same decision.
//!
//! Pods are numbered and a number is never used again, so that a lost pod blocks nothing: its place is filled by the next
//! number while Kubernetes still waits for its node. Which workers train, and how, is not decided here: the coordinator takes
//! whoever attaches, and a pod that is deleted tells it by its own SIGTERM.

mod judge;
mod known;
mod notes;
pub mod objects;
mod place;
mod say;
mod seen;
mod staff;
mod suspend;

pub use judge::{Verdict, judge, signal};
pub use say::phase;
pub use seen::{
    Credentials, Ended, Ending, JobSeen, NodeSeen, Observed, Phase, PodSeen, Refused, RunSeen, SavedSeen,
    Setback, Settings,
};

use place::{TAKEN, taken};
use serde_json::Value;
use staff::{dismiss, staff};
use std::collections::BTreeMap;
use suspend::{saving, suspending};
use varuna_api::crd::Status;
use varuna_coordinator::Known;

/// So many crashes without a step between them are the job's own fault.
pub const CRASHES_MAX: usize = 6;

/// Signals that announce the end of a node, whoever runs the cluster: the prefix of a taint's key, or a condition's type.
pub const NODE_SIGNALS: &[&str] = &[
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "aws-node-termination-handler/scheduled-maintenance",
    "remediator.kubernetes.azure.com/unschedulable",
    "cloud.google.com/impending-node-termination",
    "node.kubernetes.io/out-of-service",
    "VMEventScheduled",
    "DrainInProgress",
    "GracefulNodeShutdownInProgress",
];

/// What the job's coordinator shall do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// Run.
    Run,
    /// Run, and make a checkpoint at once.
    Save,
    /// End the run in an orderly way.
    Stop,
    /// Not be there.
    Gone,
}

/// A pod to delete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deletion {
    /// Its name.
    pub name: String,
    /// Why, for people.
    pub why: String,
}

/// An Event for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// Something is wrong.
    pub warning: bool,
    /// It stays true for a while and is found again at every look: news at the first only.
    pub once: bool,
    /// In one word.
    pub reason: &'static str,
    /// In a sentence.
    pub text: String,
}

/// What shall be.
#[derive(Clone, PartialEq, Debug)]
pub struct Desired {
    /// Objects that shall be as written.
    pub objects: Vec<Value>,
    /// Pods that shall be made. They are never changed afterwards.
    pub create: Vec<Value>,
    /// Pods that shall go.
    pub delete: Vec<Deletion>,
    /// The coordinator.
    pub coordinator: Wish,
    /// What is said of the job.
    pub status: Status,
    /// What has happened.
    pub notes: Vec<Note>,
    /// What the coordinator shall know of its workers.
    pub known: Vec<Known>,
    /// Pods by what has become of them.
    pub pods: BTreeMap<&'static str, usize>,
    /// Look again after so many seconds, even if nothing changes.
    pub again_after: Option<i64>,
}

/// What the decision on the job as a whole is.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Course {
    /// The spec is wrong, or cannot be had here: nothing is done. Reason and words.
    Refused(&'static str, String),
    /// It runs.
    Run,
    /// It runs until a checkpoint holds what it has trained; then it rests.
    Saving,
    /// It rests.
    Suspend,
    /// It is done.
    Complete,
    /// It cannot go on: reason and words.
    Fail(&'static str, String),
}

/// The pods with what has become of them, oldest first.
struct Crew<'a>(Vec<(&'a PodSeen, Verdict)>);

/// Decides.
#[must_use]
pub fn decide(seen: &Observed) -> Desired {
    let signals = signals(seen);
    let mut crew: Vec<_> = seen
        .pods
        .iter()
        .map(|p| (p, judge(p, &seen.nodes, &signals, seen.run.as_ref())))
        .collect();
    crew.sort_by_key(|(pod, _)| pod.number);
    let crew = Crew(crew);
    let (step, progressed_at) = progress(seen);
    let course = course(seen, &crew, progressed_at);
    let mut desired = Desired {
        objects: vec![],
        create: vec![],
        delete: vec![],
        coordinator: Wish::Gone,
        status: seen.job.status.clone(),
        notes: vec![],
        known: known::known(seen),
        pods: Verdict::LABELS.iter().map(|l| (*l, 0)).collect(),
        again_after: None,
    };
    for (_, verdict) in &crew.0 {
        *desired.pods.entry(verdict.label()).or_default() += 1;
    }
    let fell = seen
        .job
        .status
        .step
        .zip(step)
        .map_or(0, |(before, now)| (before - now).max(0));
    desired.status.steps_lost = Some(seen.job.status.steps_lost.unwrap_or(0) + fell);
    desired.status.step = step;
    desired.status.suspending = match course {
        Course::Saving => Some(suspending(seen)),
        Course::Suspend => seen.job.status.suspending.clone(),
        _ => None,
    };
    desired.status.progressed_at = progressed_at.map(say::time);
    let newest = seen.pods.iter().map(|p| p.number).max().unwrap_or(0);
    desired.status.newest_pod = newest.max(seen.job.status.newest_pod);
    if seen.job.deleting {
        // Everything else goes with the job, by its owner references.
        return desired;
    }
    if let Ok(job) = &seen.job.spec {
        if !left_alone(seen, &[Refused::Objects]) {
            desired.objects = objects::shared(&seen.job, &seen.credentials, seen.run.as_ref());
        }
        desired.coordinator = wish(&course, seen);
        match course {
            Course::Run | Course::Saving => staff(seen, job, &crew, &mut desired),
            // The coordinator sees the workers off; whoever is left when it has ended is not needed.
            _ if desired.coordinator == Wish::Stop => {}
            _ => dismiss(&crew, &mut desired),
        }
    }
    let again = seen.setbacks.iter().map(|s| s.again_in);
    desired.again_after = again.chain(desired.again_after).min();
    say::status(seen, &crew, &course, &mut desired);
    desired
}

/// Whether one of these was refused and its time has not come.
fn left_alone(seen: &Observed, what: &[Refused]) -> bool {
    let mut setbacks = seen.setbacks.iter();
    setbacks.any(|s| s.again_in > 0 && what.contains(&s.what))
}

fn signals(seen: &Observed) -> Vec<String> {
    let own = seen
        .job
        .spec
        .as_ref()
        .map_or(&[][..], |j| &j.disruption.node_signals);
    let all = NODE_SIGNALS.iter().map(|s| (*s).to_owned());
    all.chain(seen.settings.node_signals.iter().cloned())
        .chain(own.iter().cloned())
        .collect()
}

/// The step that is known, and when it was reached.
fn progress(seen: &Observed) -> (Option<i64>, Option<i64>) {
    let status = &seen.job.status;
    let mut before = status.progressed_at.as_deref().and_then(say::parse_time);
    let failed = status
        .conditions
        .iter()
        .any(|c| c.kind == "Failed" && c.status == "True");
    if failed && holds(seen, "Failed").is_none() {
        // The spec of a job that failed was changed: what crashed before counts no more.
        before = Some(seen.now);
    }
    match &seen.run {
        Some(run) if run.generation > 0 && status.step.is_none_or(|known| run.step > known) => {
            (Some(run.step), Some(seen.now))
        }
        // A coordinator that has just taken over has yet to hear of the step; in training, a lower one is true: the run went
        // back to a checkpoint.
        Some(run) if run.mode.is_training() => (Some(run.step), before),
        _ => (status.step, before),
    }
}

/// Whether a condition was true for the present spec.
fn holds(seen: &Observed, kind: &str) -> Option<(String, String)> {
    let found = seen
        .job
        .status
        .conditions
        .iter()
        .find(|c| c.kind == kind && c.status == "True")?;
    let present = found.observed_generation == Some(seen.job.generation);
    present.then(|| (found.reason.clone(), found.message.clone()))
}

fn course(seen: &Observed, crew: &Crew<'_>, progressed_at: Option<i64>) -> Course {
    let job = match &seen.job.spec {
        Ok(job) => job,
        Err(why) => return Course::Refused("InvalidSpec", why.clone()),
    };
    let complete = seen
        .job
        .status
        .conditions
        .iter()
        .any(|c| c.kind == "Complete" && c.status == "True");
    let ended = seen.run.as_ref().and_then(|r| r.ended.as_ref());
    if complete || ended == Some(&Ending::Done) {
        return Course::Complete;
    }
    // A job that failed is tried again when its spec is changed.
    if let Some((reason, words)) = holds(seen, "Failed") {
        let reason = if reason == "StateLost" {
            "StateLost"
        } else {
            "WorkersCrash"
        };
        return Course::Fail(reason, words);
    }
    if let Some(Ending::StateLost(units)) = ended {
        return Course::Fail(
            "StateLost",
            format!("no worker and no checkpoint holds {units} any more"),
        );
    }
    if let Some(words) = taken(seen, job) {
        return Course::Refused(TAKEN, words);
    }
    if job.suspend {
        return if saving(seen, job) {
            Course::Saving
        } else {
            Course::Suspend
        };
    }
    let since = progressed_at.unwrap_or(0);
    let crashes: Vec<&Ended> = crew
        .0
        .iter()
        .filter_map(|(_, v)| {
            if let Verdict::Crashed(e) = v {
                Some(e)
            } else {
                None
            }
        })
        .filter(|e| e.at > since)
        .collect();
    match crashes.last() {
        Some(last) if crashes.len() >= CRASHES_MAX => {
            Course::Fail("WorkersCrash", say::crash(crashes.len(), last))
        }
        _ => Course::Run,
    }
}

fn wish(course: &Course, seen: &Observed) -> Wish {
    let runs = seen.run.as_ref().is_some_and(|r| r.ended.is_none());
    match course {
        Course::Run | Course::Saving if left_alone(seen, &[Refused::Coordinator]) => Wish::Gone,
        Course::Run => Wish::Run,
        Course::Saving => Wish::Save,
        Course::Suspend | Course::Fail(..) if runs => Wish::Stop,
        _ => Wish::Gone,
    }
}

#[cfg(test)]
mod tests;
