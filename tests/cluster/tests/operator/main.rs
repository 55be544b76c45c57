//! The operator on a real API server, with its garbage collector and scheduler.
#![expect(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "tests of many consecutive events"
)]

mod definition;
mod domains;
mod faults;
mod init_containers;
mod network;
mod ownership;
mod refused;
mod scale;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Event, Pod, Secret, Service};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use varuna_api::crd::{RecordSpec, VarunaRecord};
use varuna_cluster_coordinator::record::ClusterStore;
use varuna_cluster_tests::{
    FakeNode, cluster, coordinators, eventually, job, jobs, observed, operator, record,
};
use varuna_coordinator::store::RecordStore;
use varuna_operator::decide::objects::{
    NUMBER_LABEL, coordinator_name, pod_name, token_name, worker_selector,
};
use varuna_protocol::Record;

/// Changes a job at a path.
fn with(mut job: Value, pointer: &str, value: Value) -> Value {
    let (above, field) = pointer.rsplit_once('/').unwrap();
    let above = job.pointer_mut(above).unwrap();
    if value.is_null() {
        above.as_object_mut().unwrap().remove(field);
    } else {
        above[field] = value;
    }
    job
}

async fn pods(client: &Client, namespace: &str) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut pods = pods
        .list(&ListParams::default().labels(&worker_selector("j")))
        .await?
        .items;
    pods.sort_by_key(|p| p.labels()[NUMBER_LABEL].parse::<i64>().unwrap_or(0));
    Ok(pods)
}

/// The names of the pods that are not being deleted.
async fn live(client: &Client, namespace: &str) -> Result<Vec<String>> {
    let pods = pods(client, namespace).await?;
    Ok(pods
        .iter()
        .filter(|p| p.metadata.deletion_timestamp.is_none())
        .map(|p| p.name_any())
        .collect())
}

/// Waits until exactly the pods with these numbers exist.
async fn wait_for_live_pods(client: &Client, namespace: &str, numbers: &[i64]) -> Result<()> {
    let job = observed(client, namespace, "j").await?;
    let want: Vec<String> = numbers.iter().map(|number| pod_name(&job, *number)).collect();
    eventually(&format!("pods {want:?}"), || async {
        let found = live(client, namespace).await?;
        ensure!(found == want, "{found:?}");
        Ok(())
    })
    .await
}

/// Sets the status of a pod, as a kubelet would.
async fn set_status(client: &Client, namespace: &str, pod: &str, status: Value) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let patch = json!({ "status": status });
    pods.patch_status(pod, &PatchParams::default(), &Patch::Strategic(&patch))
        .await?;
    Ok(())
}

/// A job whose pods go to the nodes of its own test.
fn pooled(pool: &str, max: u32) -> Value {
    let mut job = job("j");
    job["spec"]["elasticity"] = json!({ "minWorkers": 1, "maxWorkers": max });
    job["spec"]["workers"] = json!({ "template": {
        "metadata": { "labels": { "team": "a" } },
        "spec": { "nodeSelector": { "varuna.dev/test": pool }, "containers": [{ "name": "worker", "futureField": { "x": 1 } }] },
    } });
    job
}

async fn create(client: &Client, namespace: &str, job: Value) -> Result<()> {
    let job: DynamicObject = serde_json::from_value(job)?;
    jobs(client, namespace)
        .create(&PostParams::default(), &job)
        .await?;
    Ok(())
}

async fn condition(client: &Client, namespace: &str, kind: &str) -> Result<Value> {
    let job = jobs(client, namespace).get("j").await?;
    let all = job.data["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    Ok(all.into_iter().find(|c| c["type"] == kind).unwrap_or_default())
}

/// Waits until the job is degraded for this reason, with these words in the message.
async fn degraded(client: &Client, namespace: &str, reason: &str, words: &str) -> Result<()> {
    eventually(reason, || async {
        let found = condition(client, namespace, "Degraded").await?;
        let message = found["message"].as_str().unwrap_or("");
        ensure!(
            found["status"] == "True" && found["reason"] == reason && message.contains(words),
            "{found}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_created_replaced_and_garbage_collected() {
    let namespace = cluster().namespace("pods").unwrap();
    let client = cluster().client().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let a = FakeNode::add(&client, &format!("{namespace}-a"), &namespace, 2)
        .await
        .unwrap();
    let _operator = operator(client.clone(), &namespace);
    let _coordinators = coordinators(&client, client.clone(), &namespace, folder.path());
    create(&client, &namespace, pooled(&namespace, 3)).await.unwrap();
    wait_for_live_pods(&client, &namespace, &[1, 2, 3]).await.unwrap();

    // Token, service, endpoint and record exist and have an owner.
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let job = observed(&client, &namespace, "j").await.unwrap();
    let (token, service) = (token_name(&job), coordinator_name(&job));
    let credentials = secrets.get(&token).await.unwrap();
    let credentials = credentials.data.unwrap();
    assert_eq!(credentials["token"].0.len(), 32);
    assert!(
        credentials["tls.crt"]
            .0
            .starts_with(b"-----BEGIN CERTIFICATE-----")
    );
    assert!(
        credentials["tls.key"]
            .0
            .starts_with(b"-----BEGIN PRIVATE KEY-----")
    );
    let services: Api<Service> = Api::namespaced(client.clone(), &namespace);
    assert_eq!(
        services.get(&service).await.unwrap().owner_references()[0].kind,
        "VarunaJob"
    );
    let slices = ApiResource::erase::<k8s_openapi::api::discovery::v1::EndpointSlice>(&());
    let slices = varuna_cluster_tests::documents(&client, &namespace, &slices);
    eventually("the endpoint of the coordinator", || async {
        let slice = slices.get(&service).await?;
        ensure!(
            slice.data["endpoints"][0]["addresses"][0] == "192.0.2.1",
            "{slice:?}"
        );
        Ok(())
    })
    .await
    .unwrap();
    let record = eventually("the record", || async {
        let record = record(&client, &namespace).await?;
        ensure!(record.status.is_some(), "nothing is written");
        Ok(record)
    })
    .await
    .unwrap();
    let uid = &record.owner_references()[0].uid;
    assert_eq!(
        (&record.name_any(), &record.spec.uid),
        (&format!("j-{}", &uid[..8]), uid)
    );

    // The template is part of the pods, and each pod requests a GPU.
    let pod = pods(&client, &namespace).await.unwrap().remove(0);
    assert_eq!(pod.labels()["team"], "a");
    assert_eq!(
        pod.spec.unwrap().containers[0]
            .resources
            .as_ref()
            .unwrap()
            .limits
            .as_ref()
            .unwrap()["nvidia.com/gpu"]
            .0,
        "1"
    );

    // Two pods are on the first node before there is another node.
    eventually("the first node is full", || async {
        let pods = pods(&client, &namespace).await?;
        let bound = pods
            .iter()
            .filter(|p| p.spec.as_ref().unwrap().node_name.is_some());
        ensure!(bound.count() == 2, "not yet");
        Ok(())
    })
    .await
    .unwrap();
    let b = FakeNode::add(&client, &format!("{namespace}-b"), &namespace, 8)
        .await
        .unwrap();

    // All pods are scheduled. A node announces its end: its pods are deleted and replaced before it is gone.
    let on = |node: String| {
        let (client, namespace) = (client.clone(), namespace.clone());
        async move {
            let pods = pods(&client, &namespace).await?;
            ensure!(
                pods.iter().all(|p| p.spec.as_ref().unwrap().node_name.is_some()),
                "not all are scheduled"
            );
            let here = pods
                .iter()
                .filter(|p| p.spec.as_ref().unwrap().node_name.as_ref() == Some(&node));
            Ok(here.map(|p| p.name_any()).collect::<Vec<_>>())
        }
    };
    let on_a = eventually("all pods are scheduled", || on(a.name.clone()))
        .await
        .unwrap();
    for number in 1..=3 {
        let pod = pod_name(&job, number);
        set_status(&client, &namespace, &pod, json!({ "phase": "Running" }))
            .await
            .unwrap();
    }
    a.taint("karpenter.sh/disrupted", "NoSchedule").await.unwrap();
    let gone = on_a.len();
    // The replacements must be on the second node before it is removed: a pod that is not on any node is not lost with it.
    eventually(
        "the pods of the draining node are replaced on the other",
        || async {
            let live = live(&client, &namespace).await?;
            let on_b = on(b.name.clone()).await?;
            ensure!(
                live.len() == 3 && live.iter().all(|p| on_b.contains(p)),
                "{live:?}, on {}: {on_b:?}",
                b.name
            );
            Ok(())
        },
    )
    .await
    .unwrap();

    // A node is gone: its pods are lost, and do not block anything.
    let newest = 3 + i64::try_from(gone).unwrap();
    b.remove().await.unwrap();
    wait_for_live_pods(&client, &namespace, &[newest + 1, newest + 2, newest + 3])
        .await
        .unwrap();
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    eventually("Events tell of both", || async {
        let reasons: Vec<_> = events
            .list(&ListParams::default())
            .await?
            .into_iter()
            .filter_map(|e| e.reason)
            .collect();
        for want in ["WorkerNoticed", "WorkerLost"] {
            ensure!(reasons.iter().any(|r| r == want), "{reasons:?}");
        }
        Ok(())
    })
    .await
    .unwrap();

    // When the job is deleted, all of its objects are deleted.
    jobs(&client, &namespace)
        .delete("j", &DeleteParams::default())
        .await
        .unwrap();
    let force = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    let all: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let records: Api<VarunaRecord> = Api::namespaced(client.clone(), &namespace);
    let params = ListParams::default();
    eventually("everything is collected", || async {
        // Pods that are terminating are deleted here, because no kubelet does.
        for pod in pods(&client, &namespace).await? {
            if pod.metadata.deletion_timestamp.is_some() {
                let _ = all.delete(&pod.name_any(), &force).await;
            }
        }
        let left = pods(&client, &namespace).await?.len();
        ensure!(left == 0, "{left} pods");
        ensure!(
            secrets.get_opt(&token).await?.is_none() && records.list(&params).await?.items.is_empty(),
            "secrets and records"
        );
        ensure!(services.get_opt(&service).await?.is_none(), "service");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn evicted_pod_is_replaced_and_crashes_fail_the_job() {
    let namespace = cluster().namespace("crash").unwrap();
    let client = cluster().client().await.unwrap();
    let _node = FakeNode::add(&client, &format!("{namespace}-n"), &namespace, 9)
        .await
        .unwrap();
    let _operator = operator(client.clone(), &namespace);
    create(&client, &namespace, pooled(&namespace, 1)).await.unwrap();
    wait_for_live_pods(&client, &namespace, &[1]).await.unwrap();
    let job = observed(&client, &namespace, "j").await.unwrap();
    let end = |code: i32, reason: &str| {
        json!({ "phase": "Failed", "containerStatuses": [{
            "name": "worker", "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": code, "reason": reason, "message": "cannot open the dataset data/kjv",
                "startedAt": k8s_openapi::jiff::Timestamp::now().to_string(), "finishedAt": k8s_openapi::jiff::Timestamp::now().to_string() } },
        }] })
    };
    let mut evicted = end(143, "Error");
    evicted["conditions"] =
        json!([{ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI" }]);
    set_status(&client, &namespace, &pod_name(&job, 1), evicted)
        .await
        .unwrap();
    wait_for_live_pods(&client, &namespace, &[2]).await.unwrap();
    for number in 2..8 {
        let pod = pod_name(&job, number);
        eventually(&format!("{pod} is made"), || async {
            let live = live(&client, &namespace).await?;
            ensure!(live.contains(&pod), "{live:?}");
            Ok(())
        })
        .await
        .unwrap();
        set_status(&client, &namespace, &pod, end(1, "Error"))
            .await
            .unwrap();
    }
    let failed = eventually("the job fails", || async {
        let failed = condition(&client, &namespace, "Failed").await?;
        ensure!(failed["status"] == "True", "{failed}");
        Ok(failed)
    })
    .await
    .unwrap();
    assert!(
        failed["message"]
            .as_str()
            .unwrap()
            .contains("cannot open the dataset"),
        "{failed}"
    );
    assert_eq!(failed["observedGeneration"], 1);
    assert_eq!(
        pods(&client, &namespace).await.unwrap().len(),
        6,
        "those that crashed are kept for their logs"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_coordinators_one_writes_the_record() {
    let namespace = cluster().namespace("record").unwrap();
    let client = cluster().client().await.unwrap();
    let runtime = tokio::runtime::Handle::current();
    let records: Api<VarunaRecord> = Api::namespaced(client, &namespace);
    add_record(&records).await;
    let api = records.clone();
    let store = move |uid: &str| ClusterStore::new(api.clone(), "j-1".into(), uid.into(), runtime.clone());
    let mut late = store("u");
    // Stores block, so they run outside the async runtime, as in the coordinator.
    let work = std::thread::spawn(move || {
        let (mut a, mut b) = (store("u"), store("u"));
        assert_eq!(a.read().unwrap(), Record::default());
        let record = |term| Record {
            version: 1,
            term,
            ..Record::default()
        };
        assert!(a.compare_and_swap(0, &record(1)).unwrap());
        assert!(
            !b.compare_and_swap(0, &record(2)).unwrap(),
            "it is another by now"
        );
        assert_eq!(b.read().unwrap(), record(1));
        let racers: Vec<_> = [a, b]
            .into_iter()
            .enumerate()
            .map(|(i, mut store)| {
                std::thread::spawn(move || {
                    let wins = (0..20_u64).filter(|round| {
                        while store.read().unwrap().version < 1 + round {}
                        let next = Record {
                            version: 2 + round,
                            term: i as u64,
                            ..Record::default()
                        };
                        store.compare_and_swap(1 + round, &next).unwrap()
                    });
                    wins.count()
                })
            })
            .collect();
        let wins: usize = racers.into_iter().map(|r| r.join().unwrap()).sum();
        assert_eq!(wins, 20, "each version is written once");
        let other = store("v").read().unwrap_err().to_string();
        assert!(other.contains("uid u"), "{other}");
        assert_eq!(late.read().unwrap().version, 21);
        late
    });
    let mut late = tokio::task::spawn_blocking(|| work.join().unwrap())
        .await
        .unwrap();

    // To a store that has known a record, a deleted record, or another record with the same name, is no new run.
    records.delete("j-1", &DeleteParams::default()).await.unwrap();
    late = blocking(late, |late| {
        let gone = late.read().unwrap_err().to_string();
        assert!(gone.contains("not found"), "{gone}");
    })
    .await;
    add_record(&records).await;
    blocking(late, |late| {
        let fresh = late.read().unwrap_err().to_string();
        assert!(fresh.contains("version 0, and version 21 was known"), "{fresh}");
        assert!(late.compare_and_swap(0, &Record::default()).is_err());
    })
    .await;
}

/// An empty record, as the operator creates it.
async fn add_record(records: &Api<VarunaRecord>) {
    let spec = RecordSpec {
        uid: "u".into(),
        job: "{}".into(),
    };
    records
        .create(&PostParams::default(), &VarunaRecord::new("j-1", spec))
        .await
        .unwrap();
}

/// Stores block, so they run outside the async runtime.
async fn blocking(
    mut store: ClusterStore,
    ask: impl FnOnce(&mut ClusterStore) + Send + 'static,
) -> ClusterStore {
    let asked = std::thread::spawn(move || {
        ask(&mut store);
        store
    });
    tokio::task::spawn_blocking(|| asked.join().unwrap())
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_record_is_gone_begins_no_second_run() {
    let namespace = cluster().namespace("no-record").unwrap();
    let client = cluster().client().await.unwrap();
    create(&client, &namespace, pooled(&namespace, 1)).await.unwrap();
    let status = json!({ "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaJob", "metadata": { "name": "j" },
        "status": { "workers": 0, "newestPod": 3, "conditions": [], "plan": { "generation": 7, "shape": "P1xD1", "workers": 1, "idle": 0 } } });
    jobs(&client, &namespace)
        .patch_status("j", &PatchParams::apply("test").force(), &Patch::Apply(&status))
        .await
        .unwrap();
    let _operator = operator(client.clone(), &namespace);
    eventually("the job says so", || async {
        let degraded = condition(&client, &namespace, "Degraded").await?;
        ensure!(
            degraded["reason"] == "CoordinatorFails"
                && degraded["message"]
                    .as_str()
                    .is_some_and(|m| m.contains("is gone, although plan 7 was made")),
            "{degraded}"
        );
        Ok(())
    })
    .await
    .unwrap();
    let found = record(&client, &namespace).await.map(|found| found.name_any());
    assert_eq!(
        found.unwrap_err().to_string(),
        "0 records",
        "a record was made, or it could not be read whether there is one"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn new_leader_manages_all_existing_jobs() {
    let namespace = cluster().namespace("many").unwrap();
    let client = cluster().client().await.unwrap();
    for i in 0..8 {
        let document = with(pooled(&namespace, 1), "/metadata/name", json!(format!("j{i}")));
        create(&client, &namespace, document).await.unwrap();
    }
    let _operator = operator(client.clone(), &namespace);
    eventually("each job has its pod", || async {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let workers = ListParams::default().labels(NUMBER_LABEL);
        let pods = pods.list(&workers).await?.items;
        ensure!(pods.len() == 8, "{} pods", pods.len());
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_another_controller_manages_is_left_alone() {
    let namespace = cluster().namespace("managed-by").unwrap();
    let client = cluster().client().await.unwrap();
    let theirs = json!("example.com/another");
    let of_another = with(pooled(&namespace, 1), "/spec/managedBy", theirs);
    create(&client, &namespace, of_another).await.unwrap();
    let _operator = operator(client.clone(), &namespace);
    let ours = with(
        pooled(&namespace, 1),
        "/spec/managedBy",
        json!("varuna.dev/operator"),
    );
    let ours = with(ours, "/metadata/name", json!("ours"));
    create(&client, &namespace, ours).await.unwrap();
    // When the second job has a status, the operator has seen both jobs.
    eventually("the operator manages its own job", || async {
        let job = jobs(&client, &namespace).get("ours").await?;
        ensure!(job.data["status"]["newestPod"] == 1, "{}", job.data["status"]);
        Ok(())
    })
    .await
    .unwrap();
    let theirs = jobs(&client, &namespace).get("j").await.unwrap();
    assert_eq!(theirs.data.get("status"), None);
    assert_eq!(pods(&client, &namespace).await.unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn others_fields_on_our_objects_stay() {
    let namespace = cluster().namespace("fields").unwrap();
    let client = cluster().client().await.unwrap();
    let _operator = operator(client.clone(), &namespace);
    create(&client, &namespace, pooled(&namespace, 1)).await.unwrap();
    wait_for_live_pods(&client, &namespace, &[1]).await.unwrap();
    let job = observed(&client, &namespace, "j").await.unwrap();
    let service = coordinator_name(&job);
    cluster()
        .kubectl(
            &["-n", &namespace, "annotate", "service", &service, "somebody=else"],
            "",
        )
        .unwrap();
    // The operator notices that a field of its own was changed.
    let label = "app.kubernetes.io/managed-by";
    cluster()
        .kubectl(
            &[
                "-n",
                &namespace,
                "label",
                "service",
                &service,
                &format!("{label}-"),
            ],
            "",
        )
        .unwrap();
    let services: Api<Service> = Api::namespaced(client.clone(), &namespace);
    eventually("the label is back", || async {
        let service = services.get(&service).await?;
        ensure!(service.labels().contains_key(label), "{:?}", service.labels());
        Ok(())
    })
    .await
    .unwrap();
    let found = services.get(&service).await.unwrap();
    assert_eq!(found.annotations()["somebody"], "else");
    let now = DeleteParams::default();
    services.delete(&service, &now).await.unwrap();
    eventually("a Service that was deleted is back", || async {
        let again = services.get(&service).await?;
        ensure!(again.uid() != found.uid(), "not yet");
        Ok(())
    })
    .await
    .unwrap();
}
