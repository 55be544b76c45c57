//! The examples for clusters: a real API server accepts their objects, and the pods that the operator would create for their jobs.

use kube::Resource as _;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use varuna_api::crd::Status;
use varuna_cluster_tests::{cluster, observed_job, root};
use varuna_operator::decide::{
    KueueVersion, Observed, ObservedJob, ObservedQueue, Settings, WorkloadChange, decide,
};
use varuna_operator::job_object::JobObject;

/// The objects that the operator creates for a new job that does not wait for a queue: the pods of its workers, the pod of its coordinator,
/// and other objects.
fn made_of(document: &Value, namespace: &str) -> (Vec<Value>, Value, Vec<Value>) {
    let mut object = job_of(document, namespace);
    object.meta_mut().labels = None;
    let mut job = observed_job(&object);
    job.status = Status::default();
    let observed = observed(job);
    let decision = decide(&observed);
    let mut pods = decision.create;
    let coordinator = pods.remove(0);
    (pods, coordinator, decision.objects)
}

/// The job of a document, as an API server would store it.
#[expect(clippy::unwrap_used, reason = "a test's helper")]
fn job_of(document: &Value, namespace: &str) -> JobObject {
    let mut object: JobObject = serde_json::from_value(document.clone()).unwrap();
    object.meta_mut().uid = Some("00000000-0000-0000-0000-000000000000".into());
    object.meta_mut().namespace = Some(namespace.to_owned());
    object
}

/// A new job without any objects.
fn observed(job: ObservedJob) -> Observed {
    Observed {
        job,
        pods: vec![],
        coordinators: vec![],
        orders: None,
        coordinator_probe: None,
        nodes: BTreeMap::new(),
        run: None,
        failures: vec![],
        now: 0,
        settings: Settings {
            image: None,
            coordinator_image: Some("varuna-coordinator:test".into()),
            coordinator_priority_class: None,
            gpu_resource: Some("nvidia.com/gpu".into()),
            node_signals: vec![],
            topology_labels: vec![],
        },
        queue: ObservedQueue::default(),
        old_credentials: 0,
    }
}

/// The Workload that the operator creates for a new job with a queue; none for a job without a queue.
fn workload_of(document: &Value, namespace: &str) -> Option<Value> {
    let mut observed = observed(observed_job(&job_of(document, namespace)));
    observed.queue.served = Some(KueueVersion::V1Beta2);
    match decide(&observed).workload.pop() {
        Some(WorkloadChange::Create(workload)) => Some(workload),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_and_their_pods_are_taken_by_an_api_server() {
    let client = cluster().client().await.unwrap();
    cluster().define_kueue(&client).await.unwrap();
    let mut queued = 0;
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("examples/kubernetes")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let namespace = cluster().namespace(&format!("example-{name}")).unwrap();
        let apply = |document: &Value, how: &[&str]| {
            let arguments = [&["-n", &namespace, "apply", "-f", "-"], how].concat();
            let said = cluster().kubectl(&arguments, &document.to_string());
            let said = said.unwrap_or_else(|e| panic!("{}:\n{e:#}", path.display()));
            assert!(
                !said.to_lowercase().contains("warning"),
                "{}: {said}",
                path.display()
            );
        };
        let text = std::fs::read_to_string(&path).unwrap();
        let mut jobs = 0;
        for part in text.split("\n---\n") {
            let document: Value = serde_saphyr::from_str(part).unwrap();
            if document["kind"] != "VarunaJob" {
                // The API server accepts pods only if their service account exists.
                apply(&document, &[]);
                continue;
            }
            apply(&document, &["--dry-run=server"]);
            if let Some(workload) = workload_of(&document, &namespace) {
                apply(&workload, &["--dry-run=server"]);
                queued += 1;
            }
            let (pods, coordinator, objects) = made_of(&document, &namespace);
            let gpus: u64 = pods
                .iter()
                .map(|pod| &pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
                .map(|count| count.as_str().unwrap().parse::<u64>().unwrap())
                .sum();
            assert_eq!(
                gpus,
                document["spec"]["elasticity"]["maxWorkers"],
                "{}",
                path.display()
            );
            // The pods of the first and the last group.
            for pod in [pods.first().unwrap(), pods.last().unwrap()] {
                apply(pod, &["--dry-run=server"]);
            }
            for mut account in objects.into_iter().filter(|o| o["kind"] == "ServiceAccount") {
                // Its owner does not exist, so the garbage collector would delete it.
                account["metadata"]["ownerReferences"] = json!([]);
                apply(&account, &[]);
            }
            apply(&coordinator, &["--dry-run=server"]);
            jobs += 1;
        }
        assert_eq!(jobs, 1, "{}", path.display());
        seen += 1;
    }
    assert!(seen >= 7 && queued == 1, "{seen} examples, {queued} with a queue");
}

/// A claim of an example gets a new volume, which is empty. The drivers of FSx and EFS make none that nobody may write.
#[test]
fn claims_of_examples_can_be_filled_with_data() {
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("examples/kubernetes")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for part in text.split("\n---\n") {
            let document: Value = serde_saphyr::from_str(part).unwrap();
            if document["kind"] != "PersistentVolumeClaim" {
                continue;
            }
            let modes = document["spec"]["accessModes"].as_array().unwrap();
            assert!(!modes.contains(&json!("ReadOnlyMany")), "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 5, "{seen} claims");
}
