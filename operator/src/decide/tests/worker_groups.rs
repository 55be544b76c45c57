//! Jobs whose workers are of several kinds.

use super::*;
use serde_json::json;

/// Two on-demand workers, and spot nodes for the others.
const GROUPS: &str = "  workers: {template: {spec: {nodeSelector: {gpu: a100}}}}
  workerGroups:
    - {name: spot, maxWorkers: 6, nodeSelector: {spot: 'true'}}
    - {name: lasting, minWorkers: 2, maxWorkers: 2, resources: {requests: {cpu: 4}}}
";

fn grouped(max: u32) -> Observed {
    let mut observed = observed(max);
    observed.job.spec = Ok(spec(max, GROUPS));
    observed
}

fn of_group(number: i64, group: &str) -> ObservedPod {
    ObservedPod {
        group: Some(group.into()),
        ..pod(number, PodPhase::Running)
    }
}

/// The groups of the pods that are created, in order.
fn groups(decision: &Decided) -> Vec<String> {
    let workers = decision
        .create
        .iter()
        .filter(|pod| pod["metadata"]["labels"][objects::NUMBER_LABEL].is_string());
    let group = |pod: &Value| {
        pod["metadata"]["labels"][objects::GROUP_LABEL]
            .as_str()
            .unwrap()
            .to_owned()
    };
    workers.map(group).collect()
}

#[test]
fn groups_override_the_settings_of_the_job() {
    let observed = grouped(5);
    let decision = decide(&observed);
    assert_eq!(groups(&decision), ["spot", "spot", "spot", "lasting", "lasting"]);
    let [spot, lasting] = [&decision.create[0], &decision.create[4]];
    assert_eq!(
        spot["spec"]["nodeSelector"],
        json!({ "gpu": "a100", "spot": "true" })
    );
    assert_eq!(lasting["spec"]["nodeSelector"], json!({ "gpu": "a100" }));
    let requests = |pod: &Value| pod["spec"]["containers"][0]["resources"]["requests"]["cpu"].clone();
    assert_eq!((requests(spot), requests(lasting)), (json!("100m"), json!(4)));
    let made_from = |pod: &Value| pod["metadata"]["annotations"][objects::MADE_FROM_ANNOTATION].clone();
    assert_ne!(made_from(spot), made_from(lasting));
}

#[test]
fn lost_pod_is_replaced_in_its_group() {
    let mut observed = grouped(5);
    observed.pods = vec![
        of_group(1, "spot"),
        of_group(2, "spot"),
        of_group(3, "spot"),
        of_group(4, "lasting"),
    ];
    assert_eq!(groups(&decide(&observed)), ["lasting"]);
    observed.pods[1].deleting = true;
    observed.pods.push(of_group(5, "lasting"));
    assert_eq!(groups(&decide(&observed)), ["spot"]);

    observed.job.spec = Ok(spec(3, GROUPS));
    observed.pods[1].deleting = false;
    let fewer = decide(&observed);
    assert_eq!(deleted(&fewer), ["j-w3-u", "j-w2-u"]);
    assert!(
        fewer.delete[0].why.contains("group spot may have 1 pods"),
        "{:?}",
        fewer.delete
    );
    observed.job.spec = Ok(spec(2, GROUPS));
    assert_eq!(deleted(&decide(&observed)), ["j-w3-u", "j-w2-u", "j-w1-u"]);
}

#[test]
fn a_failure_in_one_group_holds_back_no_pod_of_another() {
    let mut observed = grouped(3);
    observed.pods = vec![
        ObservedPod {
            group: Some("spot".into()),
            ..ended(1, 1, "Error", 0)
        },
        of_group(2, "lasting"),
    ];
    let decision = decide(&observed);
    assert_eq!(groups(&decision), ["lasting"]);
    assert!(decision.reconcile_in.is_some_and(|seconds| seconds > 0));
}

#[test]
fn template_change_replaces_pods_of_one_group() {
    let mut observed = grouped(4);
    let hash = |group: usize| {
        observed.job.spec.as_ref().unwrap().pod_groups()[group]
            .workers
            .pods_hash()
    };
    let (spot, lasting) = (hash(0), hash(1));
    let waiting = |number, group: &str, made_from: &str| ObservedPod {
        phase: PodPhase::Pending,
        made_from: Some(made_from.to_owned()),
        ..of_group(number, group)
    };
    observed.pods = vec![
        waiting(1, "spot", &spot),
        waiting(2, "spot", "another"),
        waiting(3, "lasting", &lasting),
        // The template of one group is wrong for the other group.
        waiting(4, "lasting", &spot),
    ];
    assert_eq!(deleted(&decide(&observed)), ["j-w2-u", "j-w4-u"]);
}

#[test]
fn the_status_counts_workers_by_group() {
    let mut observed = grouped(5);
    observed.pods = vec![
        of_group(1, "spot"),
        of_group(2, "lasting"),
        of_group(3, "lasting"),
    ];
    let status = decide(&observed).status;
    let counts: Vec<_> = status
        .worker_groups
        .iter()
        .map(|g| (g.name.as_str(), g.workers, g.wanted))
        .collect();
    assert_eq!(counts, [("spot", 1, 3), ("lasting", 2, 2)]);
    assert_eq!(status.workers, 3);
}

#[test]
fn status_counts_attached_workers() {
    let mut observed = observed(8);
    observed.job.spec = Ok(spec(8, "  workers: {gpusPerPod: 4}\n"));
    observed.pods = vec![pod(1, PodPhase::Running), pod(2, PodPhase::Running)];
    let (first, second) = ("j-w1-u", "j-w2-u");
    let attached = [first, first, first, second, second, second, second];
    let mut workers = |mode, up: &[&str]| {
        observed.run = Some(with_workers(run(mode, 1, 3), up, &[first]));
        decide(&observed).status.workers
    };
    assert_eq!(
        workers(RunMode::Training, &attached),
        7,
        "a process of the first has ended"
    );
    assert_eq!(
        workers(RunMode::Settling, &[]),
        8,
        "the next coordinator has heard from nobody yet"
    );
    // A restarted process may attach before the coordinator has noticed the loss of the earlier one.
    assert_eq!(workers(RunMode::Training, &[first; 5]), 4);
    observed.run = None;
    assert_eq!(decide(&observed).status.workers, 8);
}
