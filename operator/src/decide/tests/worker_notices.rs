//! The coordinator is told which workers will end, or have ended.

use super::*;

#[test]
fn coordinator_is_notified_of_leaving_and_ended_pods() {
    let mut observed = observed(4);
    let detached = ["j-w1-u", "j-w2-u", "j-w3-u", "j-w4-u"];
    let workers = with_workers(training(3), &["j-w5-u", "j-w6-u"], &detached);
    observed.run = Some(all_placed(workers));
    let leaving = |number| ObservedPod {
        deleting: true,
        deletion: Some(Deletion {
            at: NOW - 4,
            deadline: NOW + 26,
        }),
        ..pod(number, PodPhase::Running)
    };
    observed.pods = vec![
        leaving(1),
        ended(2, 137, "Error", 1),
        pod(3, PodPhase::Running),
        leaving(5),
        pod(6, PodPhase::Running),
    ];
    let desired = decide(&observed);
    assert!(
        desired.orders.unwrap().leaving.is_empty(),
        "it may still say so itself"
    );
    assert_eq!(desired.reconcile_in, Some(1));
    observed.now += 1;
    let orders = decide(&observed).orders.unwrap();
    assert_eq!(orders.leaving, ["j-w5-u"]);
    assert_eq!(
        orders.ended,
        ["j-w2-u", "j-w4-u"],
        "one has ended, one has no pod any more"
    );
    // The coordinator is told before the worker is deleted.
    observed.nodes.insert(
        "spot".into(),
        ObservedNode {
            ready: true,
            taints: vec!["karpenter.sh/disrupted".into()],
            conditions: vec![],
            domain: String::new(),
        },
    );
    observed.pods[4].node = Some("spot".into());
    let desired = decide(&observed);
    assert!(deleted(&desired).contains(&"j-w6-u"), "{desired:?}");
    assert_eq!(desired.orders.unwrap().leaving, ["j-w5-u", "j-w6-u"]);
    // Workers that have announced their end themselves, and ended workers that no plan needs.
    let snapshot = observed.run.as_mut().unwrap().snapshot.as_mut().unwrap();
    for worker in &mut snapshot.workers {
        (worker.draining, worker.pipeline) = (worker.up, None);
    }
    let orders = decide(&observed).orders.unwrap();
    assert_eq!((orders.leaving.len(), orders.ended.len()), (0, 0));
    snapshot_mode(&mut observed, RunMode::Recovering);
    let orders = decide(&observed).orders.unwrap();
    assert_eq!(orders.ended, ["j-w2-u", "j-w4-u"], "a recovery may wait for them");
}

#[test]
fn short_notices_have_their_end_time() {
    let mut observed = observed(2);
    observed.run = Some(all_placed(with_workers(training(3), &["j-w1-u", "j-w2-u"], &[])));
    observed.coordinators = vec![coordinator(1, PodPhase::Running)];
    let deleted = |number, grace: i64| ObservedPod {
        deleting: true,
        deletion: Some(Deletion {
            at: NOW - 1,
            deadline: NOW - 1 + grace,
        }),
        ..pod(number, PodPhase::Running)
    };
    observed.pods = vec![deleted(1, 10), deleted(2, 35)];
    let without = decide(&observed).orders.unwrap();
    assert!(without.ends_at.is_empty(), "the job states no notice");
    observed.job.spec.as_mut().unwrap().disruption.notice_seconds = Some(30);
    let orders = decide(&observed).orders.unwrap();
    assert_eq!(orders.ends_at, BTreeMap::from([("j-w1-u".to_owned(), NOW + 9)]));
    assert_eq!((orders.written_at, without.written_at), (Some(NOW), None));
    observed.orders = Some(orders);
    observed.now += 1;
    assert!(decide(&observed).orders.is_none(), "it is told once");
    observed.now -= 1;
    observed.pods[0].deletion.as_mut().unwrap().deadline = NOW + 2;
    let sooner = decide(&observed).orders.unwrap().ends_at;
    assert_eq!(sooner.values().copied().collect::<Vec<_>>(), [NOW + 2]);
}

#[test]
fn new_coordinator_gets_earlier_end_times() {
    let mut observed = observed(2);
    observed.job.spec.as_mut().unwrap().disruption.notice_seconds = Some(120);
    observed.coordinators = vec![coordinator(1, PodPhase::Running)];
    let goes = ObservedPod {
        deleting: true,
        deletion: Some(Deletion {
            at: NOW - 100,
            deadline: NOW + 20,
        }),
        ..pod(1, PodPhase::Running)
    };
    observed.pods = vec![goes, pod(2, PodPhase::Running)];
    let both = ["j-w1-u", "j-w2-u"];
    observed.run = Some(all_placed(with_workers(training(3), &both, &[])));
    let orders = decide(&observed).orders.unwrap();
    assert!(orders.ends_at.is_empty(), "its coordinator knows since when");
    observed.run = Some(all_placed(with_workers(run(RunMode::Settling, 1, 3), &[], &both)));
    let orders = decide(&observed).orders.unwrap();
    assert_eq!(orders.ends_at, BTreeMap::from([("j-w1-u".to_owned(), NOW + 20)]));
    // The notice remains in the orders until the pod is gone, because removing it would cost another write.
    observed.orders = Some(orders);
    observed.run = Some(all_placed(with_workers(training(3), &both, &[])));
    let snapshot = observed.run.as_mut().unwrap().snapshot.as_mut().unwrap();
    snapshot.workers[0].draining = true;
    assert!(decide(&observed).orders.is_none());
}

#[test]
fn the_coordinator_is_told_the_end_that_a_known_taint_gives() {
    let taint = |key: &str, ago: Option<i64>| ObservedTaint {
        key: key.into(),
        added_at: ago.map(|seconds| NOW - seconds),
    };
    // Seconds until the coordinator is told that the worker ends, of a job with this notice.
    let told = |taint: &ObservedTaint, notice: Option<u32>| {
        let mut observed = observed(2);
        let node = ObservedNode {
            ready: true,
            taints: vec![taint.clone()],
            ..ObservedNode::default()
        };
        observed.nodes.insert("spot".into(), node);
        observed.pods = vec![running_on("spot", 1), pod(2, PodPhase::Running)];
        observed.run = Some(all_placed(with_workers(training(3), &["j-w1-u", "j-w2-u"], &[])));
        observed.coordinators = vec![coordinator(1, PodPhase::Running)];
        observed.job.spec.as_mut().unwrap().disruption.notice_seconds = notice;
        let decision = decide(&observed);
        assert!(deleted(&decision).contains(&"j-w1-u"), "{decision:?}");
        let orders = decision.orders.unwrap();
        assert!(!orders.ends_at.contains_key("j-w2-u"));
        orders.ends_at.get("j-w1-u").map(|at| at - NOW)
    };
    let aws = "aws-node-termination-handler/spot-itn";
    let google = "cloud.google.com/impending-node-termination";
    let azure = "remediator.kubernetes.azure.com/unschedulable";
    for (key, seconds) in [(aws, 115), (google, 10), (azure, 25)] {
        assert_eq!(told(&taint(key, Some(0)), Some(300)), Some(seconds), "{key}");
        assert_eq!(told(&taint(key, Some(4)), Some(300)), Some(seconds - 4), "{key}");
        assert_eq!(
            told(&taint(key, None), Some(300)),
            Some(seconds),
            "it came now: {key}"
        );
        assert_eq!(told(&taint(key, Some(400)), Some(300)), None, "it is over: {key}");
        assert_eq!(told(&taint(key, Some(0)), None), None, "the job states no notice");
    }
    assert_eq!(
        told(&taint(aws, Some(0)), Some(30)),
        None,
        "the job's notice is shorter"
    );
    for of_unknown_length in ["karpenter.sh/disrupted", "ToBeDeletedByClusterAutoscaler"] {
        assert_eq!(told(&taint(of_unknown_length, Some(0)), Some(300)), None);
    }
}

#[test]
fn of_a_pods_deletion_and_its_nodes_end_the_sooner_one_counts() {
    let mut observed = observed(1);
    let node = ObservedNode {
        ready: true,
        taints: vec!["aws-node-termination-handler/spot-itn".into()],
        ..ObservedNode::default()
    };
    observed.nodes.insert("spot".into(), node);
    observed.run = Some(all_placed(with_workers(training(3), &["j-w1-u"], &[])));
    observed.coordinators = vec![coordinator(1, PodPhase::Running)];
    observed.job.spec.as_mut().unwrap().disruption.notice_seconds = Some(300);
    let deleted = |observed: &mut Observed, ago: i64, grace: i64| {
        observed.pods = vec![ObservedPod {
            deleting: true,
            deletion: Some(Deletion {
                at: NOW - ago,
                deadline: NOW - ago + grace,
            }),
            ..running_on("spot", 1)
        }];
    };
    let mut ends_in = |ago: i64, grace: i64| {
        deleted(&mut observed, ago, grace);
        decide(&observed).orders.unwrap().ends_at["j-w1-u"] - NOW
    };
    assert_eq!(
        ends_in(10, 305),
        105,
        "the taint has no time: it counts from the deletion"
    );
    assert_eq!(ends_in(10, 60), 50);
    assert_eq!(ends_in(130, 305), 115, "the taint came after the deletion");
    deleted(&mut observed, 130, 305);
    let mut orders = decide(&observed).orders.unwrap();
    orders.ends_at.insert("j-w1-u".into(), NOW - 15);
    // Another reason to write orders.
    orders.allow_state_loss = !orders.allow_state_loss;
    observed.orders = Some(orders);
    let orders = decide(&observed).orders.unwrap();
    assert_eq!(orders.ends_at["j-w1-u"], NOW - 15, "what was said stays");
}
