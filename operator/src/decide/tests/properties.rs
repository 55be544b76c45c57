//! Properties of decisions about any observation.

use super::*;
use proptest::prelude::*;

fn any_pod() -> impl Strategy<Value = ObservedPod> {
    let phase = prop_oneof![
        Just(PodPhase::Pending),
        Just(PodPhase::Running),
        Just(PodPhase::Succeeded),
        Just(PodPhase::Failed)
    ];
    let node = prop_oneof![
        Just(Some("good")),
        Just(Some("dead")),
        Just(Some("gone")),
        Just(Some("spot")),
        Just(None)
    ];
    let code = prop_oneof![Just(0), Just(1), Just(137), Just(143)];
    (
        1_i64..40,
        phase,
        node,
        any::<bool>(),
        proptest::option::of(Just("EvictionByEvictionAPI")),
        code,
        0_i64..900,
    )
        .prop_map(|(number, phase, node, deleting, disrupted, code, ago)| {
            let over = matches!(phase, PodPhase::Succeeded | PodPhase::Failed);
            let end = ContainerEnd {
                started: NOW - 2 * ago,
                at: NOW - ago,
                code: if phase == PodPhase::Succeeded {
                    0
                } else {
                    code.max(1)
                },
                reason: "Error".into(),
                message: "w".into(),
            };
            ObservedPod {
                node: node.map(str::to_owned),
                deleting,
                disrupted: disrupted.filter(|_| over).map(str::to_owned),
                ended: over.then_some(end),
                ..pod(number, phase)
            }
        })
}

fn any_observed() -> impl Strategy<Value = Observed> {
    let run = prop_oneof![
        Just(None),
        (0_u64..9).prop_map(|s| Some(training(s))),
        Just(Some(ObservedRun {
            ended: Some(RunEnd::Done),
            ..training(10)
        })),
        Just(Some(ObservedRun {
            ended: Some(RunEnd::Stopped),
            ..training(5)
        })),
    ];
    (
        1_u32..9,
        proptest::collection::vec(any_pod(), 0..14),
        run,
        any::<bool>(),
        0_i64..50,
    )
        .prop_map(|(max, mut pods, run, suspend, newest)| {
            pods.sort_by_key(|p| p.number);
            pods.dedup_by_key(|p| p.number);
            let mut observed = observed(max);
            observed.nodes.insert("dead".into(), ObservedNode::default());
            let spot = ObservedNode {
                ready: true,
                taints: vec!["karpenter.sh/disrupted".into()],
                conditions: vec![],
                domain: String::new(),
            };
            observed.nodes.insert("spot".into(), spot);
            if suspend {
                observed.job.spec = Ok(spec(max, "  suspend: true\n"));
            }
            observed.job.status.newest_pod = newest;
            observed.pods = pods;
            observed.run = run;
            observed
        })
}

proptest! {
    #[test]
    fn what_was_carried_out_is_not_wanted_again(observed in any_observed()) {
        let first = decide(&observed);
        let next = carried_out(&observed, &first);
        let second = decide(&next);
        prop_assert!(second.create.is_empty(), "{:?}", names(&second));
        prop_assert!(second.delete.iter().all(|d| !first.delete.contains(d)), "{:?} then {:?}", first.delete, second.delete);
        let third = decide(&carried_out(&next, &second));
        prop_assert_eq!(&third.status, &second.status);
        prop_assert!(third.delete.is_empty() && third.events.is_empty(), "{:?} {:?}", third.delete, third.events);
        prop_assert_eq!(third.objects, second.objects);
    }

    #[test]
    fn never_more_pods_live_than_allowed_and_no_name_is_used_twice(observed in any_observed()) {
        let desired = decide(&observed);
        let next = carried_out(&observed, &desired);
        let signals: Vec<String> = NODE_SIGNALS.iter().map(|s| (*s).to_owned()).collect();
        let live = next.pods.iter().filter(|p| judge_pod(p, &next.nodes, &signals, None).is_active()).count();
        let allowed = observed.job.spec.as_ref().unwrap().elasticity.max_workers.unwrap() as usize;
        let stopping = desired.coordinator == CoordinatorGoal::Stop;
        prop_assert!(stopping || live <= allowed, "{live} of {allowed}");
        for name in names(&desired) {
            prop_assert!(observed.pods.iter().all(|p| p.name != name));
        }
        let given = observed.job.status.newest_pod.max(observed.pods.iter().map(|p| p.number).max().unwrap_or(0));
        prop_assert!(names(&desired).iter().all(|n| n[3..n.len() - 2].parse::<i64>().unwrap() > given));
    }

    #[test]
    fn a_job_that_runs_always_has_its_pods_or_waits_for_a_known_time(observed in any_observed()) {
        let desired = decide(&observed);
        if desired.coordinator == CoordinatorGoal::Run {
            let next = carried_out(&observed, &desired);
            let signals: Vec<String> = NODE_SIGNALS.iter().map(|s| (*s).to_owned()).collect();
            let live = next.pods.iter().filter(|p| judge_pod(p, &next.nodes, &signals, None).is_active()).count();
            let allowed = observed.job.spec.as_ref().unwrap().elasticity.max_workers.unwrap() as usize;
            prop_assert!(live == allowed || desired.reconcile_in.is_some_and(|s| s > 0));
        }
    }
}
