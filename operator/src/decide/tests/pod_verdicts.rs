//! The verdicts on pods.

use super::*;

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn pods_are_judged_by_what_the_api_shows_of_them() {
    let mut observed = observed(1);
    let nodes = &mut observed.nodes;
    nodes.insert("dead".into(), ObservedNode::default());
    nodes.insert(
        "spot".into(),
        ObservedNode {
            ready: true,
            taints: vec!["karpenter.sh/disrupted".into()],
            conditions: vec![],
            domain: String::new(),
        },
    );
    nodes.insert(
        "azure".into(),
        ObservedNode {
            ready: true,
            taints: vec![],
            conditions: vec!["VMEventScheduled".into()],
            domain: String::new(),
        },
    );
    nodes.insert(
        "cordoned".into(),
        ObservedNode {
            ready: true,
            taints: vec!["node.kubernetes.io/unschedulable".into()],
            conditions: vec![],
            domain: String::new(),
        },
    );
    let on = |node: &str| ObservedPod {
        node: Some(node.into()),
        ..pod(1, PodPhase::Running)
    };
    let waiting = |reason: &str| ObservedPod {
        waiting: Some((reason.into(), "m".into())),
        ..pod(1, PodPhase::Pending)
    };
    let by = |reason: &str, pod: ObservedPod| ObservedPod {
        disrupted: Some(reason.into()),
        ..pod
    };
    let cases = [
        (pod(1, PodPhase::Running), "Running"),
        (pod(1, PodPhase::Pending), "Pending"),
        (on("dead"), "NodeLost"),
        (on("gone"), "NodeLost"),
        (on("spot"), "NodeLeaving"),
        (on("azure"), "NodeLeaving"),
        (on("cordoned"), "Running"),
        (
            ObservedPod {
                deleting: true,
                ..on("dead")
            },
            "Terminating",
        ),
        (waiting("ImagePullBackOff"), "CannotStart"),
        (waiting("ContainerCreating"), "Pending"),
        (waiting("CrashLoopBackOff"), "CannotStart"),
        (
            ObservedPod {
                phase: PodPhase::Running,
                ..waiting("CrashLoopBackOff")
            },
            "Running",
        ),
        (init_failed(1, 1, 0), "InitFailed"),
        (init_failed(1, 137, 0), "Killed"),
        (by("Terminated", init_failed(1, 1, 0)), "Preempted"),
        (ended(1, 0, "Completed", 1), "Released"),
        (ended(1, 1, "Error", 1), "Crashed"),
        (ended(1, 137, "OOMKilled", 1), "Crashed"),
        (ended(1, 137, "Error", 1), "Killed"),
        (ended(1, 143, "Error", 1), "Killed"),
        (
            by("PreemptionByScheduler", ended(1, 143, "Error", 1)),
            "Preempted",
        ),
        (by("Evicted", ended(1, 1, "Error", 1)), "Preempted"),
        (by("TerminationByKubelet", pod(1, PodPhase::Failed)), "Preempted"),
        (pod(1, PodPhase::Failed), "Rejected"),
        (
            ObservedPod {
                phase: PodPhase::Running,
                ..ended(1, 1, "Error", 1)
            },
            "Crashed",
        ),
    ];
    let signals: Vec<String> = NODE_SIGNALS.iter().map(|s| s.name.to_owned()).collect();
    for (pod, want) in cases {
        let verdict = format!("{:?}", judge_pod(&observed, &pod, &signals, Some(&training(3))));
        assert!(verdict.starts_with(want), "{pod:?}: {verdict}");
    }
}

#[test]
fn a_worker_that_answers_is_not_lost_with_its_kubelet() {
    let mut observed = observed(1);
    observed.nodes = BTreeMap::from([("dead".to_owned(), ObservedNode::default())]);
    let pod = ObservedPod {
        node: Some("dead".into()),
        ..pod(1, PodPhase::Running)
    };
    let verdict = |run: Option<&ObservedRun>| judge_pod(&observed, &pod, &[], run);
    let settling = run(RunMode::Settling, 1, 3);
    let mut run = training(3);
    assert!(matches!(verdict(Some(&run)), PodVerdict::NodeLost(_)));
    run = with_workers(run, &["j-w1-u"], &[]);
    assert_eq!(verdict(Some(&run)), PodVerdict::Running);
    // A coordinator that has just taken over has no reports yet.
    run = with_workers(settling, &[], &[]);
    assert_eq!(verdict(Some(&run)), PodVerdict::Running);
    assert_eq!(verdict(None), PodVerdict::Running);
}
