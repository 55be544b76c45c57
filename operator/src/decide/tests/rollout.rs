//! The replacement of pods that were created from an earlier template.

use super::*;

#[test]
fn pods_that_never_ran_are_replaced_after_a_correction() {
    let mut observed = observed(2);
    let made = decide(&observed);
    let hash = made.create[0]["metadata"]["annotations"][objects::MADE_FROM_ANNOTATION].clone();
    let broken = |number| ObservedPod {
        waiting: Some(("ImagePullBackOff".into(), "no such image".into())),
        made_from: hash.as_str().map(str::to_owned),
        ..pod(number, PodPhase::Pending)
    };
    observed.pods = vec![broken(1), broken(2)];
    assert!(decide(&observed).delete.is_empty());
    observed.job.spec = Ok(spec(2, "  workers: {image: right}\n"));
    let desired = decide(&observed);
    assert_eq!(deleted(&desired), ["j-w1-u", "j-w2-u"]);
    assert_eq!(names(&desired), ["j-w3-u", "j-w4-u"]);
    assert_eq!(desired.create[0]["spec"]["containers"][0]["image"], "right");
}

#[test]
fn rollout_waits_until_all_workers_train() {
    let mut observed = on_nodes(4);
    let old = |number, node: &str| ObservedPod {
        made_from: Some("old".into()),
        ..running_on(node, number)
    };
    observed.pods = vec![old(1, "a"), old(2, "a"), old(3, "b"), old(4, "b")];
    assert!(decide(&observed).delete.is_empty(), "nobody trains");
    let all = ["j-w1-u", "j-w2-u", "j-w3-u", "j-w4-u"];
    let without_one = with_workers(training(3), &all[..3], &all[3..]);
    observed.run = Some(all_placed(without_one));
    let waits = decide(&observed);
    assert!(
        waits.delete.is_empty(),
        "one is out of reach, and may hold what no other does"
    );
    let message = waits.status.message.unwrap();
    assert!(
        message.contains("pod j-w4-u runs, and no worker of it is attached"),
        "{message}"
    );
    observed.run = Some(with_workers(training(3), &all, &[]));
    let desired = decide(&observed);
    assert_eq!(deleted(&desired), ["j-w1-u", "j-w2-u"]);
    assert!(
        desired.events.iter().any(|e| e.reason == Reason::RollingUpdate),
        "{:?}",
        desired.events
    );
    let mut next = carried_out(&observed, &desired);
    let hash = desired.create[0]["metadata"]["annotations"][objects::MADE_FROM_ANNOTATION].clone();
    assert!(decide(&next).delete.is_empty(), "the first node's are not back");
    next.pods.retain(|p| !p.deleting);
    for pod in next.pods.iter_mut().filter(|p| p.number > 4) {
        *pod = ObservedPod {
            made_from: hash.as_str().map(str::to_owned),
            ..running_on("c", pod.number)
        };
    }
    next.run = Some(with_workers(
        training(9),
        &["j-w3-u", "j-w4-u", "j-w5-u", "j-w6-u"],
        &[],
    ));
    assert_eq!(deleted(&decide(&next)), ["j-w3-u", "j-w4-u"]);
    // Pods of a release that recorded no hash are not replaced.
    for pod in &mut next.pods {
        pod.made_from = None;
    }
    assert!(decide(&next).delete.is_empty());
}

#[test]
fn pods_of_a_job_that_never_had_a_plan_are_replaced_at_once() {
    let mut observed = on_nodes(4);
    let old = |number, node: &str| ObservedPod {
        made_from: Some("old".into()),
        ..running_on(node, number)
    };
    observed.pods = vec![old(1, "a"), old(2, "a"), old(3, "b"), old(4, "b")];
    observed.run = Some(with_workers(run(RunMode::Starting, 0, 0), &[], &[]));
    assert!(
        decide(&observed).delete.is_empty(),
        "what is in its record is not known yet"
    );
    observed.run = Some(with_workers(run(RunMode::Waiting, 0, 0), &[], &[]));
    let desired = decide(&observed);
    assert_eq!(deleted(&desired), ["j-w1-u", "j-w2-u", "j-w3-u", "j-w4-u"]);
    assert_eq!(names(&desired).len(), 4);
    let next = decide(&carried_out(&observed, &desired));
    assert_eq!((deleted(&next).len(), names(&next).len()), (0, 0));
    observed.job.status.plan = Some(varuna_api::crd::PlanStatus::default());
    assert!(
        decide(&observed).delete.is_empty(),
        "it had one, and its workers may hold what it has trained"
    );
}

#[test]
fn the_only_node_of_a_job_without_checkpoints_keeps_its_pods() {
    let mut observed = observed(1);
    observed.pods = vec![ObservedPod {
        made_from: Some("old".into()),
        ..pod(1, PodPhase::Running)
    }];
    observed.run = Some(with_workers(training(3), &["j-w1-u"], &[]));
    assert!(decide(&observed).delete.is_empty());
    observed.job.spec = Ok(spec(1, "  checkpoint: {uri: s3://b, intervalSteps: 10}\n"));
    assert_eq!(deleted(&decide(&observed)), ["j-w1-u"]);
}

/// A job that may have four workers and needs `min`. Three workers train, one on each node, and the pod of the fourth waits for room. All
/// pods except the last have an earlier template. Also returns the identity of the present template.
fn waits_for_room(min: u32) -> (Observed, String) {
    let mut observed = on_nodes(4);
    let text = "  checkpoint: {uri: s3://b, intervalSteps: 10}\n  workers: {image: new}\n";
    let mut job = spec(4, text);
    job.elasticity.min_workers = min;
    let now = job.pod_groups()[0].workers.pods_hash();
    observed.job.spec = Ok(job);
    let old = |number, node: &str| ObservedPod {
        made_from: Some("old".into()),
        ..running_on(node, number)
    };
    let waiting = ObservedPod {
        unschedulable: Some("0/3 nodes are available".into()),
        made_from: Some(now.clone()),
        ..pod(4, PodPhase::Pending)
    };
    observed.pods = vec![old(1, "a"), old(2, "b"), old(3, "c"), waiting];
    observed.run = Some(with_workers(training(3), &["j-w1-u", "j-w2-u", "j-w3-u"], &[]));
    (observed, now)
}

/// The job after the pods of a node are gone. Another pod runs there if `replaced` names its template.
fn after(observed: &Observed, replaced: Option<&str>, step: u64) -> Observed {
    let desired = decide(observed);
    let mut next = carried_out(observed, &desired);
    next.pods.retain(|p| !p.deleting);
    let nodes: BTreeSet<_> = next.pods.iter().filter_map(|p| p.node.clone()).collect();
    let free = ["a", "b", "c"].into_iter().find(|node| !nodes.contains(*node));
    for pod in next.pods.iter_mut().filter(|p| p.phase == PodPhase::Pending) {
        pod.unschedulable = Some("0/3 nodes are available".into());
    }
    if let (Some(now), Some(free)) = (replaced, free) {
        let waiting = next.pods.iter_mut().find(|p| p.phase == PodPhase::Pending);
        let waiting = waiting.unwrap();
        *waiting = ObservedPod {
            made_from: Some(now.to_owned()),
            ..running_on(free, waiting.number)
        };
    }
    let running = next.pods.iter().filter(|p| p.phase == PodPhase::Running);
    let names: Vec<String> = running.map(|p| p.name.clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    next.run = Some(with_workers(training(step), &names, &[]));
    next.now += 60;
    next
}

#[test]
fn waiting_job_rolls_out_node_by_node() {
    let (mut observed, now) = waits_for_room(2);
    for given_up in ["j-w1-u", "j-w2-u", "j-w3-u"] {
        let desired = decide(&observed);
        assert_eq!(deleted(&desired), [given_up]);
        assert_eq!(desired.status.rollout.as_ref().unwrap().workers, 3);
        observed = after(&observed, Some(&now), 9);
    }
    let over = decide(&observed);
    assert_eq!((deleted(&over), &over.status.rollout), (vec![], &None));
}

#[test]
fn bad_template_costs_a_waiting_job_one_node() {
    let (observed, _) = waits_for_room(2);
    let mut next = after(&observed, None, 9);
    for _ in 0..100 {
        assert!(
            decide(&next).delete.is_empty(),
            "nothing has come in the first one's place"
        );
        next = after(&next, None, 9);
    }
}

#[test]
fn preemption_delays_a_rollout() {
    let (observed, now) = waits_for_room(1);
    let mut next = after(&observed, Some(&now), 9);
    // Another pod is preempted, and its replacement finds no node.
    let taken = next.pods.iter().position(|p| p.name == "j-w2-u").unwrap();
    next.pods[taken] = ObservedPod {
        made_from: Some(now.clone()),
        unschedulable: Some("0/2 nodes are available".into()),
        ..pod(9, PodPhase::Pending)
    };
    next.run = Some(with_workers(training(12), &["j-w3-u", "j-w4-u"], &[]));
    assert!(decide(&next).delete.is_empty());
    next.now += 600;
    assert_eq!(deleted(&decide(&next)), ["j-w3-u"]);
}

#[test]
fn waiting_job_keeps_its_minimum_during_a_rollout() {
    let (observed, _) = waits_for_room(3);
    assert!(decide(&observed).delete.is_empty(), "two would be left of three");
    let (mut starting, _) = waits_for_room(2);
    starting.pods[3].unschedulable = None;
    assert!(
        decide(&starting).delete.is_empty(),
        "the fourth may be there soon"
    );
    let (mut wrong, _) = waits_for_room(2);
    wrong.pods[3].waiting = Some(("ImagePullBackOff".into(), "no such image".into()));
    assert!(decide(&wrong).delete.is_empty(), "the template is wrong");
    let (mut detached, now) = waits_for_room(2);
    detached.pods[2].made_from = Some(now);
    detached.run = Some(with_workers(training(3), &["j-w1-u", "j-w2-u"], &[]));
    assert!(decide(&detached).delete.is_empty(), "the third is not attached");
}

#[test]
fn unattached_pod_is_replaced_after_a_correction() {
    let (mut observed, now) = waits_for_room(2);
    let pod_of = |number: usize, made_from: &str| ObservedPod {
        made_from: Some(made_from.into()),
        ..running_on(["a", "b", "c", "d"][number - 1], i64::try_from(number).unwrap())
    };
    let present = now.as_str();
    observed.pods = [(1, present), (2, present), (3, present), (4, "old")]
        .map(|(number, made_from)| pod_of(number, made_from))
        .to_vec();
    let attached = ["j-w1-u", "j-w2-u", "j-w3-u"];
    let plan_of_three = || all_placed(with_workers(training(3), &attached, &[]));
    observed.run = Some(plan_of_three());
    let desired = decide(&observed);
    assert_eq!(deleted(&desired), ["j-w4-u"]);
    assert_eq!(names(&desired), ["j-w5-u"]);
    assert_eq!(desired.status.rollout, None, "no node was given up");
    // A new coordinator does not know all workers yet, and a coordinator with a plan may have lost one.
    observed.run = Some(with_workers(run(RunMode::Settling, 1, 3), &attached, &[]));
    assert!(decide(&observed).delete.is_empty());
    let mut placed = all_placed(with_workers(training(3), &attached, &["j-w4-u"]));
    observed.run = Some(placed.clone());
    assert!(decide(&observed).delete.is_empty());
    placed.ended = Some(RunEnd::Failed("its record is gone".into()));
    observed.run = Some(placed);
    assert!(decide(&observed).delete.is_empty());
    observed.run = Some(plan_of_three());
    observed.pods[3] = pod_of(4, present);
    assert!(decide(&observed).delete.is_empty(), "it may attach yet");
}

#[test]
fn corrected_image_reaches_a_waiting_job() {
    let (mut observed, _) = waits_for_room(3);
    observed.pods.truncate(3);
    // The pod on the first node was replaced with one whose template makes workers hang.
    observed.pods[0].made_from = Some("hangs".into());
    let both = ["j-w2-u", "j-w3-u"];
    observed.run = Some(all_placed(with_workers(run(RunMode::Waiting, 1, 3), &both, &[])));
    assert_eq!(deleted(&decide(&observed)), ["j-w1-u"]);
    // A worker that was part of a plan and cannot be reached may be the one that the job waits for.
    observed.run = Some(with_workers(run(RunMode::Waiting, 1, 3), &both, &["j-w1-u"]));
    assert!(decide(&observed).delete.is_empty());
}

#[test]
fn pod_on_a_lost_node_does_not_block_a_rollout() {
    let mut observed = on_nodes(3);
    observed.job.spec = Ok(spec(3, "  workers: {image: new}\n"));
    let old = |number, node: &str| ObservedPod {
        made_from: Some("old".into()),
        ..running_on(node, number)
    };
    let going = ObservedPod {
        deleting: true,
        ..old(9, "f")
    };
    observed.pods = vec![old(1, "a"), old(2, "b"), old(3, "c"), going];
    let all = ["j-w1-u", "j-w2-u", "j-w3-u"];
    observed.run = Some(with_workers(training(3), &all, &["j-w9-u"]));
    let waits = decide(&observed);
    assert!(waits.delete.is_empty());
    let message = waits.status.message.unwrap();
    assert!(message.contains("pod j-w9-u has not ended yet"), "{message}");
    let mut silent = observed.clone();
    silent.nodes.get_mut("f").unwrap().ready = false;
    assert_eq!(deleted(&decide(&silent)), ["j-w1-u"]);
    observed.nodes.remove("f");
    assert_eq!(deleted(&decide(&observed)), ["j-w1-u"]);
    let four = ["j-w1-u", "j-w2-u", "j-w3-u", "j-w9-u"];
    silent.run = Some(with_workers(training(3), &four, &[]));
    assert!(decide(&silent).delete.is_empty(), "its worker answers still");
}

#[test]
fn workers_with_credentials_of_a_deleted_secret_are_replaced() {
    let mut observed = observed(2);
    observed.pods = vec![pod(1, PodPhase::Running), pod(2, PodPhase::Running)];
    observed.run = Some(ObservedRun::default());
    assert!(deleted(&decide(&observed)).is_empty());
    observed.old_credentials = 1;
    let replaces = decide(&observed);
    assert_eq!(deleted(&replaces), ["j-w1-u"]);
    assert_eq!(names(&replaces), ["j-w3-u"]);
    let lost = replaces
        .events
        .iter()
        .find(|e| e.reason == Reason::WorkerLost)
        .unwrap();
    assert!(lost.text.contains("Secret was deleted"), "{lost:?}");
    // One that ended stays for its log.
    observed.pods[0] = ended(1, 143, "Error", 1);
    assert!(deleted(&decide(&observed)).is_empty());
}
