//! Objects that have the names of a job's objects but do not belong to it, and several jobs that have the same name one after the other.

use super::{condition, create, live, pods, pooled};
use anyhow::{Context as _, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use varuna_api::crd::{RecordStatus, VarunaRecord};
use varuna_cluster_tests::{cluster, coordinators, eventually, job, jobs, observed, operator, record};
use varuna_coordinator::record_format;
use varuna_operator::decide::objects::{COORDINATOR_LABEL, coordinator_name, pod_name, token_name};
use varuna_protocol::Record;

/// Adds an object that a user has created.
fn add(namespace: &str, object: &Value) {
    cluster()
        .kubectl(&["-n", namespace, "create", "-f", "-"], &object.to_string())
        .unwrap();
}

async fn wait_for_name_taken(client: &Client, namespace: &str, what: &str) {
    eventually(&format!("the job names {what}"), || async {
        let degraded = condition(client, namespace, "Degraded").await?;
        let message = degraded["message"].as_str().unwrap_or_default();
        ensure!(
            degraded["reason"] == "NameTaken" && message.contains(what),
            "{degraded}"
        );
        Ok(())
    })
    .await
    .unwrap();
}

/// Changes the job's spec (here its TTL), which makes the operator retry without the backoff of the failed tries before.
async fn try_again_at_once(client: &Client, namespace: &str, ttl: u64) {
    let spec = Patch::Merge(json!({ "spec": { "ttlSecondsAfterFinished": ttl } }));
    let (jobs, parameters) = (jobs(client, namespace), PatchParams::default());
    jobs.patch("j", &parameters, &spec).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_others_with_our_names_are_left_alone_and_named() {
    let namespace = cluster().namespace("foreign").unwrap();
    let client = cluster().client().await.unwrap();
    create(&client, &namespace, pooled(&namespace, 1)).await.unwrap();
    let job = observed(&client, &namespace, "j").await.unwrap();
    let (token, service, first) = (token_name(&job), coordinator_name(&job), pod_name(&job, 1));
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let services: Api<Service> = Api::namespaced(client.clone(), &namespace);
    let all_pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let labels = json!({ "varuna.dev/job": "j", "varuna.dev/pod-number": "1" });
    // The scheduling gate keeps the pod off every node. The cluster's garbage collector would delete a pod on a node that does not exist
    // after a minute.
    let pod = json!({ "schedulingGates": [{ "name": "test/stays" }], "containers": [{ "name": "c", "image": "i" }] });
    for object in [
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": token }, "stringData": { "token": "mine" } }),
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": service }, "spec": { "ports": [{ "port": 80 }] } }),
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": first, "labels": labels }, "spec": pod }),
    ] {
        add(&namespace, &object);
    }
    let first_operator = operator(client.clone(), &namespace);
    let now = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };

    // After many tries, also by another operator, the object still belongs to the user.
    wait_for_name_taken(&client, &namespace, &format!("Secret {token}")).await;
    let version = || async {
        record(&client, &namespace)
            .await
            .unwrap()
            .resource_version()
            .unwrap()
    };
    let noted = version().await;
    first_operator.abort();
    assert!(first_operator.await.unwrap_err().is_cancelled());
    // The status is reset, so that a new message comes from the second operator.
    let forgotten = Patch::Merge(json!({ "status": { "conditions": null } }));
    jobs(&client, &namespace)
        .patch_status("j", &PatchParams::default(), &forgotten)
        .await
        .unwrap();
    assert_eq!(
        condition(&client, &namespace, "Degraded").await.unwrap(),
        Value::Null
    );
    let _operator = operator(client.clone(), &namespace);
    wait_for_name_taken(&client, &namespace, &format!("Secret {token}")).await;
    // An operator that ends during a try has already noted that the name is taken, so that the next operator knows it.
    assert_eq!(version().await, noted, "a try has changed the record");
    let secret = secrets.get(&token).await.unwrap();
    assert_eq!(secret.data.unwrap()["token"], ByteString(b"mine".to_vec()));
    secrets.delete(&token, &now).await.unwrap();
    try_again_at_once(&client, &namespace, 1_000).await;

    wait_for_name_taken(&client, &namespace, &format!("Service {service}")).await;
    let found = services.get(&service).await.unwrap();
    assert_eq!(found.spec.unwrap().ports.unwrap()[0].port, 80);
    services.delete(&service, &now).await.unwrap();
    try_again_at_once(&client, &namespace, 1_001).await;

    wait_for_name_taken(&client, &namespace, &format!("Pod {first}")).await;
    let found = all_pods.get_opt(&first).await.unwrap();
    assert!(
        found.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none()),
        "a pod with the job's label that is not the job's was deleted"
    );
    // The operator retries by itself.
    all_pods.delete(&first, &now).await.unwrap();
    eventually("the job has its pod", || async {
        let pod = pods(&client, &namespace).await?.pop().context("a pod")?;
        ensure!(pod.owner_references()[0].uid == job.uid, "{pod:?}");
        Ok(())
    })
    .await
    .unwrap();
    let secret = secrets.get(&token).await.unwrap();
    assert_eq!(secret.owner_references()[0].uid, job.uid);
    assert_ne!(secret.data.unwrap()["token"], ByteString(b"mine".to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn run_uses_the_spec_it_began_with() {
    let namespace = cluster().namespace("frozen").unwrap();
    let client = cluster().client().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let first = operator(client.clone(), &namespace);
    let _coordinators = coordinators(&client, client.clone(), &namespace, folder.path());
    let mut document = job("j");
    document["spec"]["elasticity"] = json!({ "maxWorkers": 1 });
    create(&client, &namespace, document).await.unwrap();
    let term = async |term: u64| {
        eventually(&format!("the coordinator of term {term}"), || async {
            let record = record(&client, &namespace).await?;
            let written = record.status.context("nothing is written")?;
            let written = record_format::decode(&written.record.0)?;
            ensure!(
                written.term == term && live(&client, &namespace).await?.len() == 1,
                "{written:?}"
            );
            Ok(record.spec.job)
        })
        .await
        .unwrap()
    };
    let patch = |spec: &str| {
        let patch = format!("{{\"spec\":{spec}}}");
        cluster()
            .kubectl(
                &["-n", &namespace, "patch", "vj", "j", "--type=merge", "-p", &patch],
                "",
            )
            .unwrap();
    };
    let began = term(1).await;
    // The new text has the same meaning.
    patch("{\"workers\":{\"device\":\"auto\"}}");
    first.abort();
    let _second = operator(client.clone(), &namespace);
    let all: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let force = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    let present = ListParams::default().labels(COORDINATOR_LABEL);
    for pod in all.list(&present).await.unwrap() {
        all.delete(&pod.name_any(), &force).await.unwrap();
    }
    assert_eq!(term(2).await, began);
    patch("{\"suspend\":true,\"allowStateLoss\":true}");
    eventually("its pods are gone", || async {
        let left = pods(&client, &namespace).await?;
        // Pods that are terminating are deleted here, because no kubelet does.
        for pod in left.iter().filter(|p| p.metadata.deletion_timestamp.is_some()) {
            let _ = all.delete(&pod.name_any(), &force).await;
        }
        ensure!(left.is_empty(), "{} pods", left.len());
        Ok(())
    })
    .await
    .unwrap();
    patch("{\"suspend\":false}");
    let resumed = term(3).await;
    assert!(resumed != began && resumed.contains("workers"), "{resumed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn recreated_job_starts_from_scratch() {
    let namespace = cluster().namespace("again").unwrap();
    let client = cluster().client().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let _operator = operator(client.clone(), &namespace);
    let _coordinators = coordinators(&client, client.clone(), &namespace, folder.path());
    create(&client, &namespace, pooled(&namespace, 2)).await.unwrap();
    let written = eventually("the first job's record", || async {
        let record = record(&client, &namespace).await?;
        ensure!(
            record.status.is_some() && live(&client, &namespace).await?.len() == 2,
            "not yet"
        );
        Ok(record)
    })
    .await
    .unwrap();
    // The record as its coordinator leaves it after the last step.
    let records: Api<VarunaRecord> = Api::namespaced(client.clone(), &namespace);
    let done = Record {
        version: 100,
        term: 9,
        done: true,
        ..Record::default()
    };
    let status = RecordStatus {
        version: 100,
        record: ByteString(record_format::encode(&done).unwrap()),
    };
    let written = VarunaRecord {
        status: Some(status),
        ..written
    };
    records
        .replace_status(&written.name_any(), &PostParams::default(), &written)
        .await
        .unwrap();
    jobs(&client, &namespace)
        .delete("j", &DeleteParams::default())
        .await
        .unwrap();
    create(&client, &namespace, pooled(&namespace, 2)).await.unwrap();
    let second = observed(&client, &namespace, "j").await.unwrap();
    eventually(
        "the second job has pods and a record of its own, and nothing else is left",
        || async {
            let phase = jobs(&client, &namespace).get("j").await?.data["status"]["phase"].clone();
            assert!(phase != "Complete", "it has trained nothing");
            let mut uids: Vec<_> = pods(&client, &namespace)
                .await?
                .iter()
                .map(|p| p.owner_references()[0].uid.clone())
                .collect();
            let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
            let all = secrets.list(&ListParams::default()).await?;
            uids.extend(all.iter().map(|s| s.owner_references()[0].uid.clone()));
            let record = record(&client, &namespace).await?;
            uids.push(record.spec.uid.clone());
            ensure!(
                uids.len() == 4 && uids.iter().all(|uid| *uid == second.uid),
                "{uids:?}"
            );
            let record = record.status.context("nothing is written")?;
            let record = record_format::decode(&record.record.0)?;
            ensure!(!record.done && record.term == 1, "{record:?}");
            Ok(())
        },
    )
    .await
    .unwrap();
}
