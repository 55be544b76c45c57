//! Init containers of a job's pods. The test sets their states, as a kubelet would.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn failing_init_container_is_reported_without_blaming_the_node() {
    let namespace = cluster().namespace("init").unwrap();
    let client = cluster().client().await.unwrap();
    let node = FakeNode::add(&client, &format!("{namespace}-a"), &namespace, 2)
        .await
        .unwrap();
    let _operator = operator(client.clone(), &namespace);
    let fetch = json!([{ "name": "fetch", "image": "fetch:1" }]);
    let job = with(
        pooled(&namespace, 1),
        "/spec/workers/template/spec/initContainers",
        fetch,
    );
    create(&client, &namespace, job).await.unwrap();
    wait_for_live_pods(&client, &namespace, &[1]).await.unwrap();
    let first = live(&client, &namespace).await.unwrap().remove(0);
    let init = |state: Value| json!([{ "name": "fetch", "image": "fetch:1", "imageID": "", "ready": false, "restartCount": 0, "state": state }]);
    let pulls = json!({ "waiting": { "reason": "ErrImagePull", "message": "no such image" } });
    let waits = json!({ "phase": "Pending", "initContainerStatuses": init(pulls) });
    set_status(&client, &namespace, &first, waits).await.unwrap();
    let said = "ErrImagePull: init container fetch: no such image";
    degraded(&client, &namespace, "PodsCannotStart", said)
        .await
        .unwrap();
    let failed = json!({ "terminated": {
        "exitCode": 3, "reason": "Error", "message": "no space left", "startedAt": now(), "finishedAt": now(),
    } });
    let failed = json!({ "phase": "Failed", "initContainerStatuses": init(failed) });
    set_status(&client, &namespace, &first, failed).await.unwrap();
    let said = "init container fetch of spec.workers.template ended with exit code 3 (Error): no space left";
    degraded(&client, &namespace, "InitContainersFail", said)
        .await
        .unwrap();
    // The replacement may use the same node.
    let second = eventually("a replacement", || async {
        let all = pods(&client, &namespace).await?;
        let made = all.into_iter().find(|p| p.name_any() != first);
        made.ok_or_else(|| anyhow::anyhow!("none yet"))
    })
    .await
    .unwrap();
    // Nobody sends heartbeats for the first node, so it is lost after a while and then avoided for that reason. A node with a failure would
    // only be the second choice.
    let affinity = serde_json::to_value(second.spec.unwrap().affinity).unwrap();
    assert!(
        affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"].is_null(),
        "{affinity}"
    );
    let job = jobs(&client, &namespace).get("j").await.unwrap();
    assert_eq!(job.data["status"]["recentFailures"][0]["kind"], "InitFailed");
    drop(node);
}

fn now() -> String {
    k8s_openapi::jiff::Timestamp::now().to_string()
}
