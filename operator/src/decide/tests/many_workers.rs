//! Decisions about jobs with thousands of workers: the time must grow linearly with the size of the job, not quadratically.

use super::*;

const WORKERS: i64 = 8_000;

/// A job with all workers attached, created from an earlier template, on six nodes. (A job with many nodes would need a long definition.)
fn large(run: ObservedRun) -> Observed {
    let mut observed = on_nodes(8_000);
    let nodes = ["a", "b", "c", "d", "e", "f"];
    let pods = (1..=WORKERS).zip(nodes.into_iter().cycle());
    observed.pods = pods
        .map(|(number, node)| ObservedPod {
            made_from: Some("old".into()),
            ..running_on(node, number)
        })
        .collect();
    let names: Vec<String> = observed.pods.iter().map(|pod| pod.name.clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    observed.run = Some(with_workers(run, &names, &[]));
    observed.failures = vec![Failure {
        part: JobPart::Pods,
        message: "exceeded quota: q".into(),
        retry_in: 4,
    }];
    observed
}

#[test]
fn half_of_the_workers_that_go_without_a_word_are_told_of() {
    let mut observed = large(training(5));
    observed.coordinators = vec![coordinator(1, PodPhase::Running)];
    for pod in observed.pods.iter_mut().filter(|pod| pod.number % 2 == 0) {
        pod.deleting = true;
        pod.deletion = Some(Deletion {
            at: NOW - 60,
            deadline: NOW - 30,
        });
    }
    let desired = decide(&observed);
    assert_eq!(desired.orders.unwrap().leaving.len(), 4_000);
}

/// The others are named once these have gone: with all of them, the API server might not take the orders.
#[test]
fn of_many_workers_with_long_names_some_are_told_of() {
    use varuna_api::crd::NOTICES_BYTES_MAX;
    let mut observed = large(training(5));
    observed.coordinators = vec![coordinator(1, PodPhase::Running)];
    observed.job.spec.as_mut().unwrap().disruption.notice_seconds = Some(60);
    let names: Vec<String> = (1..=4_000)
        .map(|number| format!("{}-w{number}-u", "j".repeat(40)))
        .collect();
    observed.pods = (1..)
        .zip(&names)
        .map(|(number, name)| ObservedPod {
            name: name.clone(),
            deleting: true,
            deletion: Some(Deletion {
                at: NOW - 10,
                deadline: NOW + 20,
            }),
            ..pod(number, PodPhase::Running)
        })
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    observed.run = Some(with_workers(training(5), &names, &[]));
    let orders = decide(&observed).orders.unwrap();
    assert!(
        (1_000..4_000).contains(&orders.leaving.len()),
        "{}",
        orders.leaving.len()
    );
    assert!(
        (1_000..4_000).contains(&orders.ends_at.len()),
        "{}",
        orders.ends_at.len()
    );
    let keys: usize = orders.ends_at.keys().map(|key| key.len() + 8).sum();
    let bytes = serde_json::to_string(&orders).unwrap().len() + keys;
    assert!(bytes <= NOTICES_BYTES_MAX, "{bytes}");
}

#[test]
fn a_template_that_lets_nobody_train_is_replaced_everywhere() {
    let desired = decide(&large(run(RunMode::Waiting, 0, 0)));
    assert_eq!(deleted(&desired).len(), 8_000);
    assert_eq!(desired.status.rollout.unwrap().workers, WORKERS);
}

#[test]
fn silent_nodes_do_not_remove_answering_workers() {
    let mut observed = large(training(5));
    for node in observed.nodes.values_mut() {
        node.ready = false;
    }
    for pod in &mut observed.pods {
        pod.made_from = None;
    }
    assert!(decide(&observed).delete.is_empty());
}
