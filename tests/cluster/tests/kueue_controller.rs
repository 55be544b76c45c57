//! A job in a queue of Kueue's own controller (`scripts/setup-kueue.sh` builds it). The real controller admits the job, admits an
//! increment, evicts the job and admits it again.
#![expect(clippy::unwrap_used, reason = "a test of many consecutive events")]

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use varuna_cluster_tests::{
    FakeNode, KueueController, cluster, coordinators, documents, eventually, job, jobs, kueue_queues,
    kueue_resource, operator,
};
use varuna_operator::decide::objects::INCREMENT_INFIX;

/// The names of the workers' pods that are not being deleted. Pods that are being deleted are removed, as a kubelet would do.
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

/// The job's first Workload, or its increment.
async fn workload(client: &Client, namespace: &str, is_increment: bool) -> Result<DynamicObject> {
    let all = documents(client, namespace, &kueue_resource("Workload"));
    let all = all.list(&ListParams::default()).await?.items;
    let is_asked = |workload: &DynamicObject| workload.name_any().contains(INCREMENT_INFIX) == is_increment;
    all.into_iter().find(is_asked).context("no Workload")
}

/// Sets the workers to running, as a kubelet would.
async fn run(client: &Client, namespace: &str, workers: &[String]) {
    let all: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let runs = Patch::Strategic(json!({ "status": { "phase": "Running" } }));
    for worker in workers {
        let patched = all.patch_status(worker, &PatchParams::default(), &runs).await;
        patched.unwrap();
    }
}

/// Waits for this many workers.
async fn wait_for_workers(
    client: &Client,
    namespace: &str,
    count: usize,
    controller: &KueueController,
) -> Vec<String> {
    eventually(&format!("{count} workers"), || async {
        let live = workers(client, namespace).await?;
        ensure!(
            live.len() == count,
            "{live:?}; Kueue's log ends with {}",
            controller.log_tail()
        );
        Ok(live)
    })
    .await
    .unwrap()
}

/// Gives the queue this many GPUs.
async fn set_quota(namespace: &str, gpus: u32) {
    for object in kueue_queues(namespace, gpus, &json!({ "varuna.dev/test": namespace })) {
        eventually("Kueue's resources are served", || async {
            cluster()
                .kubectl(&["apply", "-f", "-"], &object.to_string())
                .map(|_| ())
        })
        .await
        .unwrap();
    }
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

/// Sets whether a ClusterQueue admits Workloads, or also evicts those that it has admitted.
async fn stop_policy(client: &Client, queue: &str, policy: &str) -> Result<()> {
    let queues: Api<DynamicObject> = Api::all_with(client.clone(), &kueue_resource("ClusterQueue"));
    let patch = Patch::Merge(json!({ "spec": { "stopPolicy": policy } }));
    queues.patch(queue, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// The queue is drained: Kueue evicts the job, the pods end, and the quota is free.
async fn drain(client: &Client, namespace: &str) {
    stop_policy(client, namespace, "HoldAndDrain").await.unwrap();
    eventually("the quota is given back", || async {
        let live = workers(client, namespace).await?;
        let found = workload(client, namespace, false).await?;
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
        let increment = workload(client, namespace, true).await;
        ensure!(increment.is_err(), "the increment is there");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Kueue's controller, which scripts/setup-kueue.sh builds from a checkout"]
async fn kueue_controller_admits_in_part_evicts_and_readmits() {
    let namespace = cluster().namespace("kueue-own").unwrap();
    let client = cluster().client().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let controller = KueueController::start(cluster(), folder.path()).unwrap();
    let _node = FakeNode::add(&client, &format!("{namespace}-n"), &namespace, 8)
        .await
        .unwrap();
    let _operator = operator(client.clone(), &namespace);
    let _coordinators = coordinators(&client, client.clone(), &namespace, folder.path());
    set_quota(&namespace, 2).await;
    let mut document = job("j");
    document["metadata"]["labels"] = json!({ "kueue.x-k8s.io/queue-name": "team-a" });
    document["spec"]["allowStateLoss"] = true.into();
    document["spec"]["elasticity"] = json!({ "minWorkers": 1, "maxWorkers": 3 });
    let document: DynamicObject = serde_json::from_value(document).unwrap();
    jobs(&client, &namespace)
        .create(&PostParams::default(), &document)
        .await
        .unwrap();

    // The job asks for three workers, and there are two GPUs.
    let admitted = wait_for_workers(&client, &namespace, 2, &controller).await;
    let first = workload(&client, &namespace, false).await.unwrap();
    assert!(is_true(&first, "Admitted"));

    // Now there is a third GPU: the job grows by an increment.
    run(&client, &namespace, &admitted).await;
    let asks = || workload(&client, &namespace, true);
    eventually("the job asks for one more", asks).await.unwrap();
    set_quota(&namespace, 3).await;
    let grown = wait_for_workers(&client, &namespace, 3, &controller).await;
    assert!(admitted.iter().all(|pod| grown.contains(pod)), "{grown:?}");
    let increment = workload(&client, &namespace, true).await.unwrap();
    assert!(is_true(&increment, "Admitted"));

    drain(&client, &namespace).await;

    // The job is admitted again, with new pods, by the same Workload, which now has all of them.
    stop_policy(&client, &namespace, "None").await.unwrap();
    let again = wait_for_workers(&client, &namespace, 3, &controller).await;
    assert!(again.iter().all(|pod| !grown.contains(pod)), "{again:?}");
    let own = workload(&client, &namespace, false).await.unwrap();
    assert_eq!(own.uid(), first.uid());
    assert!(workload(&client, &namespace, true).await.is_err());
}
