//! A job in a queue of Kueue's own controller (`scripts/setup-kueue.sh` builds it): it, and not a stand-in, admits, evicts and admits again.
#![expect(clippy::unwrap_used, reason = "a test that tells a story")]

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use varuna_cluster_tests::{
    FakeNode, cluster, coordinators, documents, eventually, job, jobs, kueue_resource, operator, root,
};

/// Kueue's controller; it ends with this.
struct Controller(Child);

impl Drop for Controller {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the controller without its webhooks: they check and complete what nobody here gets wrong.
fn controller(program: &Path, folder: &Path) -> Controller {
    let certificates = certificates(folder);
    let log = std::fs::File::create(folder.join("kueue.log")).unwrap();
    let config = json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
        "health": { "healthProbeBindAddress": "0" }, "metrics": { "bindAddress": "0" },
        "leaderElection": { "leaderElect": false },
        "internalCertManagement": { "enable": false },
        // An API server of its own, which wants more certificates.
        "featureGates": { "VisibilityOnDemand": false },
        "webhook": { "port": free_port(), "certDir": certificates },
        "integrations": { "frameworks": ["batch/job"], "externalFrameworks": ["VarunaJob.v1alpha1.varuna.dev"] },
    });
    let file = folder.join("kueue.yaml");
    std::fs::write(&file, config.to_string()).unwrap();
    let child = Command::new(program)
        .arg("--config")
        .arg(file)
        .env("KUBECONFIG", cluster().kubeconfig())
        .env("METRICS_CERTS", certificates)
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn();
    Controller(child.unwrap())
}

/// One that nobody listens on: the controller takes no other way to name a free one.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A certificate of which nobody asks anything.
fn certificates(folder: &Path) -> String {
    let identity = varuna_coordinator::Identity::self_signed().unwrap();
    let to = folder.join("certificates");
    std::fs::create_dir(&to).unwrap();
    std::fs::write(to.join("tls.crt"), identity.certificate).unwrap();
    std::fs::write(to.join("tls.key"), identity.key).unwrap();
    to.to_string_lossy().into_owned()
}

/// A flavour, and queues with two GPUs.
fn queues(namespace: &str) -> Vec<Value> {
    let api = "kueue.x-k8s.io/v1beta2";
    let quota = |name: &str, amount: &str| json!({ "name": name, "nominalQuota": amount });
    let flavors = json!([{ "name": namespace, "resources": [quota("cpu", "8"), quota("memory", "8Gi"), quota("nvidia.com/gpu", "2")] }]);
    let group = json!({ "coveredResources": ["cpu", "memory", "nvidia.com/gpu"], "flavors": flavors });
    vec![
        json!({ "apiVersion": api, "kind": "ResourceFlavor", "metadata": { "name": namespace },
            "spec": { "nodeLabels": { "varuna.dev/test": namespace } } }),
        json!({ "apiVersion": api, "kind": "ClusterQueue", "metadata": { "name": namespace },
            "spec": { "namespaceSelector": {}, "resourceGroups": [group] } }),
        json!({ "apiVersion": api, "kind": "LocalQueue", "metadata": { "name": "team-a", "namespace": namespace },
            "spec": { "clusterQueue": namespace } }),
    ]
}

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

/// Applies Kueue's definitions and waits for them: the controller ends where they are not served yet.
fn serve_definitions(built: &Path) {
    let definitions = built.join("definitions");
    let definitions = definitions.to_string_lossy();
    let apply = ["apply", "--server-side", "-f", &definitions];
    cluster().kubectl(&apply, "").unwrap();
    let wait = [
        "wait",
        "--for=condition=Established",
        "--timeout=60s",
        "-f",
        &definitions,
    ];
    cluster().kubectl(&wait, "").unwrap();
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
    let built = std::env::var_os("VARUNA_KUEUE").map_or_else(|| root().join(".cache/kueue"), PathBuf::from);
    let program = built.join("manager");
    assert!(
        program.exists(),
        "{} is missing, see scripts/setup-kueue.sh",
        program.display()
    );
    let namespace = cluster().namespace("kueue-own").unwrap();
    let client = cluster().client().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    serve_definitions(&built);
    let _controller = controller(&program, folder.path());
    let _node = FakeNode::add(&client, &format!("{namespace}-n"), &namespace, 8)
        .await
        .unwrap();
    let _operator = operator(client.clone(), &namespace);
    let _coordinators = coordinators(&client, client.clone(), &namespace, folder.path());
    for object in queues(&namespace) {
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
        let log = std::fs::read_to_string(folder.path().join("kueue.log")).unwrap_or_default();
        let tail: String = log.lines().rev().take(5).collect::<Vec<_>>().join("\n");
        ensure!(live.len() == 2, "{live:?}; Kueue's log ends with {tail}");
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
