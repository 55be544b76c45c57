//! The API server answers with an error that is no refusal by an admission check, or does not answer at all. The job's status says so, and
//! the operator retries with a growing backoff.

use super::*;
use http::Method;
use std::time::Duration;
use varuna_cluster_tests::{Fault, Faults};

/// Waits for four failed tries, with at least 1, 2 and 4 s between them.
async fn check_backoff(faults: &Faults) {
    let at = eventually("four tries", || async {
        let at = faults.failed_at();
        ensure!(at.len() >= 4, "{}", at.len());
        Ok(at)
    })
    .await
    .unwrap();
    let pauses: Vec<Duration> = at.windows(2).take(3).map(|two| two[1] - two[0]).collect();
    // The backoff begins a little after the request.
    let least = [1, 2, 4].map(Duration::from_secs);
    assert!(
        pauses.iter().zip(least).all(|(pause, least)| *pause >= least),
        "{pauses:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrently_changed_quota_is_reported_and_retried() {
    let namespace = cluster().namespace("conflict").unwrap();
    let client = cluster().client().await.unwrap();
    let faults = Faults::default();
    let why = "Operation cannot be fulfilled on resourcequotas \"q\": the object has been modified";
    faults.begin(Method::POST, "/pods", Fault::Answer(409, "Conflict", why));
    let _operator = operator(faults.client(client.clone()), &namespace);
    create(&client, &namespace, pooled(&namespace, 2)).await.unwrap();
    degraded(&client, &namespace, "PodsRefused", why).await.unwrap();
    check_backoff(&faults).await;
    faults.end();
    wait_for_live_pods(&client, &namespace, &[1, 2]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn undeletable_pod_is_reported_and_not_replaced() {
    let namespace = cluster().namespace("undeleted").unwrap();
    let client = cluster().client().await.unwrap();
    let faults = Faults::default();
    let _operator = operator(faults.client(client.clone()), &namespace);
    create(&client, &namespace, pooled(&namespace, 2)).await.unwrap();
    wait_for_live_pods(&client, &namespace, &[1, 2]).await.unwrap();
    let why = "admission webhook \"keep.example.com\" denied the request: not today";
    faults.begin(Method::DELETE, "/pods/", Fault::Answer(403, "Forbidden", why));
    let fewer = Patch::Merge(json!({ "spec": { "elasticity": { "maxWorkers": 1 } } }));
    jobs(&client, &namespace)
        .patch("j", &PatchParams::default(), &fewer)
        .await
        .unwrap();
    let said = format!("the API server does not delete the job's pods: {why}");
    degraded(&client, &namespace, "PodsRefused", &said).await.unwrap();
    check_backoff(&faults).await;
    assert_eq!(live(&client, &namespace).await.unwrap().len(), 2);
    faults.end();
    wait_for_live_pods(&client, &namespace, &[1]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_connection_is_reported_and_retried() {
    let namespace = cluster().namespace("broken").unwrap();
    let client = cluster().client().await.unwrap();
    let faults = Faults::default();
    faults.begin(Method::POST, "/pods", Fault::NoAnswer);
    let _operator = operator(faults.client(client.clone()), &namespace);
    create(&client, &namespace, pooled(&namespace, 1)).await.unwrap();
    degraded(&client, &namespace, "ServerFails", "does not answer as it should")
        .await
        .unwrap();
    check_backoff(&faults).await;
    faults.end();
    wait_for_live_pods(&client, &namespace, &[1]).await.unwrap();
}
