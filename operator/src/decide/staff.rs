//! Pods to make and to delete.

use super::seen::{Observed, PodSeen, Refused};
use super::{Crew, Deletion, Desired, Verdict, left_alone, objects};
use varuna_api::Job;

/// Ends that were nobody's wish hold their place back for a second, then twice as long each, up to five minutes.
const BACKOFF_MAX_SECONDS: i64 = 300;
/// They are forgotten after ten minutes: as long as the longest wait, twice.
const MEMORY_SECONDS: i64 = 600;
/// Pods that have ended are kept for their logs up to this number.
const KEPT_MAX: usize = 10;

/// Pods that the job shall have.
fn wanted(job: &Job) -> usize {
    // A cluster's jobs always have a maximum: the definition has a default.
    (job.elasticity.max_workers.unwrap_or(1) / job.workers.gpus_per_pod) as usize
}

/// Makes the pods that are missing, removes those that are too many or cannot go on.
pub(super) fn staff(seen: &Observed, job: &Job, crew: &Crew<'_>, desired: &mut Desired) {
    let mut delete = |pod: &PodSeen, why: String| {
        desired.delete.push(Deletion {
            name: pod.name.clone(),
            why,
        })
    };
    let mut ended = Vec::new();
    for (pod, verdict) in &crew.0 {
        match verdict {
            Verdict::Doomed(why) | Verdict::Lost(why) => delete(pod, why.clone()),
            Verdict::Preempted(why) if !pod.deleting => delete(pod, format!("it was preempted ({why})")),
            _ => {}
        }
        if let Some(end) = verdict.ended() {
            ended.push((*pod, end));
        }
    }
    let kept = ended.len().saturating_sub(KEPT_MAX);
    ended.sort_by_key(|(pod, end)| (end.at, pod.number));
    for (i, (pod, end)) in ended.iter().enumerate() {
        if i < kept || seen.now - end.at >= MEMORY_SECONDS {
            delete(pod, "it ended a while ago".into());
        }
    }
    let occupied: Vec<_> = crew.0.iter().filter(|(_, v)| v.occupies()).collect();
    let wanted = wanted(job);
    if occupied.len() > wanted {
        // Those that have not started first, then the newest: the oldest hold the most state.
        let mut order = occupied.clone();
        order.sort_by_key(|(pod, v)| (*v == Verdict::Running, std::cmp::Reverse(pod.number)));
        for (pod, _) in order.into_iter().take(occupied.len() - wanted) {
            delete(pod, format!("the job may have {wanted} pods"));
        }
    }
    let (held, again) = backoff(seen.now, &ended.iter().map(|(_, e)| e.at).collect::<Vec<_>>());
    desired.again_after = again;
    if left_alone(seen, &[Refused::Objects, Refused::Pods, Refused::Coordinator]) {
        return;
    }
    for _ in 0..wanted.saturating_sub(occupied.len()).saturating_sub(held) {
        desired.status.newest_pod += 1;
        let number = desired.status.newest_pod;
        desired
            .create
            .push(objects::pod(&seen.job, job, number, &seen.settings));
    }
}

/// How many places are held back after the ends at these times, and when to look again.
fn backoff(now: i64, ends: &[i64]) -> (usize, Option<i64>) {
    let recent: Vec<i64> = ends
        .iter()
        .copied()
        .filter(|at| now - at < MEMORY_SECONDS)
        .collect();
    let mut held = 0;
    let mut again: Option<i64> = None;
    for (i, at) in recent.iter().enumerate() {
        let wait = (1_i64 << i.min(16)).min(BACKOFF_MAX_SECONDS);
        let left = at + wait - now;
        if left > 0 {
            held += 1;
            again = Some(again.map_or(left, |a| a.min(left)));
        }
    }
    (held, again)
}

/// No pod shall run any more; those that have ended stay for their logs.
pub(super) fn dismiss(crew: &Crew<'_>, desired: &mut Desired) {
    for (pod, verdict) in &crew.0 {
        let lives = verdict.occupies() || matches!(verdict, Verdict::Doomed(_) | Verdict::Lost(_));
        if lives {
            let why = "the job does not run".to_owned();
            desired.delete.push(Deletion {
                name: pod.name.clone(),
                why,
            });
        }
    }
}
