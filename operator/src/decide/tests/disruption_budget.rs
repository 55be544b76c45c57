//! The number of pods that may be evicted at a time.

use super::*;

/// The `minAvailable` of a job with four running pods, of which three are in the plan.
fn pods_that_stay(mode: RunMode, extra: &str) -> i64 {
    let mut observed = observed(4);
    observed.job.spec = Ok(spec(4, extra));
    observed.pods = (1..=4).map(|i| pod(i, PodPhase::Running)).collect();
    let mut run = with_workers(run(mode, 1, 5), &["j-w1-u", "j-w2-u", "j-w3-u", "j-w4-u"], &[]);
    for worker in &mut run.snapshot.as_mut().unwrap().workers[..3] {
        worker.pipeline = Some(0);
    }
    observed.run = Some(run);
    budget(&observed)["spec"]["minAvailable"].as_i64().unwrap()
}

fn budget(observed: &Observed) -> Value {
    let objects = decide(observed).objects;
    let budget = objects.into_iter().find(|o| o["kind"] == "PodDisruptionBudget");
    budget.expect("a budget")
}

#[test]
fn one_planned_worker_at_a_time_may_be_evicted() {
    for mode in [RunMode::Training, RunMode::Changing] {
        assert_eq!(pods_that_stay(mode, ""), 3, "{mode:?}");
    }
    for mode in [RunMode::Recovering, RunMode::Launching, RunMode::Persisting] {
        assert_eq!(pods_that_stay(mode, ""), 4, "{mode:?}");
    }
}

#[test]
fn no_eviction_while_a_worker_hands_over_its_state() {
    let all: Vec<i64> = (1..=8).collect();
    for mode in [RunMode::Training, RunMode::Changing] {
        let mut leaving = two_nodes(mode, &all);
        assert_eq!(evictions_allowed(&leaving), 1, "{mode:?}");
        let workers = &mut leaving.run.as_mut().unwrap().snapshot.as_mut().unwrap().workers;
        workers[3].draining = true;
        assert_eq!(evictions_allowed(&leaving), 0, "{mode:?}");
        let workers = &mut leaving.run.as_mut().unwrap().snapshot.as_mut().unwrap().workers;
        workers[3].pipeline = None;
        assert_eq!(
            evictions_allowed(&leaving),
            1,
            "{mode:?}: it has handed on what it held"
        );
    }
}

#[test]
fn waiting_job_blocks_a_drain_only_to_keep_state() {
    assert_eq!(pods_that_stay(RunMode::Waiting, ""), 4);
    let checkpoint = "  checkpoint: {uri: s3://b, intervalSteps: 10}\n";
    assert_eq!(pods_that_stay(RunMode::Waiting, checkpoint), 0);
}

/// A job that has trained with four workers; its next coordinator has no reports from them yet.
fn without_coordinator(run: ObservedRun, extra: &str) -> Observed {
    let mut observed = observed(4);
    observed.job.spec = Ok(spec(4, extra));
    observed.job.status.plan = Some(varuna_api::crd::PlanStatus::default());
    observed.pods = (1..=4).map(|i| pod(i, PodPhase::Running)).collect();
    observed.run = Some(run);
    observed
}

#[test]
fn no_eviction_before_workers_have_reported() {
    let checkpoint = "  checkpoint: {uri: s3://b, intervalSteps: 10}\n";
    for extra in ["", checkpoint] {
        let silent = without_coordinator(ObservedRun::default(), extra);
        assert_eq!(evictions_allowed(&silent), 0, "it has not reported");
        let settling = without_coordinator(run(RunMode::Settling, 1, 5), extra);
        assert_eq!(evictions_allowed(&settling), 0, "it has reported");
    }
    let mut fails = without_coordinator(ObservedRun::default(), checkpoint);
    fails.failures = vec![Failure {
        part: JobPart::Coordinator,
        message: "no such image".into(),
        retry_in: 4,
    }];
    assert_eq!(
        evictions_allowed(&fails),
        4,
        "none comes, and a checkpoint holds the state"
    );
    fails.job.spec = Ok(spec(4, ""));
    assert_eq!(evictions_allowed(&fails), 0, "the state would be lost");
    fails.job.spec = Err("it cannot be read".into());
    assert_eq!(evictions_allowed(&fails), 0, "no checkpoint is known");
    fails.job.status.checkpoint = Some(varuna_api::crd::CheckpointStatus {
        newest_step: Some(5),
        ..varuna_api::crd::CheckpointStatus::default()
    });
    assert_eq!(evictions_allowed(&fails), 4, "one was seen");
    let mut new = without_coordinator(ObservedRun::default(), "");
    new.job.status.plan = None;
    assert_eq!(evictions_allowed(&new), 4, "nobody holds anything yet");
}

#[test]
fn who_does_not_run_blocks_nobody() {
    assert_eq!(budget(&observed(2))["spec"]["minAvailable"], 0);
    let mut ended = observed(2);
    ended.pods = vec![pod(1, PodPhase::Running)];
    ended.run = Some(ObservedRun {
        ended: Some(RunEnd::Done),
        ..with_workers(training(10), &["j-w1-u"], &[])
    });
    assert_eq!(budget(&ended)["spec"]["minAvailable"], 0);
    let keys = &budget(&ended)["spec"]["selector"]["matchExpressions"];
    assert_eq!(
        keys[0]["key"],
        objects::NUMBER_LABEL,
        "other pods of the job are not counted"
    );
}

/// Eight workers of a plan on two nodes, of which one is drained.
fn two_nodes(mode: RunMode, in_plan: &[i64]) -> Observed {
    let mut observed = observed(8);
    let node = ObservedNode {
        ready: true,
        ..ObservedNode::default()
    };
    observed.nodes.insert("other".to_owned(), node);
    let on = |number: i64| if number <= 4 { "good" } else { "other" };
    observed.pods = (1..=8)
        .map(|i| ObservedPod {
            node: Some(on(i).into()),
            ..pod(i, PodPhase::Running)
        })
        .collect();
    let names: Vec<String> = in_plan.iter().map(|i| format!("j-w{i}-u")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut run = with_workers(run(mode, 1, 5), &names, &[]);
    for worker in &mut run.snapshot.as_mut().unwrap().workers {
        worker.pipeline = Some(0);
    }
    observed.run = Some(run);
    observed
}

/// Number of ready pods that the API server still allows to evict. It counts those that are not being deleted.
fn evictions_allowed(observed: &Observed) -> i64 {
    let counted = observed
        .pods
        .iter()
        .filter(|p| p.phase == PodPhase::Running && !p.unready && !p.deleting);
    i64::try_from(counted.count()).unwrap() - budget(observed)["spec"]["minAvailable"].as_i64().unwrap()
}

#[test]
fn pods_whose_sidecars_fail_block_no_drain() {
    let all: Vec<i64> = (1..=8).collect();
    let mut job = two_nodes(RunMode::Training, &all);
    for number in [2, 5] {
        job.pods[number].unready = true;
    }
    assert_eq!(evictions_allowed(&job), 1, "the workers of both train");
    job.pods[0].deleting = true;
    assert_eq!(evictions_allowed(&job), 0, "there is no plan without it yet");
}

#[test]
fn workers_on_two_nodes_are_evicted_one_by_one() {
    let all: Vec<i64> = (1..=8).collect();
    let mut drained = two_nodes(RunMode::Training, &all);
    assert_eq!(evictions_allowed(&drained), 1);
    drained.pods[0].deleting = true;
    assert_eq!(evictions_allowed(&drained), 0, "the first has a place still");
    let replacement = |number| pod(number, PodPhase::Running);
    drained.pods.push(replacement(9));
    assert_eq!(
        evictions_allowed(&drained),
        0,
        "a replacement without a place sets nobody free"
    );
    // There is a plan without the first pod, then state moves to its replacement, then the replacement is in the plan. The number is always
    // the same, so nothing is written.
    let without = [2, 3, 4, 5, 6, 7, 8];
    let with = [2, 3, 4, 5, 6, 7, 8, 9];
    for (mode, plan) in [
        (RunMode::Training, &without[..]),
        (RunMode::Changing, &without[..]),
        (RunMode::Training, &with[..]),
    ] {
        let mut next = two_nodes(mode, plan);
        next.pods[0].deleting = true;
        next.pods.push(replacement(9));
        assert_eq!(evictions_allowed(&next), 1, "{mode:?} {plan:?}");
        assert_eq!(budget(&next)["spec"]["minAvailable"], 7, "{mode:?} {plan:?}");
    }
    let mut changing = two_nodes(RunMode::Changing, &all);
    changing.pods[0].deleting = true;
    changing.pods.push(replacement(9));
    assert_eq!(evictions_allowed(&changing), 0);
    // The pod is gone before the coordinator has another plan.
    changing.pods.remove(0);
    assert_eq!(evictions_allowed(&changing), 0);
}

#[test]
fn refused_change_of_the_budget_holds_nothing_else_up() {
    let mut observed = observed(2);
    observed.failures = vec![Failure {
        part: JobPart::Policies,
        message: "a webhook denied the request".into(),
        retry_in: 7,
    }];
    let decision = crate::decide::decide(&observed);
    assert!(!decision.changes_policies && !decision.objects.is_empty());
    assert!(decision.starts_coordinator);
    let desired = decide(&observed);
    assert_eq!(names(&desired).len(), 2);
    assert_eq!(desired.status.newest_pod, 2, "their numbers are used up");
    let degraded = condition(&desired, ConditionType::Degraded);
    assert_eq!(degraded.reason, "ObjectsRefused");
    observed.failures[0].retry_in = 0;
    assert!(crate::decide::decide(&observed).changes_policies);
}
