//! Pods that a node has and does not start: how long that may take, and what follows.

use super::*;
use varuna_api::FailureKind;

/// A pod that a node has been given some seconds ago, and of which no container has started.
fn unstarted_on(node: &str, ago: i64, may_pull: bool, pod: ObservedPod) -> ObservedPod {
    ObservedPod {
        node: Some(node.into()),
        waiting: Some(("ContainerCreating".into(), String::new())),
        unstarted: Some(Unstarted {
            bound: NOW - ago,
            may_pull,
        }),
        ..pod
    }
}

fn worker_on(node: &str, ago: i64, may_pull: bool) -> ObservedPod {
    unstarted_on(node, ago, may_pull, pod(1, PodPhase::Pending))
}

/// What a pod prefers, as text.
fn preferences(made: &Value) -> String {
    made["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"].to_string()
}

#[test]
fn a_worker_that_its_node_does_not_start_is_moved() {
    let mut observed = on_nodes(2);
    observed.pods = vec![worker_on("a", 599, false), running_on("b", 2)];
    let waits = decide(&observed);
    assert_eq!((deleted(&waits).len(), waits.reconcile_in), (0, Some(1)));
    observed.pods[0] = worker_on("a", 601, false);
    let moves = decide(&observed);
    assert_eq!(deleted(&moves), ["j-w1-u"]);
    assert_eq!(names(&moves), ["j-w3-u"]);
    assert!(preferences(&moves.create[0]).contains(r#""values":["a"]"#));
    let failure = &moves.status.recent_failures[0];
    assert_eq!(
        (failure.kind.as_str(), failure.node.as_deref()),
        (FailureKind::NotStarted.as_str(), Some("a"))
    );
    let degraded = condition(&moves, ConditionType::Degraded);
    assert_eq!(degraded.reason, "PodsRejected");
    assert!(
        degraded.message.contains("in 600 s (ContainerCreating)"),
        "{degraded:?}"
    );
    assert_eq!(moves.status.crash_moments, [], "it is no crash");
}

#[test]
fn an_image_may_be_pulled_for_an_hour() {
    let mut observed = on_nodes(1);
    observed.pods = vec![worker_on("a", 3599, true)];
    assert!(deleted(&decide(&observed)).is_empty());
    observed.pods = vec![worker_on("a", 3601, true)];
    assert_eq!(deleted(&decide(&observed)), ["j-w1-u"]);
}

#[test]
fn a_pod_has_twice_the_time_of_one_that_was_moved() {
    let mut observed = on_nodes(1);
    observed.pods = vec![worker_on("a", 601, false)];
    observed = carried_out(&observed, &decide(&observed));
    observed.now += 600;
    observed.pods = vec![unstarted_on("b", 0, false, pod(2, PodPhase::Pending))];
    assert!(deleted(&decide(&observed)).is_empty());
    observed.now += 599;
    assert_eq!(decide(&observed).reconcile_in, Some(1));
    observed.now += 2;
    assert_eq!(deleted(&decide(&observed)), ["j-w2-u"]);
}

#[test]
fn an_unstarted_coordinator_is_replaced_on_another_node() {
    let mut observed = on_nodes(1);
    observed.orders = decide(&observed).orders;
    let starts = |ago| unstarted_on("a", ago, false, coordinator(1, PodPhase::Pending));
    observed.coordinators = vec![starts(599)];
    let waits = decide(&observed);
    assert!(waits.starts.is_none() && waits.coordinators_deleted.is_empty());
    observed.coordinators = vec![starts(601)];
    let (number, why) = coordinator_failure(&observed).unwrap();
    assert_eq!(number, 1);
    assert!(why.contains("does not take it: NotStarted"), "{why}");
    let moves = decide(&observed);
    assert_eq!(moves.coordinators_deleted.len(), 1);
    let made = moves.starts.unwrap();
    assert_eq!(number_of(&made, objects::COORDINATOR_LABEL), 2);
    assert!(preferences(&made).contains(r#""values":["a"]"#), "{made}");
}
