//! Kueue in a cluster of tests: its definitions, and its own controller where that has been built.

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

/// A resource of Kueue, in the version that its definitions here serve.
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

/// The folder of Kueue's own controller and of its definitions: `VARUNA_KUEUE`, or where `scripts/setup-kueue.sh` puts them. None where it was not built.
#[must_use]
pub fn built_kueue() -> Option<PathBuf> {
    let given = std::env::var_os("VARUNA_KUEUE").map(PathBuf::from);
    let folder = given.unwrap_or_else(|| root().join(".cache/kueue"));
    folder.join("manager").exists().then_some(folder)
}

/// Kueue's own controller, as a process; it ends with this.
pub struct KueueController {
    process: Child,
    log: PathBuf,
}

impl Drop for KueueController {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl KueueController {
    /// Installs Kueue's definitions and starts its controller without its webhooks: they check and complete what nobody here gets wrong. `folder`: an empty one
    /// for its certificate, its configuration and its log.
    ///
    /// # Errors
    /// It was not built, or does not start.
    pub fn start(cluster: &Cluster, folder: &Path) -> Result<KueueController> {
        let built = built_kueue().context("Kueue's controller is missing, see scripts/setup-kueue.sh")?;
        serve_definitions(cluster, &built)?;
        let certificates = certificates(folder)?;
        let config = json!({
            "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
            "health": { "healthProbeBindAddress": "0" }, "metrics": { "bindAddress": "0" },
            "leaderElection": { "leaderElect": false },
            "internalCertManagement": { "enable": false },
            // An API server of its own, which wants more certificates.
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

/// A flavour, a ClusterQueue with so many GPUs, and the LocalQueue `team-a` in this namespace; the first two have the namespace's name. A job of higher priority
/// takes the quota of others.
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

/// Applies Kueue's own definitions and waits for them: the controller ends where they are not served yet.
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

/// One that nobody listens on: the controller takes no other way to name a free one.
fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port())
}

/// A certificate of which nobody asks anything.
fn certificates(folder: &Path) -> Result<String> {
    let identity = Identity::self_signed()?;
    let to = folder.join("certificates");
    std::fs::create_dir(&to)?;
    std::fs::write(to.join("tls.crt"), identity.certificate)?;
    std::fs::write(to.join("tls.key"), identity.key)?;
    Ok(to.to_string_lossy().into_owned())
}
