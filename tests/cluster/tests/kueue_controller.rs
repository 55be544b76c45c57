//! A job in a queue of Kueue's own controller (`scripts/setup-kueue.sh` builds it): it, and not a stand-in, admits, evicts and admits again.
#![expect(clippy::unwrap_used, reason = "a test that tells a story")]

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use varuna_cluster_tests::{
    FakeNode, KueueController, cluster, coordinators, documents, eventually, job, jobs, kueue_queues,
    kueue_resource, operator,
};

/// The names of the workers' pods that are not going. What a kubelet would do to those that go is done.
async fn workers(client: &Client, namespace: &str) -> Result<Vec<String>> {
    let all: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let force = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    let mut live = vec![];
    for pod in all
        .list(&ListParams::default().labels("varuna.dev/job"))
        .await?
        .items
    {
        if pod.metadata.deletion_timestamp.is_some() {
            all.delete(&pod.name_any(), &force).await?;
        } else if pod.labels().contains_key("varuna.dev/pod-number") {
            let selector = pod
                .spec
                .as_ref()
                .and_then(|s| s.node_selector.clone())
                .unwrap_or_default();
            ensure!(
                selector.get("varuna.dev/test").map(String::as_str) == Some(namespace),
                "{selector:?}"
            );
            live.push(pod.name_any());
        }
    }
    Ok(live)
}

async fn workload(client: &Client, namespace: &str) -> Result<DynamicObject> {
    let all = documents(client, namespace, &kueue_resource("Workload"));
    all.list(&ListParams::default())
        .await?
        .items
        .pop()
        .context("no Workload")
}

fn is_true(object: &DynamicObject, kind: &str) -> bool {
    let conditions = object.data["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    conditions
        .filter(|c| c["type"] == kind)
        .any(|c| c["status"] == "True")
}

/// Says whether a ClusterQueue admits, or lets go of what it has admitted.
async fn stop_policy(client: &Client, queue: &str, policy: &str) -> Result<()> {
    let queues: Api<DynamicObject> = Api::all_with(client.clone(), &kueue_resource("ClusterQueue"));
    let patch = Patch::Merge(json!({ "spec": { "stopPolicy": policy } }));
    queues.patch(queue, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// The queue is drained: Kueue evicts, the pods end, the quota is free.
async fn drain(client: &Client, namespace: &str) {
    stop_policy(client, namespace, "HoldAndDrain").await.unwrap();
    eventually("the quota is given back", || async {
        let live = workers(client, namespace).await?;
        let found = workload(client, namespace).await?;
        ensure!(
            live.is_empty() && !is_true(&found, "QuotaReserved"),
            "{live:?} {}",
            found.data["status"]
        );
        ensure!(
            found.data["status"].get("admission").is_none(),
            "{}",
            found.data["status"]
        );
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Kueue's controller, which scripts/setup-kueue.sh builds from a checkout"]
async fn kueues_own_controller_admits_a_part_evicts_and_admits_again() {
    let namespace = cluster().namespace("kueue-own").unwrap();
    let client = cluster().client().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let controller = KueueController::start(cluster(), folder.path()).unwrap();
    let _node = FakeNode::add(&client, &format!("{namespace}-n"), &namespace, 8)
        .await
        .unwrap();
    let _operator = operator(client.clone(), &namespace);
    let _coordinators = coordinators(&client, client.clone(), &namespace, folder.path());
    for object in kueue_queues(&namespace, 2, &json!({ "varuna.dev/test": namespace })) {
        eventually("Kueue's resources are served", || async {
            cluster()
                .kubectl(&["apply", "-f", "-"], &object.to_string())
                .map(|_| ())
        })
        .await
        .unwrap();
    }
    let mut document = job("j");
    document["metadata"]["labels"] = json!({ "kueue.x-k8s.io/queue-name": "team-a" });
    document["spec"]["allowStateLoss"] = true.into();
    document["spec"]["elasticity"] = json!({ "minWorkers": 1, "maxWorkers": 3 });
    let document: DynamicObject = serde_json::from_value(document).unwrap();
    jobs(&client, &namespace)
        .create(&PostParams::default(), &document)
        .await
        .unwrap();

    // Three are asked for, two GPUs are there.
    let admitted = eventually("two of three workers", || async {
        let live = workers(&client, &namespace).await?;
        ensure!(
            live.len() == 2,
            "{live:?}; Kueue's log ends with {}",
            controller.log_tail()
        );
        Ok(live)
    })
    .await
    .unwrap();
    let first = workload(&client, &namespace).await.unwrap();
    assert!(is_true(&first, "Admitted"));

    drain(&client, &namespace).await;

    // And again, with other pods, by the same Workload.
    stop_policy(&client, &namespace, "None").await.unwrap();
    eventually("two workers again", || async {
        let live = workers(&client, &namespace).await?;
        ensure!(
            live.len() == 2 && live.iter().all(|pod| !admitted.contains(pod)),
            "{live:?}"
        );
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(workload(&client, &namespace).await.unwrap().uid(), first.uid());
}
