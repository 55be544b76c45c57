//! The job's coordinator: which pod is in charge, when another one takes its place, and what it is ordered to do.
//!
//! Coordinators are numbered, and a number is never used again. The `VarunaRun` names the one in charge. A coordinator that is about to go
//! stays in charge until its successor runs, so that it still handles what happens in the meantime. A coordinator that is gone is replaced
//! at once.

use super::coordinator_pod;
use super::decision::{AvoidedNodes, CoordinatorGoal, PodDeletion};
use super::failed_parts::waits_for_server;
use super::failures::avoids_too_much;
use super::observed::{Observed, ObservedPod, ObservedRun, PodPhase, ProbeAnswer};
use super::pod_verdicts::{PodVerdict, judge_pod, node_signals};
use super::suspend;
use super::worker_notices::{WorkerNotices, domains};
use std::collections::{BTreeMap, BTreeSet};
use varuna_api::crd::{RunEnd, RunGoal, RunSpec, Status};
use varuna_api::{ConditionType, Reason};

/// How long a coordinator in charge may run before it reports. It reports as soon as it listens, before it knows anything of its run. If it
/// does not, it is cut off from the API server, or it hangs.
const REPORTS_WITHIN_SECONDS: i64 = 60;

/// What is to be done about a job's coordinator.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct CoordinatorPlan {
    /// Orders that are to be written.
    pub(super) orders: Option<RunSpec>,
    /// Number of a coordinator to start.
    pub(super) start: Option<i64>,
    /// Pods to delete.
    pub(super) delete: Vec<PodDeletion>,
}

/// The state of a coordinator's pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CoordinatorPodState {
    /// The coordinator is running.
    Runs,
    /// The coordinator is starting.
    Starts,
    /// The coordinator is running, but will end soon.
    Leaves,
    /// The coordinator does not run any more, cannot start, or does not answer.
    Gone,
}

fn pod_state(observed: &Observed, avoid: &AvoidedNodes, pod: &ObservedPod) -> CoordinatorPodState {
    let node = pod.node.as_ref().map(|name| observed.nodes.get(name));
    let node_answers = node.is_none_or(|node| node.is_some_and(|n| n.ready));
    let probe = observed.coordinator_probe.as_ref();
    let reports = observed.run.as_ref().is_some_and(|r| r.health_address.is_some());
    let is_in_charge = observed
        .orders
        .as_ref()
        .is_some_and(|o| o.coordinator == pod.number);
    let answers = match probe.filter(|p| p.number == pod.number).map(|p| p.answer) {
        Some(ProbeAnswer::Answers) => true,
        Some(ProbeAnswer::Silent) => false,
        // It is being asked: after an outage of the API server no node seems to answer for a moment.
        None if is_in_charge && reports => true,
        Some(ProbeAnswer::NeverAnswered) | None => node_answers,
    };
    let signals = node_signals(observed);
    let verdict = judge_pod(observed, pod, &signals, None);
    match verdict {
        _ if !answers => CoordinatorPodState::Gone,
        PodVerdict::Running if never_reports(observed, pod) => CoordinatorPodState::Gone,
        PodVerdict::Running => CoordinatorPodState::Runs,
        PodVerdict::NodeLeaving(_) | PodVerdict::Terminating if is_up(pod) => CoordinatorPodState::Leaves,
        // Another pod may be placed on such a node as well, because a pod cannot name all of them.
        PodVerdict::NodeLeaving(_) if avoid.incomplete && pod.phase == PodPhase::Pending => {
            CoordinatorPodState::Starts
        }
        PodVerdict::Pending(_) | PodVerdict::CannotStart(..)
            if !another_may_start(observed, avoid, &signals, pod, &verdict) =>
        {
            CoordinatorPodState::Starts
        }
        _ => CoordinatorPodState::Gone,
    }
}

/// Since when the coordinator in charge has run without a report, as far as that is known. `status`: the job's, as it was reported last.
fn silent_since(observed: &Observed, status: &Status, pod: &ObservedPod) -> Option<i64> {
    let orders = observed.orders.as_ref().filter(|o| o.goal != RunGoal::None)?;
    let run = observed
        .run
        .as_ref()
        .filter(|_| orders.coordinator == pod.number)?;
    // While the API server does not answer, no coordinator can report.
    if *run != ObservedRun::default() || waits_for_server(&observed.failures) {
        return None;
    }
    // It may have run for long before it was put in charge. Since then no plan has been known.
    let none_known = status.condition(ConditionType::Planned)?;
    let none_since = none_known.last_transition_time.0.as_second();
    let runs_since = pod.runs_since.filter(|_| none_known.status == "False")?;
    Some(runs_since.max(none_since))
}

/// Whether a coordinator in charge has run for so long without a report that there will be none.
fn never_reports(observed: &Observed, pod: &ObservedPod) -> bool {
    let since = silent_since(observed, &observed.job.status, pod);
    since.is_some_and(|since| observed.now - since >= REPORTS_WITHIN_SECONDS)
}

/// Seconds until a coordinator that has not reported is given up.
pub(super) fn reports_in(observed: &Observed, status: &Status) -> Option<i64> {
    let mut pods = observed.coordinators.iter();
    let since = pods.find_map(|pod| silent_since(observed, status, pod))?;
    Some(since + REPORTS_WITHIN_SECONDS - observed.now).filter(|left| *left > 0)
}

/// Whether another pod may start where this one does not: it would be made from something else, or may go to nodes that this one avoids.
fn another_may_start(
    observed: &Observed,
    avoid: &AvoidedNodes,
    signals: &[String],
    pod: &ObservedPod,
    verdict: &PodVerdict,
) -> bool {
    let (Ok(job), settings) = (&observed.job.spec, &observed.settings) else {
        return false;
    };
    let Some(made_from) = &pod.made_from else {
        // An earlier release has made it, and did not say from what.
        let cannot_start = matches!(verdict, PodVerdict::CannotStart(..));
        return cannot_start && pod.image != coordinator_pod::image(job, settings);
    };
    let has_no_node = matches!(verdict, PodVerdict::Pending(Some(_)));
    let may_go_there = has_no_node && avoids_too_much(observed, avoid, signals, pod);
    may_go_there || *made_from != coordinator_pod::made_from(&observed.job, job, settings)
}

fn is_up(pod: &ObservedPod) -> bool {
    pod.phase == PodPhase::Running && pod.ended.is_none()
}

/// How the coordinator in charge failed, if it did: its number and a sentence. A coordinator that was preempted or evicted has not failed.
#[must_use]
pub fn coordinator_failure(observed: &Observed) -> Option<(i64, String)> {
    let orders = observed.orders.as_ref().filter(|o| o.goal != RunGoal::None)?;
    if let Some(RunEnd::Failed(why)) = observed.run.as_ref().and_then(|r| r.ended.as_ref()) {
        return Some((orders.coordinator, why.clone()));
    }
    if observed.run.as_ref().is_some_and(|r| r.ended.is_some()) {
        return None;
    }
    let pod = observed
        .coordinators
        .iter()
        .find(|p| p.number == orders.coordinator)?;
    let why = match judge_pod(observed, pod, &[], None) {
        PodVerdict::Crashed(end) | PodVerdict::Released(end) => {
            let output = end.message.trim();
            format!(
                "its process ended with exit code {} ({}): {output}",
                end.code, end.reason
            )
        }
        PodVerdict::InitFailed(container, end) => {
            let output = end.message.trim();
            format!(
                "init container {container} of its pod ended with exit code {} ({}): {output}",
                end.code, end.reason
            )
        }
        PodVerdict::Rejected(rejection) | PodVerdict::NotStarted(rejection) => {
            format!(
                "its node does not take it: {}: {}",
                rejection.reason, rejection.message
            )
        }
        PodVerdict::Running if never_reports(observed, pod) => {
            format!("it has run for {REPORTS_WITHIN_SECONDS} s and has not reported; see its log")
        }
        _ => return None,
    };
    Some((pod.number, why))
}

/// Plans the coordinator of a job.
pub(super) fn plan_coordinator(
    observed: &Observed,
    goal: CoordinatorGoal,
    notices: WorkerNotices,
    avoid: &AvoidedNodes,
) -> CoordinatorPlan {
    let known = observed.orders.as_ref();
    let goal = match goal {
        CoordinatorGoal::Run => RunGoal::Run,
        CoordinatorGoal::RunAndSave => RunGoal::Save,
        CoordinatorGoal::Stop => RunGoal::Stop,
        CoordinatorGoal::Absent => return absent(observed),
    };
    let (number, next) = in_charge(observed, avoid);
    let newest = newest_number(observed);
    let orders = RunSpec {
        uid: observed.job.uid.clone(),
        goal,
        coordinator: number,
        newest_coordinator: newest.max(next.unwrap_or(number)),
        steps: match &observed.job.spec {
            Ok(job) => job.training.steps,
            Err(_) => known.map_or(0, |o| o.steps),
        },
        allow_state_loss: match &observed.job.spec {
            Ok(job) => job.lifecycle.allow_state_loss,
            Err(_) => known.is_some_and(|o| o.allow_state_loss),
        },
        save_at: suspend::asked_checkpoint(observed),
        leaving: notices.leaving,
        written_at: (!notices.ends_at.is_empty()).then_some(observed.now),
        ends_at: notices.ends_at,
        ended: notices.ended,
        domains: domains(observed),
    };
    CoordinatorPlan {
        orders: known
            .is_none_or(|known| has_new_orders(&orders, known))
            .then_some(orders),
        start: next.or(Some(number)).filter(|n| *n > newest),
        delete: superseded(&observed.coordinators, number, next),
    }
}

/// Whether orders say more than those that are there. Notices that are no longer needed stay until something else is ordered: names of pods
/// are never used again, so that they stay true.
fn has_new_orders(orders: &RunSpec, known: &RunSpec) -> bool {
    let told = RunSpec {
        leaving: known.leaving.clone(),
        ends_at: known.ends_at.clone(),
        written_at: known.written_at,
        ended: known.ended.clone(),
        ..orders.clone()
    };
    let is_new = |names: &[String], known: &[String]| {
        let known: BTreeSet<&String> = known.iter().collect();
        names.iter().any(|name| !known.contains(name))
    };
    let is_sooner = |(name, at): (&String, &i64)| known.ends_at.get(name).is_none_or(|known| at < known);
    told != *known
        || is_new(&orders.leaving, &known.leaving)
        || orders.ends_at.iter().any(is_sooner)
        || is_new(&orders.ended, &known.ended)
}

/// Number of the newest coordinator that was started.
fn newest_number(observed: &Observed) -> i64 {
    let known = observed
        .orders
        .as_ref()
        .map_or(0, |o| o.coordinator.max(o.newest_coordinator));
    let pods = observed.coordinators.iter().map(|p| p.number);
    pods.fold(known, i64::max)
}

/// Number of the coordinator that is to be in charge, and of the one that is to take over from it. One that no pod has yet is to be started.
fn in_charge(observed: &Observed, avoid: &AvoidedNodes) -> (i64, Option<i64>) {
    let known = observed.orders.as_ref();
    let has_ended = observed.run.as_ref().is_some_and(|r| r.ended.is_some());
    let present = known
        .filter(|o| o.goal != RunGoal::None && !has_ended)
        .map(|o| o.coordinator);
    let pods = &observed.coordinators;
    let of_present = pods.iter().find(|p| Some(p.number) == present);
    let present = present.zip(of_present.map(|p| pod_state(observed, avoid, p)));
    if let Some((number, CoordinatorPodState::Runs | CoordinatorPodState::Starts)) = present {
        return (number, None);
    }
    let next = newest_number(observed).saturating_add(1);
    let after = known.map_or(0, |o| o.coordinator);
    let successor = pods
        .iter()
        .filter(|p| p.number > after)
        .map(|p| (p.number, pod_state(observed, avoid, p)))
        .filter(|(_, s)| matches!(s, CoordinatorPodState::Runs | CoordinatorPodState::Starts))
        .min_by_key(|(number, s)| (*s != CoordinatorPodState::Runs, *number));
    match (present, successor) {
        (Some((number, CoordinatorPodState::Leaves)), Some((successor, CoordinatorPodState::Starts))) => {
            (number, Some(successor))
        }
        (Some((number, CoordinatorPodState::Leaves)), None) => (number, Some(next)),
        (_, Some((successor, _))) => (successor, None),
        (_, None) => (next, None),
    }
}

/// No coordinator is wanted. Pods that have ended stay for their logs.
fn absent(observed: &Observed) -> CoordinatorPlan {
    let orders = observed.orders.as_ref().filter(|o| o.goal != RunGoal::None);
    let live = observed
        .coordinators
        .iter()
        .filter(|p| !p.has_ended() && !p.deleting);
    CoordinatorPlan {
        orders: orders.map(|o| RunSpec {
            goal: RunGoal::None,
            leaving: vec![],
            ends_at: BTreeMap::new(),
            written_at: None,
            ended: vec![],
            ..o.clone()
        }),
        start: None,
        delete: live
            .map(|p| deletion(p, "the job needs no coordinator now"))
            .collect(),
    }
}

/// The pods of all coordinators but the one in charge and the one that is to take over. The last before it that has ended stays for its log.
fn superseded(pods: &[ObservedPod], in_charge: i64, next: Option<i64>) -> Vec<PodDeletion> {
    let ended = pods.iter().filter(|p| p.number < in_charge && p.has_ended());
    let last_ended = ended.map(|p| p.number).max();
    let stays = |number: i64| number == in_charge || Some(number) == next || Some(number) == last_ended;
    pods.iter()
        .filter(|p| !stays(p.number) && !p.deleting)
        .map(|p| deletion(p, "another coordinator has taken over"))
        .collect()
}

fn deletion(pod: &ObservedPod, why: &str) -> PodDeletion {
    PodDeletion {
        name: pod.name.clone(),
        why: why.to_owned(),
        event: None,
    }
}

/// Why the coordinator's pod does not start, if it does not.
pub(super) fn cannot_start(observed: &Observed) -> Option<(Reason, String)> {
    let orders = observed.orders.as_ref().filter(|o| o.goal != RunGoal::None)?;
    let pod = observed
        .coordinators
        .iter()
        .find(|p| p.number == orders.coordinator)?;
    let why = match judge_pod(observed, pod, &[], None) {
        PodVerdict::CannotStart(reason, message) => format!("{reason}: {message}"),
        PodVerdict::Pending(Some(message)) => message,
        _ => return None,
    };
    let message = format!("pod {} of the job's coordinator cannot start: {why}", pod.name);
    Some((Reason::CoordinatorFails, message))
}
