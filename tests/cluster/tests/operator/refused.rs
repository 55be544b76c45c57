//! A job's conditions report what the API server refuses, and the operator retries with a backoff.

use super::*;
use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};

#[tokio::test(flavor = "multi_thread")]
async fn quota_is_reported_and_the_job_continues_once_raised() {
    let namespace = cluster().namespace("quota").unwrap();
    let client = cluster().client().await.unwrap();
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "q" }, "spec": { "hard": { "pods": "2" } },
    });
    let apply = ["-n", &namespace, "apply", "-f", "-"];
    cluster().kubectl(&apply, &quota.to_string()).unwrap();
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), &namespace);
    eventually("the quota is in force", || async {
        let status = quotas.get("q").await?.status;
        ensure!(status.and_then(|s| s.hard).is_some(), "not yet");
        Ok(())
    })
    .await
    .unwrap();
    let _operator = operator(client.clone(), &namespace);
    create(&client, &namespace, pooled(&namespace, 3)).await.unwrap();
    degraded(
        &client,
        &namespace,
        "PodsRefused",
        "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2; raise the quota or lower spec.elasticity.maxWorkers",
    )
    .await
    .unwrap();
    // The API server charges the quota before it stores the pod that it admits, so it may refuse the other pods first.
    eventually("one pod beside the coordinator, which comes first", || async {
        let there = live(&client, &namespace).await?;
        ensure!(there.len() == 1, "{there:?}");
        Ok(())
    })
    .await
    .unwrap();
    cluster()
        .kubectl(&["-n", &namespace, "delete", "resourcequota", "q"], "")
        .unwrap();
    eventually("all three pods", || async {
        let there = live(&client, &namespace).await?;
        // The API server chose which pod it admitted.
        ensure!(there.len() == 3, "{there:?}");
        let found = condition(&client, &namespace, "Degraded").await?;
        ensure!(found["reason"] != "PodsRefused", "{found}");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_template_is_reported_and_a_correction_applied() {
    let namespace = cluster().namespace("template").unwrap();
    let client = cluster().client().await.unwrap();
    let _operator = operator(client.clone(), &namespace);
    let mut wrong = pooled(&namespace, 1);
    wrong["spec"]["workers"]["template"]["spec"]["priorityClassName"] = "none-such".into();
    create(&client, &namespace, wrong).await.unwrap();
    degraded(&client, &namespace, "PodsRefused", "none-such")
        .await
        .unwrap();
    let phase = jobs(&client, &namespace).get("j").await.unwrap().data["status"]["message"].clone();
    assert!(phase.as_str().unwrap_or("").contains("none-such"), "{phase}");
    let right = json!({ "spec": { "workers": { "template": { "spec": { "priorityClassName": null } } } } });
    jobs(&client, &namespace)
        .patch("j", &PatchParams::default(), &Patch::Merge(&right))
        .await
        .unwrap();
    wait_for_live_pods(&client, &namespace, &[1]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_deleted_takes_its_job_along() {
    let namespace = cluster().namespace("gone").unwrap();
    let client = cluster().client().await.unwrap();
    let node = FakeNode::add(&client, &format!("{namespace}-a"), &namespace, 2)
        .await
        .unwrap();
    let _operator = operator(client.clone(), &namespace);
    create(&client, &namespace, pooled(&namespace, 2)).await.unwrap();
    wait_for_live_pods(&client, &namespace, &[1, 2]).await.unwrap();
    cluster()
        .kubectl(&["delete", "namespace", &namespace, "--wait=false"], "")
        .unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    eventually("the namespace is gone", || async {
        // Ends the pods as their kubelet would: pods on a node end before they are deleted.
        for pod in pods(&client, &namespace).await? {
            let now = DeleteParams::default().grace_period(0);
            let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
            let _ = api.delete(&pod.name_any(), &now).await;
        }
        ensure!(namespaces.get_opt(&namespace).await?.is_none(), "it is there");
        Ok(())
    })
    .await
    .unwrap();
    drop(node);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_webhook_is_reported_and_blocks_pods() {
    let namespace = cluster().namespace("webhook").unwrap();
    let client = cluster().client().await.unwrap();
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": namespace },
        "webhooks": [{
            "name": "down.example.com", "failurePolicy": "Fail", "sideEffects": "None", "timeoutSeconds": 1,
            "admissionReviewVersions": ["v1"],
            // No process listens there.
            "clientConfig": { "url": "https://127.0.0.1:1/" },
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"] }],
        }],
    });
    cluster()
        .kubectl(&["apply", "-f", "-"], &webhook.to_string())
        .unwrap();
    let _operator = operator(client.clone(), &namespace);
    create(&client, &namespace, pooled(&namespace, 1)).await.unwrap();
    degraded(&client, &namespace, "PodsRefused", "failed calling webhook")
        .await
        .unwrap();
    let gone = ["delete", "validatingwebhookconfiguration", &namespace];
    cluster().kubectl(&gone, "").unwrap();
    eventually("the pod is there", || async {
        ensure!(live(&client, &namespace).await?.len() == 1, "none");
        Ok(())
    })
    .await
    .unwrap();
}
