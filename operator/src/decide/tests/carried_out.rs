//! Applies decisions to an observation: the state of the cluster after they were carried out.

use super::*;

/// A decision that can be carried out, and the report that belongs to it. Pods of workers and of coordinators are separate.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) objects: Vec<Value>,
    pub(super) create: Vec<Value>,
    pub(super) delete: Vec<PodDeletion>,
    pub(super) coordinator: CoordinatorGoal,
    pub(super) orders: Option<RunSpec>,
    pub(super) starts: Option<Value>,
    pub(super) coordinators_deleted: Vec<String>,
    pub(super) status: Status,
    pub(super) events: Vec<EventNote>,
    pub(super) reconcile_in: Option<i64>,
    pub(super) workload: Vec<WorkloadChange>,
}

pub(super) fn decide(observed: &Observed) -> Decided {
    let decision = crate::decide::decide(observed);
    let report = report(observed, &decision, &observed.failures);
    let events = [deletion_events(&decision), report.events].concat();
    let is_coordinator = |pod: &Value| pod["metadata"]["labels"][objects::COORDINATOR_LABEL].is_string();
    let (mut starts, create): (Vec<_>, Vec<_>) = decision.create.into_iter().partition(is_coordinator);
    assert!(
        starts.len() <= 1 && decision.starts_coordinator != starts.is_empty(),
        "{starts:?}"
    );
    let of_coordinator = |d: &PodDeletion| observed.coordinators.iter().any(|p| p.name == d.name);
    let (coordinators, delete): (Vec<_>, Vec<_>) = decision.delete.into_iter().partition(of_coordinator);
    Decided {
        objects: decision.objects,
        create,
        delete,
        coordinator: decision.coordinator,
        orders: decision.orders,
        starts: starts.pop(),
        coordinators_deleted: coordinators.into_iter().map(|d| d.name).collect(),
        status: report.status,
        events,
        reconcile_in: report.reconcile_in,
        workload: decision.workload,
    }
}

/// The observation after a decision was carried out.
pub(super) fn carried_out(observed: &Observed, desired: &Decided) -> Observed {
    let mut next = observed.clone();
    next.pods.retain_mut(|p| {
        let delete = desired.delete.iter().any(|d| d.name == p.name);
        let over = matches!(p.phase, PodPhase::Failed | PodPhase::Succeeded);
        p.deleting |= delete;
        !(delete && over)
    });
    next.pods.extend(next_pods(desired));
    next.orders = desired.orders.clone().or(next.orders);
    if let Some(made) = &desired.starts {
        let made = serde_json::from_value(made.clone()).unwrap();
        next.coordinators
            .push(crate::observe_pod::coordinator_pod(&made).unwrap());
    }
    next.coordinators.retain_mut(|p| {
        let delete = desired.coordinators_deleted.contains(&p.name);
        p.deleting |= delete;
        !(delete && matches!(p.phase, PodPhase::Failed | PodPhase::Succeeded))
    });
    next.job.status = desired.status.clone();
    next
}

/// The pods that a decision creates, as a watch shows them at first.
pub(super) fn next_pods(desired: &Decided) -> Vec<ObservedPod> {
    let shown = |made: &Value| {
        let made = serde_json::from_value(made.clone()).unwrap();
        crate::observe_pod::pod(&made).unwrap()
    };
    desired.create.iter().map(shown).collect()
}

pub(super) fn number_of(made: &Value, label: &str) -> i64 {
    made["metadata"]["labels"][label]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}
