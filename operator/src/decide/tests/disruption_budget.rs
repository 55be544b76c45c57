//! How many pods may be evicted at a time.

use super::*;

/// Of a job with four pods that run and three of them in the plan.
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
fn one_worker_of_the_plan_may_go_while_the_job_trains_and_none_until_it_has_a_plan_without_it() {
    assert_eq!(pods_that_stay(RunMode::Training, ""), 2);
    for mode in [
        RunMode::Changing,
        RunMode::Recovering,
        RunMode::Launching,
        RunMode::Persisting,
    ] {
        assert_eq!(pods_that_stay(mode, ""), 3, "{mode:?}");
    }
}

#[test]
fn a_job_that_waits_blocks_a_drain_only_where_its_state_would_be_lost() {
    assert_eq!(pods_that_stay(RunMode::Waiting, ""), 3);
    let checkpoint = "  checkpoint: {uri: s3://b, intervalSteps: 10}\n";
    assert_eq!(pods_that_stay(RunMode::Waiting, checkpoint), 0);
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
