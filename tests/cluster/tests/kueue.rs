//! Jobs with a queue, on a real API server with Kueue's own definitions. The tests write what Kueue's controller would write.
#![expect(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "tests of many consecutive events"
)]

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use varuna_cluster_tests::{
    FakeNode, cluster, coordinators, documents, eventually, job, jobs, kueue_resource, operator,
};
use varuna_operator::decide::objects::{INCREMENT_INFIX, NUMBER_LABEL, WORKLOAD_ANNOTATION};

/// A job of up to three workers with a queue. Its pods go to the nodes of its own test, and its priority class belongs to this test, too.
fn queued(pool: &str) -> Value {
    let mut job = job("j");
    job["metadata"]["labels"] =
        json!({ "kueue.x-k8s.io/queue-name": "team-a", "kueue.x-k8s.io/priority-class": pool });
    job["spec"]["allowStateLoss"] = true.into();
    job["spec"]["elasticity"] = json!({ "minWorkers": 1, "maxWorkers": 3 });
    job["spec"]["workers"] =
        json!({ "template": { "spec": { "nodeSelector": { "varuna.dev/test": pool } } } });
    job
}

async fn create(client: &Client, namespace: &str, job: Value) {
    let job: DynamicObject = serde_json::from_value(job).unwrap();
    jobs(client, namespace)
        .create(&PostParams::default(), &job)
        .await
        .unwrap();
}

async fn pods(client: &Client, namespace: &str) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    Ok(pods
        .list(&ListParams::default().labels("varuna.dev/job"))
        .await?
        .items)
}

/// The first Workload of the job.
async fn workload(client: &Client, namespace: &str) -> Result<DynamicObject> {
    only_workload(client, namespace, false).await
}

/// The job's increment.
async fn increment(client: &Client, namespace: &str) -> Result<DynamicObject> {
    only_workload(client, namespace, true).await
}

async fn only_workload(client: &Client, namespace: &str, is_increment: bool) -> Result<DynamicObject> {
    let all = documents(client, namespace, &kueue_resource("Workload"));
    let mut all = all.list(&ListParams::default()).await?.items;
    all.retain(|workload| workload.name_any().contains(INCREMENT_INFIX) == is_increment);
    ensure!(all.len() == 1, "{} Workloads", all.len());
    all.pop().context("one")
}

/// Whether a condition of an object is true, and its reason.
fn condition(object: &DynamicObject, kind: &str) -> (bool, String) {
    let all = object.data["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let found = all.into_iter().find(|c| c["type"] == kind).unwrap_or_default();
    (
        found["status"] == "True",
        found["reason"].as_str().unwrap_or_default().to_owned(),
    )
}

async fn job_says(client: &Client, namespace: &str, phase: &str, admitted: (bool, &str), words: &str) {
    eventually(&format!("the job says {phase} {admitted:?} {words}"), || async {
        let job = jobs(client, namespace).get("j").await?;
        let found = condition(&job, "Admitted");
        let text = job.data["status"].to_string();
        ensure!(
            job.data["status"]["phase"] == phase
                && (found.0, found.1.as_str()) == admitted
                && text.contains(words),
            "{text}"
        );
        Ok(())
    })
    .await
    .unwrap();
}

/// Changes conditions and the admission of the job's first Workload, as Kueue's controller does.
async fn kueue_writes(
    client: &Client,
    namespace: &str,
    conditions: &[(&str, bool, &str)],
    admission: Option<Value>,
) {
    let found = workload(client, namespace).await.unwrap();
    kueue_writes_to(client, &found, conditions, admission).await;
}

/// Changes conditions and the admission of this Workload, as Kueue's controller does.
async fn kueue_writes_to(
    client: &Client,
    found: &DynamicObject,
    conditions: &[(&str, bool, &str)],
    admission: Option<Value>,
) {
    let workloads = documents(client, &found.namespace().unwrap(), &kueue_resource("Workload"));
    let mut all = found.data["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    for (kind, is, reason) in conditions {
        all.retain(|c| c["type"] != *kind);
        all.push(json!({
            "type": kind, "status": if *is { "True" } else { "False" }, "reason": reason, "message": format!("Kueue says {reason}"),
            "lastTransitionTime": k8s_openapi::jiff::Timestamp::now().to_string(),
        }));
    }
    let mut status = json!({ "conditions": all });
    if let Some(admission) = admission {
        status["admission"] = admission;
    }
    let patch = Patch::Merge(json!({ "status": status }));
    workloads
        .patch_status(&found.name_any(), &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// Creates a WorkloadPriorityClass.
fn priority_class(name: &str, value: i32) {
    let class = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": { "name": name }, "value": value,
    });
    cluster()
        .kubectl(&["apply", "-f", "-"], &class.to_string())
        .unwrap();
}

/// Admits the coordinator and this many workers.
async fn kueue_admits(client: &Client, namespace: &str, workers: u32, flavor: &str) {
    let set = |name: &str, count: u32| json!({ "name": name, "count": count, "flavors": { "cpu": flavor, "nvidia.com/gpu": flavor } });
    let admission = json!({ "clusterQueue": "all", "podSetAssignments": [set("coordinator", 1), set("workers", workers)] });
    let conditions = [
        ("QuotaReserved", true, "QuotaReserved"),
        ("Evicted", false, "QuotaReserved"),
        ("Admitted", true, "Admitted"),
    ];
    kueue_writes(client, namespace, &conditions, Some(admission)).await;
}

/// Waits until there are this many pods of workers and one of a coordinator, on nodes of the flavour.
async fn wait_for_pods(client: &Client, namespace: &str, workers: usize, flavor: &str) {
    eventually(&format!("{workers} workers and a coordinator"), || async {
        let pods = pods(client, namespace).await?;
        ensure!(pods.len() == workers + 1, "{} pods", pods.len());
        for pod in pods {
            let selector = pod.spec.and_then(|s| s.node_selector).unwrap_or_default();
            ensure!(
                selector.get("pool").map(String::as_str) == Some(flavor),
                "{selector:?}"
            );
        }
        Ok(())
    })
    .await
    .unwrap();
}

/// Waits until the message of the condition `Admitted` contains these words.
async fn wait_for_admitted_message(client: &Client, namespace: &str, words: &str) {
    eventually(&format!("the job is admitted: {words}"), || async {
        let job = jobs(client, namespace).get("j").await?;
        let text = job.data["status"].to_string();
        ensure!(condition(&job, "Admitted").0 && text.contains(words), "{text}");
        Ok(())
    })
    .await
    .unwrap();
}

/// Both admitted workers run, so the job asks for the third one. It is admitted and evicted again: only the increment's pod ends.
async fn grows_and_shrinks(client: &Client, namespace: &str, flavor: &str) {
    let all: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let runs = Patch::Strategic(json!({ "status": { "phase": "Running" } }));
    for pod in pods(client, namespace).await.unwrap() {
        if pod.labels().contains_key(NUMBER_LABEL) {
            let name = pod.name_any();
            all.patch_status(&name, &PatchParams::default(), &runs)
                .await
                .unwrap();
        }
    }
    let asked = eventually("the operator asks for one more", || increment(client, namespace))
        .await
        .unwrap();
    let spec = &asked.data["spec"];
    assert_eq!(spec["podSets"].as_array().map(Vec::len), Some(1), "{spec}");
    assert_eq!(spec["podSets"][0]["name"], "workers");
    assert_eq!(spec["podSets"][0]["count"], 1);
    assert_eq!(
        (&spec["queueName"], &spec["priority"]),
        (&json!("team-a"), &json!(1000))
    );
    let waits = [("QuotaReserved", false, "Pending")];
    kueue_writes_to(client, &asked, &waits, None).await;
    wait_for_admitted_message(client, namespace, "asks for more: Kueue says Pending").await;

    let set =
        json!({ "name": "workers", "count": 1, "flavors": { "cpu": flavor, "nvidia.com/gpu": flavor } });
    let admission = json!({ "clusterQueue": "all", "podSetAssignments": [set] });
    let admits = [
        ("QuotaReserved", true, "QuotaReserved"),
        ("Admitted", true, "Admitted"),
    ];
    kueue_writes_to(client, &asked, &admits, Some(admission)).await;
    wait_for_pods(client, namespace, 3, flavor).await;
    wait_for_admitted_message(client, namespace, "1 more of workers").await;
    let name = asked.name_any();
    let added = pods(client, namespace).await.unwrap();
    let added = added
        .iter()
        .filter(|pod| pod.annotations().get(WORKLOAD_ANNOTATION) == Some(&name));
    assert_eq!(added.count(), 1);

    let found = increment(client, namespace).await.unwrap();
    kueue_writes_to(client, &found, &[("Evicted", true, "Preempted")], None).await;
    eventually("the third worker goes, and then its quota", || async {
        let has_ended = condition(&increment(client, namespace).await?, "Finished").0;
        let left = pods(client, namespace).await?.len();
        assert!(!has_ended || left == 3, "given back under {left} pods");
        end_pods(client, namespace).await?;
        ensure!(has_ended, "it is held");
        Ok(())
    })
    .await
    .unwrap();
    wait_for_pods(client, namespace, 2, flavor).await;
    let own = workload(client, namespace).await.unwrap();
    assert!(condition(&own, "Admitted").0 && condition(&own, "PodsReady").0);
}

/// Deletes pods that are terminating, because no kubelet does.
async fn end_pods(client: &Client, namespace: &str) -> Result<()> {
    let all: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let force = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    for pod in pods(client, namespace).await? {
        if pod.metadata.deletion_timestamp.is_some() {
            all.delete(&pod.name_any(), &force).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_job_runs_within_its_admission_and_is_evicted() {
    let namespace = cluster().namespace("kueue").unwrap();
    let client = cluster().client().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let _node = FakeNode::add(&client, &format!("{namespace}-n"), &namespace, 8)
        .await
        .unwrap();
    let _operator = operator(client.clone(), &namespace);
    let _coordinators = coordinators(&client, client.clone(), &namespace, folder.path());
    create(&client, &namespace, queued(&namespace)).await;
    if cluster().is_own() {
        // The operator has started before the definitions exist, and finds them later.
        job_says(&client, &namespace, "Queued", (false, "NoKueue"), "install Kueue").await;
    }
    cluster().define_kueue(&client).await.unwrap();
    job_says(
        &client,
        &namespace,
        "Queued",
        (false, "WaitsForQuota"),
        "which does not exist",
    )
    .await;
    priority_class(&namespace, 100);
    let asked = eventually("the operator asks for quota", || workload(&client, &namespace))
        .await
        .unwrap();
    assert_eq!(asked.data["spec"]["queueName"], "team-a");
    assert_eq!(asked.data["spec"]["priority"], 100);
    assert_eq!(asked.data["spec"]["priorityClassRef"]["name"], namespace);
    assert_eq!(asked.data["spec"]["podSets"][1]["minCount"], 1);
    assert_eq!(asked.owner_references()[0].kind, "VarunaJob");
    kueue_writes(
        &client,
        &namespace,
        &[("QuotaReserved", false, "WaitingForQuota")],
        None,
    )
    .await;
    job_says(
        &client,
        &namespace,
        "Queued",
        (false, "WaitsForQuota"),
        "Kueue says WaitingForQuota",
    )
    .await;
    assert_eq!(pods(&client, &namespace).await.unwrap().len(), 0);

    // Two of three workers are admitted, on a flavour that is created only now: the operator needs the flavour to place pods.
    let flavor = format!("{namespace}-spot");
    kueue_admits(&client, &namespace, 2, &flavor).await;
    job_says(
        &client,
        &namespace,
        "Pending",
        (true, "QuotaReserved"),
        "2 of workers",
    )
    .await;
    assert_eq!(
        pods(&client, &namespace).await.unwrap().len(),
        0,
        "where they go is not known"
    );
    let object = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": { "name": flavor },
        "spec": { "nodeLabels": { "pool": flavor } },
    });
    cluster()
        .kubectl(&["apply", "-f", "-"], &object.to_string())
        .unwrap();
    wait_for_pods(&client, &namespace, 2, &flavor).await;

    // The job gets another priority class while it has quota.
    let preferred = format!("{namespace}-preferred");
    priority_class(&preferred, 1000);
    let patch =
        Patch::Merge(json!({ "metadata": { "labels": { "kueue.x-k8s.io/priority-class": preferred } } }));
    jobs(&client, &namespace)
        .patch("j", &PatchParams::default(), &patch)
        .await
        .unwrap();
    eventually("the Workload has the other priority", || async {
        let spec = workload(&client, &namespace).await?.data["spec"].clone();
        ensure!(
            spec["priority"] == 1000 && spec["priorityClassRef"]["name"] == preferred,
            "{}",
            spec["priority"]
        );
        Ok(())
    })
    .await
    .unwrap();

    grows_and_shrinks(&client, &namespace, &flavor).await;

    // The job is evicted: all pods end, and then the quota is given back.
    kueue_writes(&client, &namespace, &[("Evicted", true, "Preempted")], None).await;
    job_says(
        &client,
        &namespace,
        "Queued",
        (false, "Evicted"),
        "Kueue says Preempted",
    )
    .await;
    eventually("the quota is given back once no pod is left", || async {
        let held = condition(&workload(&client, &namespace).await?, "QuotaReserved").0;
        let live = pods(&client, &namespace).await?;
        let phase = |p: &Pod| p.status.as_ref().and_then(|s| s.phase.clone());
        // The coordinator's pod ends by itself, and stays until it is deleted.
        let has_ended = |p: &Pod| matches!(phase(p).as_deref(), Some("Failed" | "Succeeded"));
        let live = live.iter().filter(|p| !has_ended(p)).count();
        assert!(held || live == 0, "given back under {live} pods");
        end_pods(&client, &namespace).await?;
        ensure!(!held, "it is held");
        Ok(())
    })
    .await
    .unwrap();
    let released = workload(&client, &namespace).await.unwrap();
    assert_eq!(released.data["status"].get("admission"), None);
    assert_eq!(condition(&released, "Requeued"), (true, "Preempted".into()));
    assert_eq!(released.uid(), asked.uid(), "it keeps its place in the queue");

    // The job is admitted again, with all workers.
    kueue_admits(&client, &namespace, 3, &flavor).await;
    eventually("all three workers", || async {
        end_pods(&client, &namespace).await?;
        let live = pods(&client, &namespace).await?;
        let live = live.iter().filter(|p| {
            p.metadata.deletion_timestamp.is_none() && p.labels().contains_key("varuna.dev/pod-number")
        });
        ensure!(live.count() == 3, "not yet");
        Ok(())
    })
    .await
    .unwrap();

    // The job is suspended: the Workload is deleted after the last pod.
    let patch = Patch::Merge(json!({ "spec": { "suspend": true } }));
    jobs(&client, &namespace)
        .patch("j", &PatchParams::default(), &patch)
        .await
        .unwrap();
    eventually("the Workloads are deleted", || async {
        end_pods(&client, &namespace).await?;
        let all = documents(&client, &namespace, &kueue_resource("Workload"));
        let left = all.list(&ListParams::default()).await?.items.len();
        ensure!(left == 0, "{left} are there");
        Ok(())
    })
    .await
    .unwrap();
}
