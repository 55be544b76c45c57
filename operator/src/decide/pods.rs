//! Which pods to create and to delete.

use super::decision::{Decision, PodDeletion};
use super::objects;
use super::observed::{JobPart, Observed, postponed};
use super::pod_verdicts::PodVerdict;
use varuna_api::Job;

/// A pod that ended is replaced after a second, the next one after two, and so on, up to five minutes.
const REPLACE_MAX_SECONDS: i64 = 300;
/// An end counts for ten minutes: twice the longest delay.
const REMEMBERED_SECONDS: i64 = 600;
/// Pods that have ended are kept for their logs up to this number.
const KEPT_MAX: usize = 10;

/// Number of the newest pod that there ever was.
pub(super) fn newest_pod(observed: &Observed) -> i64 {
    let newest = observed.pods.iter().map(|p| p.number).max().unwrap_or(0);
    newest.max(observed.job.status.newest_pod)
}

/// Number of pods that the job is to have.
fn wanted_pods(job: &Job) -> usize {
    // In a cluster a job always has a maximum: the definition has a default.
    (job.elasticity.max_workers.unwrap_or(1) / job.workers.gpus_per_pod) as usize
}

/// Plans the pods of a job that runs: creates those that are missing, deletes those that are too many or cannot go on.
pub(super) fn plan_pods(observed: &Observed, job: &Job, decision: &mut Decision<'_>) {
    let deletion = |name: &str, why: String| PodDeletion {
        name: name.to_owned(),
        why,
    };
    let mut delete = Vec::new();
    let mut ended = Vec::new();
    for judged in &decision.pods {
        let name = &judged.pod.name;
        match &judged.verdict {
            PodVerdict::NodeLeaving(why) | PodVerdict::NodeLost(why) => {
                delete.push(deletion(name, why.clone()))
            }
            PodVerdict::Preempted(why) if !judged.pod.deleting => {
                delete.push(deletion(name, format!("it was preempted ({why})")));
            }
            _ => {}
        }
        if let Some(end) = judged.verdict.ended() {
            ended.push((judged.pod, end.at));
        }
    }
    ended.sort_by_key(|(pod, at)| (*at, pod.number));
    let too_many = ended.len().saturating_sub(KEPT_MAX);
    for (i, (pod, at)) in ended.iter().enumerate() {
        if i < too_many || observed.now - at >= REMEMBERED_SECONDS {
            delete.push(deletion(&pod.name, "it ended a while ago".into()));
        }
    }
    let mut active: Vec<_> = decision.pods.iter().filter(|p| p.verdict.is_active()).collect();
    let (present, wanted) = (active.len(), wanted_pods(job));
    // Those that have not started first, then the newest: the oldest hold the most state.
    active.sort_by_key(|p| (p.verdict == PodVerdict::Running, std::cmp::Reverse(p.pod.number)));
    for judged in active.into_iter().take(present.saturating_sub(wanted)) {
        delete.push(deletion(
            &judged.pod.name,
            format!("the job may have {wanted} pods"),
        ));
    }
    let ends: Vec<i64> = ended.iter().map(|(_, at)| *at).collect();
    let (held_back, replace_in) = delayed_replacements(observed.now, &ends);
    decision.delete = delete;
    decision.replace_in = replace_in;
    if postponed(
        &observed.failures,
        &[JobPart::Objects, JobPart::Pods, JobPart::Coordinator],
    ) {
        return;
    }
    for _ in 0..wanted.saturating_sub(present).saturating_sub(held_back) {
        decision.newest_pod += 1;
        let number = decision.newest_pod;
        let pod = objects::pod(&observed.job, job, number, &observed.settings);
        decision.create.push(pod);
    }
}

/// How many pods that ended at these times are not replaced yet, and in how many seconds the next one is.
fn delayed_replacements(now: i64, ends: &[i64]) -> (usize, Option<i64>) {
    let recent = ends.iter().filter(|at| now - **at < REMEMBERED_SECONDS);
    let delays = recent.enumerate().filter_map(|(i, at)| {
        let left = at + (1_i64 << i.min(16)).min(REPLACE_MAX_SECONDS) - now;
        (left > 0).then_some(left)
    });
    let delays: Vec<i64> = delays.collect();
    (delays.len(), delays.into_iter().min())
}

/// Deletes all pods that live; those that have ended stay for their logs.
pub(super) fn stop_pods(decision: &mut Decision<'_>) {
    let lives = |verdict: &PodVerdict| {
        verdict.is_active() || matches!(verdict, PodVerdict::NodeLeaving(_) | PodVerdict::NodeLost(_))
    };
    let live = decision.pods.iter().filter(|p| lives(&p.verdict));
    decision.delete = live
        .map(|p| PodDeletion {
            name: p.pod.name.clone(),
            why: "the job does not run".to_owned(),
        })
        .collect();
}
