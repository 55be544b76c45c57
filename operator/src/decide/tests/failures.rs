//! Crashes, rejections and failing nodes: how long a replacement waits, which nodes it avoids, and when the job fails.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn crashed_on(node: &str, number: i64, ago: i64) -> ObservedPod {
    ObservedPod {
        node: Some(node.into()),
        ..ended(number, 1, "Error", ago)
    }
}

fn rejected_on(node: &str, number: i64, ago: i64) -> ObservedPod {
    ObservedPod {
        node: Some(node.into()),
        rejected: Some(Rejection {
            made: NOW - ago - 1,
            at: NOW - ago,
            reason: "UnexpectedAdmissionError".into(),
            message: "no healthy devices present".into(),
        }),
        ..pod(number, PodPhase::Failed)
    }
}

/// The observation after the decision was carried out, some seconds later.
fn later(observed: &Observed, seconds: i64) -> Observed {
    let mut next = carried_out(observed, &decide(observed));
    next.now += seconds;
    next
}

fn required(pod: &Value) -> &Value {
    &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
}

fn preferred(pod: &Value) -> &Value {
    &pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
}

#[test]
fn workers_on_a_broken_node_are_one_crash() {
    let mut observed = on_nodes(8);
    observed.pods = (1..=8).map(|i| crashed_on("a", i, 9 - i)).collect();
    let desired = decide(&observed);
    assert_eq!(condition(&desired, ConditionType::Failed).status, "False");
    assert_eq!(desired.status.recent_failures.len(), 1);
    assert_eq!(desired.status.recent_failures[0].node.as_deref(), Some("a"));
}

#[test]
fn node_whose_clock_is_ahead_holds_no_replacement_up() {
    let mut observed = on_nodes(2);
    observed.pods = vec![crashed_on("a", 1, -5)];
    let soon = decide(&observed);
    assert_eq!((soon.create.len(), soon.reconcile_in), (1, Some(6)));
    observed.pods = vec![crashed_on("a", 1, -86_400)];
    let at_once = decide(&observed);
    assert_eq!((at_once.create.len(), at_once.reconcile_in), (2, None));
    assert_eq!(at_once.status.recent_failures.len(), 1, "it counts all the same");
}

#[test]
fn six_crash_moments_fail_the_job() {
    let mut observed = on_nodes(2);
    let nodes = ["a", "b", "c", "d", "e", "f"];
    observed.pods = nodes
        .iter()
        .zip(1..)
        .map(|(node, i)| crashed_on(node, i, 6 - i))
        .collect();
    assert_eq!(
        condition(&decide(&observed), ConditionType::Failed).status,
        "False"
    );
    observed.pods = nodes
        .iter()
        .zip(1..)
        .map(|(node, i)| crashed_on(node, i, 20 * (6 - i)))
        .collect();
    let failed = decide(&observed);
    let message = &condition(&failed, ConditionType::Failed).message;
    assert!(
        message.contains("6 times") && message.contains("last words"),
        "{message}"
    );
    observed.job.spec = Ok(spec(2, "  failurePolicy: {maxCrashes: 7}\n"));
    assert_eq!(
        condition(&decide(&observed), ConditionType::Failed).status,
        "False"
    );
}

#[test]
fn a_replacement_that_crashes_at_once_is_a_crash_of_its_own() {
    let mut observed = on_nodes(1);
    let mut quick = crashed_on("a", 2, 0);
    quick.ended.as_mut().unwrap().started = NOW - 1;
    observed.pods = vec![crashed_on("a", 1, 2), quick];
    let desired = decide(&observed);
    assert_eq!(
        (desired.status.recent_failures.len(), desired.reconcile_in),
        (2, Some(2))
    );
}

#[test]
fn crashes_are_remembered_when_their_pods_are_gone() {
    let mut observed = on_nodes(1);
    for (i, node) in ["a", "b", "c", "d", "e", "f"].iter().enumerate() {
        observed.pods = vec![crashed_on(
            node,
            i64::try_from(i).unwrap() + 1,
            observed.now - NOW,
        )];
        observed.pods[0].ended.as_mut().unwrap().at = observed.now;
        let desired = decide(&observed);
        let failed = condition(&desired, ConditionType::Failed).status == "True";
        assert_eq!(failed, i == 5, "crash {i}");
        observed.job.status = desired.status;
        observed.now += 60;
    }
}

/// A job whose workers all crash in each round, eight on each of this many nodes. Returns how long the replacements wait after each round,
/// and after which round the job has failed.
fn crash_rounds(nodes: u32, rounds: usize, extra: &str) -> (Vec<i64>, Option<usize>) {
    let mut observed = observed(8 * nodes);
    let text = format!("  workers: {{gpusPerPod: 8}}\n{extra}");
    observed.job.spec = Ok(spec(8 * nodes, &text));
    for node in 0..nodes {
        let ready = ObservedNode {
            ready: true,
            ..ObservedNode::default()
        };
        observed.nodes.insert(format!("n{node}"), ready);
    }
    let mut waits = vec![];
    for round in 1..=rounds {
        let made = decide(&observed);
        assert_eq!(made.create.len(), nodes as usize, "round {round}");
        observed = carried_out(&observed, &made);
        observed.now += 5;
        let now = observed.now;
        let started = observed.pods.iter_mut().filter(|p| p.phase == PodPhase::Pending);
        for (pod, node) in started.zip(0..nodes) {
            let mut crashed = crashed_on(&format!("n{node}"), pod.number, 0);
            let end = crashed.ended.as_mut().unwrap();
            (end.started, end.at) = (now - 4, now);
            *pod = crashed;
        }
        let crashed = decide(&observed);
        if condition(&crashed, ConditionType::Failed).status == "True" {
            return (waits, Some(round));
        }
        let wait = crashed.reconcile_in.unwrap();
        waits.push(wait);
        observed = carried_out(&observed, &crashed);
        observed.now += wait;
    }
    (waits, None)
}

#[test]
fn crashing_job_is_delayed_and_fails() {
    let slowed_down: Vec<i64> = (0..15_u32).map(|round| (1_i64 << round).min(300)).collect();
    assert_eq!(crash_rounds(16, 20, ""), (slowed_down, Some(16)));
    let remembered = crash_rounds(80, 4, "");
    assert_eq!(
        remembered,
        (vec![1, 2, 4, 8], None),
        "more nodes than failures are remembered"
    );
    let (_, failed) = crash_rounds(1, 60, "  failurePolicy: {maxCrashes: 50}\n");
    assert_eq!(failed, Some(50), "it takes longer than failures are remembered");
}

#[test]
fn crashes_count_until_the_next_step_however_long_ago_they_were() {
    let mut observed = on_nodes(2);
    observed.pods = vec![crashed_on("a", 1, 60), crashed_on("b", 2, 40)];
    let counted = |desired: &Decided| desired.status.crash_moments.len();
    let mut next = carried_out(&observed, &decide(&observed));
    next.pods.push(crashed_on("c", 9, 43));
    let desired = decide(&next);
    assert_eq!(
        counted(&desired),
        2,
        "one that is seen late is of the same moment"
    );
    let mut next = carried_out(&next, &desired);
    next.pods.clear();
    next.now += 7200;
    let desired = decide(&next);
    assert!(desired.status.recent_failures.is_empty());
    assert_eq!(counted(&desired), 2);
    next.run = Some(training(1));
    assert_eq!(counted(&decide(&next)), 0);
}

#[test]
fn crashes_on_avoided_nodes_stay_excluded() {
    let mut observed = on_nodes(2);
    observed.pods = vec![running_on("b", 1)];
    observed
        .pods
        .extend((2..=9).map(|i| crashed_on("a", i, 600 - 50 * i)));
    let desired = decide(&observed);
    assert_eq!(desired.status.crash_moments, []);
    let mut next = carried_out(&observed, &desired);
    next.pods.retain(|p| p.number == 1);
    next.now += 3600;
    assert_eq!(condition(&decide(&next), ConditionType::Failed).status, "False");
}

#[test]
fn failing_node_is_avoided_and_does_not_fail_the_job() {
    let mut observed = on_nodes(2);
    observed.pods = vec![running_on("b", 1)];
    observed
        .pods
        .extend((2..=3).map(|i| crashed_on("a", i, 600 - 100 * i)));
    let rather = decide(&observed);
    assert_eq!(
        *required(&rather.create[0]),
        Value::Null,
        "two failures may be chance"
    );
    let term = &preferred(&rather.create[0])[0]["preference"]["matchFields"][0];
    assert_eq!(
        (&term["key"], &term["values"][0]),
        (&"metadata.name".into(), &"a".into())
    );
    observed
        .pods
        .extend((4..=9).map(|i| crashed_on("a", i, 600 - 50 * i)));
    let desired = decide(&observed);
    assert_eq!(condition(&desired, ConditionType::Failed).status, "False");
    assert_eq!(desired.create.len(), 1);
    let term = &required(&desired.create[0])[0]["matchFields"][0];
    assert_eq!(
        (&term["operator"], &term["values"][0]),
        (&"NotIn".into(), &"a".into())
    );
    // If no worker runs on another node, the failure is not attributed to the node.
    observed.pods.remove(0);
    assert_eq!(
        condition(&decide(&observed), ConditionType::Failed).status,
        "True"
    );
}

#[test]
fn workers_that_end_well_say_nothing_against_their_node() {
    let mut observed = on_nodes(2);
    observed.pods = vec![running_on("b", 1), crashed_on("a", 2, 400)];
    observed.pods.extend((3..=8).map(|i| ObservedPod {
        node: Some("a".into()),
        ..ended(i, 0, "Completed", 390 - 20 * i)
    }));
    let desired = decide(&observed);
    assert!(desired.status.recent_failures.len() > 3);
    assert_eq!(*required(&desired.create[0]), Value::Null, "one failure");
}

#[test]
fn affinity_terms_are_kept_and_avoid_the_node() {
    let mut observed = on_nodes(2);
    let affinity = "nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: Exists}]}, {matchFields: []}]}}";
    observed.job.spec = Ok(spec(
        2,
        &format!(
            "  failurePolicy: {{avoidNodeAfter: 1}}\n  workers: {{template: {{spec: {{affinity: {{{affinity}}}}}}}}}\n"
        ),
    ));
    observed.pods = vec![running_on("b", 1), crashed_on("a", 2, 100)];
    let desired = decide(&observed);
    let terms = required(&desired.create[0]).as_array().unwrap();
    assert_eq!(terms.len(), 2);
    assert_eq!(terms[0]["matchExpressions"][0]["key"], "pool");
    for term in terms {
        assert_eq!(term["matchFields"][0]["values"][0], "a");
    }
}

#[test]
fn invalid_template_is_left_to_the_server() {
    for affinity in [
        "3",
        "{nodeAffinity: x}",
        "{nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [1]}}",
    ] {
        let mut observed = on_nodes(2);
        let template =
            format!("{{spec: {{affinity: {affinity}, tolerations: 3, volumes: 4, securityContext: 5}}}}");
        observed.job.spec = Ok(spec(
            2,
            &format!("  failurePolicy: {{avoidNodeAfter: 1}}\n  workers: {{template: {template}}}\n"),
        ));
        observed.pods = vec![
            running_on("b", 1),
            crashed_on("a", 2, 100),
            crashed_on("c", 3, 200),
        ];
        assert_eq!(decide(&observed).create.len(), 1, "{affinity}");
    }
}

#[test]
fn leaving_node_without_taint_gets_no_new_pod() {
    let mut observed = on_nodes(1);
    let leaving = observed.nodes.get_mut("a").unwrap();
    leaving.conditions = vec!["VMEventScheduled".into()];
    observed.pods = vec![running_on("a", 1)];
    let desired = decide(&observed);
    assert_eq!(deleted(&desired), ["j-w1-u"]);
    assert_eq!(
        required(&desired.create[0])[0]["matchFields"][0]["values"][0],
        "a"
    );
    // When the node no longer announces its end, a pod without a node may use it.
    let mut next = carried_out(&observed, &desired);
    next.pods.retain(|p| p.number == 2);
    next.pods[0].avoids = BTreeSet::from(["a".to_owned()]);
    next.pods[0].unschedulable = Some("0/1 nodes are available".into());
    assert!(decide(&next).delete.is_empty());
    next.nodes.get_mut("a").unwrap().conditions.clear();
    let again = decide(&next);
    assert_eq!(
        (deleted(&again), names(&again)),
        (vec!["j-w2-u"], vec!["j-w3-u".into()])
    );
    assert_eq!(*required(&again.create[0]), Value::Null);
}

/// A job with additional nodes that announce their end by a condition, which does not keep pods off.
fn with_leaving_nodes(max: u32, count: usize) -> Observed {
    let mut observed = on_nodes(max);
    for i in 0..count {
        let leaving = ObservedNode {
            ready: true,
            conditions: vec!["VMEventScheduled".into()],
            ..ObservedNode::default()
        };
        observed.nodes.insert(format!("l{i:03}"), leaving);
    }
    observed
}

#[test]
fn repeated_moves_to_leaving_nodes_are_delayed() {
    let mut observed = with_leaving_nodes(2, 100);
    observed.pods = vec![running_on("a", 1), pod(2, PodPhase::Pending)];
    observed.run = Some(all_placed(with_workers(training(3), &["j-w1-u"], &[])));
    let mut waits = vec![];
    for round in 0..6 {
        // The scheduler chooses a node that the pod does not avoid.
        let pod = observed.pods.last_mut().unwrap();
        let node = (0..100)
            .map(|i| format!("l{i:03}"))
            .find(|node| !pod.avoids.contains(node));
        pod.node = node;
        let desired = decide(&observed);
        if round > 0 {
            assert_eq!(
                (deleted(&desired).len(), names(&desired).len()),
                (0, 0),
                "round {round}"
            );
            let wait = desired.reconcile_in.unwrap();
            waits.push(wait);
            observed = later(&observed, wait);
        }
        let desired = decide(&observed);
        assert_eq!(
            (deleted(&desired).len(), names(&desired).len()),
            (1, 1),
            "round {round}"
        );
        observed = carried_out(&observed, &desired);
        observed.pods.retain(|pod| !pod.deleting);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16]);
    assert_eq!(
        condition(&decide(&observed), ConditionType::Failed).status,
        "False",
        "it is nobody's crash"
    );
}

#[test]
fn rejection_by_a_clock_that_is_ahead_delays_no_move() {
    let mut observed = with_leaving_nodes(2, 100);
    let moves = ObservedPod {
        node: Some("l000".into()),
        ..pod(2, PodPhase::Pending)
    };
    observed.pods = vec![running_on("a", 1), moves];
    observed.run = Some(all_placed(with_workers(training(3), &["j-w1-u"], &[])));
    // One that is more than an hour ahead is forgotten with its pod.
    for (ahead, remembered) in [(1800, true), (86_400, false)] {
        observed.job.status.recent_failures = vec![varuna_api::crd::RecentFailure {
            at: decision::time(NOW + ahead),
            node: Some("l099".into()),
            pod: "j-w9-u".into(),
            kind: "Rejected".into(),
            number: None,
            made_from: None,
        }];
        let desired = decide(&observed);
        assert_eq!(deleted(&desired), ["j-w2-u"], "{ahead} s ahead");
        let failures = &desired.status.recent_failures;
        let is_there = failures.iter().any(|f| f.pod == "j-w9-u");
        assert_eq!(is_there, remembered, "{ahead} s ahead");
    }
}

#[test]
fn training_worker_on_a_leaving_node_is_replaced_at_once() {
    let mut observed = with_leaving_nodes(1, 100);
    observed.pods = vec![running_on("l000", 1)];
    observed.run = Some(with_workers(training(3), &["j-w1-u"], &[]));
    let rejected = |node: &str| varuna_api::crd::RecentFailure {
        at: decision::time(NOW),
        node: Some(node.into()),
        pod: "j-w9-u".into(),
        kind: "Rejected".into(),
        number: None,
        made_from: None,
    };
    observed.job.status.recent_failures = vec![rejected("l099")];
    let desired = decide(&observed);
    assert_eq!(
        (deleted(&desired), names(&desired)),
        (vec!["j-w1-u"], vec!["j-w2-u".into()])
    );
    let avoided = next_pods(&desired)[0].avoids.clone();
    assert_eq!(avoided.len(), 64);
    assert!(
        avoided.contains("l000") && avoided.contains("l099"),
        "those that pods were on come first"
    );
    // If a pod can avoid all of these nodes, pods that have not started are replaced at once as well.
    let mut few = with_leaving_nodes(1, 10);
    few.job.status = observed.job.status;
    few.pods = vec![ObservedPod {
        node: Some("l001".into()),
        ..pod(1, PodPhase::Pending)
    }];
    assert_eq!(names(&decide(&few)), ["j-w2-u"]);
}

#[test]
fn unschedulable_pod_is_recreated_for_an_allowed_node() {
    let mut observed = with_leaving_nodes(1, 100);
    let avoiding = |nodes: &[&str]| ObservedPod {
        unschedulable: Some("0/100 nodes are available".into()),
        avoids: nodes.iter().map(|node| (*node).to_owned()).collect(),
        ..pod(1, PodPhase::Pending)
    };
    // The pod avoids `l099`, which is not among the nodes that new pods avoid, and still announces its end. The node `gone` cannot run a
    // pod.
    observed.pods = vec![avoiding(&["l000", "l099", "gone"])];
    assert!(decide(&observed).delete.is_empty());
    observed.nodes.get_mut("l099").unwrap().conditions.clear();
    assert_eq!(deleted(&decide(&observed)), ["j-w1-u"]);
    observed.nodes.get_mut("l099").unwrap().ready = false;
    assert!(decide(&observed).delete.is_empty());
}

#[test]
fn rejecting_node_delays_replacements() {
    let mut observed = on_nodes(1);
    observed.pods = vec![rejected_on("a", 1, 0)];
    let mut waits = vec![];
    for number in 1..=6 {
        let desired = decide(&observed);
        assert!(desired.create.is_empty(), "no hot loop");
        waits.push(desired.reconcile_in.unwrap());
        let mut next = later(&observed, *waits.last().unwrap());
        assert_eq!(names(&decide(&next)).len(), 1);
        assert!(
            decide(&next)
                .events
                .iter()
                .all(|e| e.reason != Reason::WorkerPreempted)
        );
        // The replacement is rejected after two seconds.
        next.now += 2;
        let mut again = rejected_on("a", number + 1, 0);
        let rejection = again.rejected.as_mut().unwrap();
        (rejection.made, rejection.at) = (next.now - 1, next.now);
        next.pods = vec![again];
        observed = next;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32]);
    let desired = decide(&observed);
    assert_eq!(
        condition(&desired, ConditionType::Failed).status,
        "False",
        "not the job's fault"
    );
    let degraded = condition(&desired, ConditionType::Degraded);
    assert_eq!(degraded.reason, "PodsRejected");
    assert!(
        degraded.message.contains("no healthy devices present"),
        "{degraded:?}"
    );
}

#[test]
fn failing_init_container_is_the_templates_fault_by_default() {
    let mut observed = on_nodes(2);
    let on = |node: &str, pod: ObservedPod| ObservedPod {
        node: Some(node.into()),
        ..pod
    };
    observed.pods = (1..=5)
        .map(|i| on("a", init_failed(i, 2, 120 - 20 * i)))
        .collect();
    observed.pods.push(running_on("b", 6));
    let desired = decide(&observed);
    let degraded = condition(&desired, ConditionType::Degraded);
    assert_eq!(degraded.reason, "InitContainersFail");
    assert!(
        degraded
            .message
            .contains("init container fetch of spec.workers.template ended with exit code 2"),
        "{degraded:?}"
    );
    assert_eq!(
        desired.create[0]["spec"]["affinity"],
        Value::Null,
        "five failures, and the node is as good as another"
    );
    assert!(
        desired
            .status
            .recent_failures
            .iter()
            .all(|f| f.kind == "InitFailed")
    );
    observed.pods.insert(5, on("a", init_failed(7, 2, 0)));
    let sixth = decide(&observed);
    let failed = condition(&sixth, ConditionType::Failed);
    assert_eq!(failed.reason, "InitContainersFail");
    assert!(failed.message.contains("init container fetch"), "{failed:?}");
    // The job remains failed for the same reason, and another template is tried at once.
    let mut stays = carried_out(&observed, &sixth);
    assert_eq!(condition(&decide(&stays), ConditionType::Failed), failed);
    stays.job.generation += 1;
    assert_eq!(condition(&decide(&stays), ConditionType::Failed).status, "False");
}

/// Pods whose init containers failed on node `a`, oldest first, and a pod that runs on `b`. All have this template.
fn init_failures_on_a(numbers: &[i64], runs: (i64, &str), made_from: &str) -> Observed {
    let mut observed = on_nodes(2);
    let ago = |i: usize| 600 - 50 * i64::try_from(i).unwrap();
    let failed = numbers.iter().enumerate().map(|(i, number)| ObservedPod {
        node: Some("a".into()),
        made_from: Some(made_from.into()),
        ..init_failed(*number, 2, ago(i))
    });
    observed.pods = failed.collect();
    observed.pods.push(ObservedPod {
        made_from: Some(runs.1.into()),
        ..running_on("b", runs.0)
    });
    observed.pods.sort_by_key(|p| p.number);
    observed
}

#[test]
fn node_with_failing_init_containers_is_avoided() {
    let avoided = |observed: &Observed| {
        let desired = decide(observed);
        let pod = &desired.create[0];
        let is_of_a = |term: &Value| term["values"] == json!(["a"]);
        (
            is_of_a(&required(pod)[0]["matchFields"][0]),
            is_of_a(&preferred(pod)[0]["preference"]["matchFields"][0]),
        )
    };
    let between = init_failures_on_a(&[1, 2, 4], (3, "t"), "t");
    assert_eq!(avoided(&between), (true, false), "three failures");
    let few = init_failures_on_a(&[2, 4], (3, "t"), "t");
    assert_eq!(avoided(&few), (false, true), "two may be chance");
    // The failure affects all pods: a bucket that was unavailable for a while, or is unavailable now.
    for runs in [1, 9] {
        let observed = init_failures_on_a(&[2, 3, 4, 5], (runs, "t"), "t");
        assert_eq!(avoided(&observed), (false, false), "pod {runs} runs");
    }
    let corrected = init_failures_on_a(&[1, 2, 4], (3, "another"), "t");
    assert_eq!(avoided(&corrected), (false, false), "another template");
    // Its crashes no longer count for the job, however many there are. The node is still avoided when the pods are gone.
    let mut many = init_failures_on_a(&[1, 2, 4, 5, 6, 7, 8, 9], (3, "t"), "t");
    let desired = decide(&many);
    assert_eq!(condition(&desired, ConditionType::Failed).status, "False");
    many.job.status = desired.status;
    many.pods.retain(|p| p.number == 3);
    assert_eq!(avoided(&many), (true, false));
}

#[test]
fn a_crash_loop_that_moves_from_node_to_node_is_slowed_down_too() {
    let mut observed = on_nodes(1);
    observed.pods = ["a", "b", "c", "d"]
        .iter()
        .zip(1..)
        .map(|(n, i)| crashed_on(n, i, 60 - 15 * i))
        .collect();
    assert_eq!(
        decide(&observed).reconcile_in,
        Some(8),
        "the fourth crash without a step"
    );
    observed.job.status.progressed_at = Some(decision::time(NOW - 1));
    observed.job.status.step = Some(5);
    assert_eq!(
        decide(&observed).reconcile_in,
        Some(1),
        "the first one on its node, and steps between them"
    );
}

#[test]
fn worker_that_ended_beside_a_sidecar_is_deleted() {
    let mut observed = on_nodes(1);
    let mut beside = ended(1, 1, "Error", 0);
    beside.phase = PodPhase::Running;
    observed.pods = vec![beside];
    observed.run = Some(all_placed(with_workers(training(3), &[], &["j-w1-u"])));
    let desired = decide(&observed);
    assert_eq!(desired.status.recent_failures.len(), 1);
    assert_eq!(desired.orders.as_ref().unwrap().ended, ["j-w1-u"]);
    assert_eq!(
        condition(&desired, ConditionType::Degraded).reason,
        "WorkersCrash"
    );
    let next = decide(&later(&observed, 1));
    assert_eq!(
        (deleted(&next), names(&next)),
        (vec!["j-w1-u"], vec!["j-w2-u".into()])
    );
}

#[test]
fn job_is_not_suspended_if_progress_would_be_lost() {
    let mut observed = observed(1);
    observed.job.spec = Ok(spec(1, "  suspend: true\n"));
    observed.run = Some(training(3));
    observed.pods = vec![pod(1, PodPhase::Running)];
    let desired = decide(&observed);
    assert_eq!(desired.coordinator, CoordinatorGoal::Run);
    assert_eq!(
        condition(&desired, ConditionType::Suspended).reason,
        "WouldLoseState"
    );
    let mut nothing_trained = observed.clone();
    nothing_trained.run = Some(run(RunMode::Waiting, 0, 0));
    assert_eq!(decide(&nothing_trained).coordinator, CoordinatorGoal::Stop);
    observed.job.spec = Ok(spec(1, "  suspend: true\n  allowStateLoss: true\n"));
    assert_eq!(decide(&observed).coordinator, CoordinatorGoal::Stop);
}

#[test]
fn job_fails_at_its_deadline_and_is_deleted_later() {
    let mut observed = observed(1);
    observed.job.spec = Ok(spec(
        1,
        "  activeDeadlineSeconds: 100\n  ttlSecondsAfterFinished: 50\n",
    ));
    let started = decide(&observed);
    assert_eq!(started.reconcile_in, None, "it is not known yet when it started");
    let mut next = carried_out(&observed, &started);
    assert_eq!(decide(&next).reconcile_in, Some(100));
    next.now += 100;
    next.run = Some(training(3));
    let over = decide(&next);
    assert_eq!(condition(&over, ConditionType::Failed).reason, "DeadlineExceeded");
    assert_eq!(
        (over.coordinator, over.reconcile_in),
        (CoordinatorGoal::Stop, Some(50))
    );
    let mut ended = carried_out(&next, &over);
    ended.run = None;
    ended.now += 49;
    assert!(!super::super::decide(&ended).delete_job);
    ended.now += 1;
    assert!(super::super::decide(&ended).delete_job);
    // A job that is tried again with another spec is not deleted.
    ended.job.spec = Ok(spec(
        1,
        "  activeDeadlineSeconds: 1000\n  ttlSecondsAfterFinished: 50\n",
    ));
    ended.job.generation = 2;
    assert!(!super::super::decide(&ended).delete_job);
    let again = decide(&ended);
    assert_eq!(again.status.completion_time, None);
    assert_eq!(again.coordinator, CoordinatorGoal::Run);
}

#[test]
fn refused_deletion_of_a_job_is_reported_and_waits() {
    let mut observed = observed(1);
    observed.job.spec = Ok(spec(1, "  ttlSecondsAfterFinished: 50\n"));
    observed.run = Some(ObservedRun {
        ended: Some(RunEnd::Done),
        ..training(10)
    });
    let mut over = later(&observed, 50);
    assert!(super::super::decide(&over).delete_job);
    over.failures = vec![Failure {
        part: JobPart::JobDeletion,
        message: "a webhook denied the request".into(),
        retry_in: 4,
    }];
    assert!(!super::super::decide(&over).delete_job);
    let said = decide(&over);
    assert_eq!(condition(&said, ConditionType::Degraded).reason, "ObjectsRefused");
    assert_eq!(said.reconcile_in, Some(4));
    over.failures[0].retry_in = 0;
    assert!(super::super::decide(&over).delete_job, "its time has come");
}

proptest! {
    #[test]
    fn failures_are_counted_once_however_often_they_are_seen(
        ends in proptest::collection::vec((0_usize..3, 0_i64..4000), 0..30),
    ) {
        let mut observed = on_nodes(2);
        let nodes = ["a", "b", "c"];
        observed.pods = ends.iter().zip(1..).map(|((node, ago), i)| crashed_on(nodes[*node], i, *ago)).collect();
        let first = decide(&observed).status.recent_failures;
        observed.job.status.recent_failures.clone_from(&first);
        prop_assert_eq!(&decide(&observed).status.recent_failures, &first);
        observed.pods.reverse();
        prop_assert_eq!(&decide(&observed).status.recent_failures, &first);
        prop_assert!(first.len() <= 64 && first.windows(2).all(|w| w[0].at.0 <= w[1].at.0));
    }
}
