//! What has happened to a job, as sentences for its diary.

use super::say::setback;
use super::seen::Observed;
use super::{Crew, Desired, Note, Verdict};
use varuna_api::crd::Status;

/// What has changed, as a diary. Pods that are made are the pods' own story.
pub(super) fn notes(seen: &Observed, after: &Status, crew: &Crew<'_>, desired: &mut Desired) {
    let before = &seen.job.status;
    let mut lasting = taken_away(crew);
    lasting.extend(seen.setbacks.iter().map(|s| Note {
        warning: true,
        once: true,
        reason: setback(s).0,
        text: setback(s).1,
    }));
    let mut note = |warning, reason, text: String| {
        desired.notes.push(Note {
            warning,
            once: false,
            reason,
            text,
        })
    };
    for deletion in &desired.delete {
        let pod = crew.0.iter().find(|(p, _)| p.name == deletion.name);
        let reason = match pod.map(|(_, v)| v) {
            Some(Verdict::Doomed(_)) => "WorkerNoticed",
            Some(Verdict::Lost(_)) => "WorkerLost",
            Some(Verdict::Preempted(_)) => "WorkerPreempted",
            _ => continue,
        };
        note(true, reason, format!("pod {}: {}", deletion.name, deletion.why));
    }
    if before.phase != after.phase
        && let Some(phase) = &after.phase
    {
        let words = after
            .message
            .as_ref()
            .map_or_else(String::new, |m| format!(": {m}"));
        let warning = ["Failed", "Refused", "Waiting"].contains(&phase.as_str());
        note(warning, "Phase", format!("the job is now {phase}{words}"));
    }
    let generation = |s: &Status| s.plan.as_ref().map_or(0, |p| p.generation);
    if let Some(plan) = after.plan.as_ref().filter(|p| p.generation > generation(before)) {
        note(
            false,
            "Planned",
            format!(
                "plan {}: {} with {} workers",
                plan.generation, plan.shape, plan.workers
            ),
        );
    }
    desired.notes.extend(lasting);
}

/// Pods that Kubernetes takes away: evicted, preempted by priority, from a node with a NoExecute taint. It deletes them itself, and
/// they are seen until their grace period is over.
fn taken_away(crew: &Crew<'_>) -> Vec<Note> {
    let away = crew.0.iter().filter(|(_, v)| *v == Verdict::Leaving);
    away.filter_map(|(pod, _)| {
        let (why, node) = (pod.disrupted.as_ref()?, pod.node.as_deref().unwrap_or("no node"));
        Some(Note {
            warning: true,
            once: true,
            reason: "WorkerPreempted",
            text: format!("pod {} on {node} is taken away ({why})", pod.name),
        })
    })
    .collect()
}
