//! Kueue in a test cluster: its definitions, and its own controller if that was built.

use crate::{Cluster, eventually, log_tail, root};
use anyhow::{Context as _, Result};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use varuna_coordinator::Identity;
use varuna_operator::cluster::workloads::resource;
use varuna_operator::decide::KueueVersion;

/// A resource of Kueue, in the version that the definitions in this repository serve.
#[must_use]
pub fn kueue_resource(kind: &str) -> ApiResource {
    resource(KueueVersion::V1Beta2, kind)
}

impl Cluster {
    /// Installs Kueue's definitions, without its controller.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn define_kueue(&self, client: &Client) -> Result<()> {
        let file = root().join("tests/cluster/kueue/crds.yaml");
        self.kubectl(&["apply", "--server-side", "-f", &file.to_string_lossy()], "")?;
        let kinds = [
            "Workload",
            "ResourceFlavor",
            "ClusterQueue",
            "LocalQueue",
            "WorkloadPriorityClass",
        ];
        eventually("Kueue's resources are served", || async {
            for kind in kinds {
                let all: Api<DynamicObject> = Api::all_with(client.clone(), &kueue_resource(kind));
                all.list(&ListParams::default().limit(1)).await?;
            }
            Ok(())
        })
        .await
    }
}

/// The folder with Kueue's own controller and its definitions: `VARUNA_KUEUE`, or the folder of `scripts/setup-kueue.sh`. None if it was
/// not built.
#[must_use]
pub fn built_kueue() -> Option<PathBuf> {
    let given = std::env::var_os("VARUNA_KUEUE").map(PathBuf::from);
    let folder = given.unwrap_or_else(|| root().join(".cache/kueue"));
    folder.join("manager").exists().then_some(folder)
}

/// Kueue's own controller as a process, which ends when this is dropped.
pub struct KueueController {
    process: Child,
    log: PathBuf,
}

impl Drop for KueueController {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl KueueController {
    /// Installs Kueue's definitions and starts its controller, without its webhooks: they check and complete fields that these tests always
    /// set correctly. `folder` is an empty folder for its certificate, its configuration and its log.
    ///
    /// # Errors
    /// Kueue was not built, or does not start.
    pub fn start(cluster: &Cluster, folder: &Path) -> Result<KueueController> {
        let built = built_kueue().context("Kueue's controller is missing, see scripts/setup-kueue.sh")?;
        serve_definitions(cluster, &built)?;
        let certificates = certificates(folder)?;
        let config = json!({
            "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
            "health": { "healthProbeBindAddress": "0" }, "metrics": { "bindAddress": "0" },
            "leaderElection": { "leaderElect": false },
            "internalCertManagement": { "enable": false },
            // This feature runs an API server, which would need more certificates.
            "featureGates": { "VisibilityOnDemand": false },
            "webhook": { "port": free_port()?, "certDir": certificates },
            "integrations": { "frameworks": ["batch/job"], "externalFrameworks": ["VarunaJob.v1alpha1.varuna.dev"] },
        });
        let file = folder.join("kueue.yaml");
        std::fs::write(&file, config.to_string())?;
        let log = folder.join("kueue.log");
        let output = File::create(&log)?;
        let process = Command::new(built.join("manager"))
            .arg("--config")
            .arg(file)
            .env("KUBECONFIG", cluster.kubeconfig())
            .env("METRICS_CERTS", certificates)
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("Kueue's controller")?;
        Ok(KueueController { process, log })
    }

    /// The last lines of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        log_tail(&self.log)
    }
}

/// Objects with the namespace's name: a flavour, and a ClusterQueue with this many GPUs, in which a job of higher priority preempts others.
/// Also the LocalQueue `team-a` in this namespace.
#[must_use]
pub fn kueue_queues(namespace: &str, gpus: u32, node_labels: &Value) -> Vec<Value> {
    let api = "kueue.x-k8s.io/v1beta2";
    let quota = |name: &str, amount: &str| json!({ "name": name, "nominalQuota": amount });
    let gpus = gpus.to_string();
    let flavors = json!([{ "name": namespace, "resources": [quota("cpu", "64"), quota("memory", "64Gi"), quota("nvidia.com/gpu", &gpus)] }]);
    let group = json!({ "coveredResources": ["cpu", "memory", "nvidia.com/gpu"], "flavors": flavors });
    vec![
        json!({ "apiVersion": api, "kind": "ResourceFlavor", "metadata": { "name": namespace }, "spec": { "nodeLabels": node_labels } }),
        json!({ "apiVersion": api, "kind": "ClusterQueue", "metadata": { "name": namespace },
            "spec": { "namespaceSelector": {}, "resourceGroups": [group], "preemption": { "withinClusterQueue": "LowerPriority" } } }),
        json!({ "apiVersion": api, "kind": "LocalQueue", "metadata": { "name": "team-a", "namespace": namespace },
            "spec": { "clusterQueue": namespace } }),
    ]
}

/// Applies Kueue's own definitions and waits until they are served: otherwise the controller would end.
fn serve_definitions(cluster: &Cluster, built: &Path) -> Result<()> {
    let definitions = built.join("definitions");
    let definitions = definitions.to_string_lossy();
    cluster.kubectl(&["apply", "--server-side", "-f", &definitions], "")?;
    let wait = [
        "wait",
        "--for=condition=Established",
        "--timeout=180s",
        "-f",
        &definitions,
    ];
    cluster.kubectl(&wait, "")?;
    Ok(())
}

/// A port that no process listens on. The controller has no setting that would let it choose a free port.
fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port())
}

/// A certificate for the webhook server, which gets no requests.
fn certificates(folder: &Path) -> Result<String> {
    let identity = Identity::self_signed()?;
    let to = folder.join("certificates");
    std::fs::create_dir(&to)?;
    std::fs::write(to.join("tls.crt"), identity.certificate)?;
    std::fs::write(to.join("tls.key"), identity.key)?;
    Ok(to.to_string_lossy().into_owned())
}
