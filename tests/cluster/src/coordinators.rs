//! Runs the coordinators of a namespace's jobs in the process of the test, with the coordinator's own code, in place of kubelets.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use varuna_cluster_coordinator::run::{Configuration, run};
use varuna_coordinator::Identity;
use varuna_operator::decide::objects::{COORDINATOR_LABEL, JOB_LABEL};

/// Interval at which pods are read.
const EVERY: Duration = Duration::from_millis(100);
/// If reading the pods takes long, as with very many pods, the interval is at least this many times as long.
const PAUSE: u32 = 20;
/// A deleted coordinator continues for this many reads of the pods, or until another one is in charge.
const GRACE: u32 = 100;
/// The coordinators do not listen at this address. An EndpointSlice must not contain a loopback address.
const ADDRESS: &str = "192.0.2.1";

/// The coordinators of a namespace's jobs. They end when this is dropped.
pub struct Coordinators(JoinHandle<()>);

impl Drop for Coordinators {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs the coordinators of a namespace's jobs, for all pods that the operator creates for them. The coordinators have the rights of `own`;
/// pods are read and their status is set with the rights of `client`.
#[must_use]
pub fn coordinators(client: &Client, own: Client, namespace: &str, folder: &Path) -> Coordinators {
    let mut kubelet = Kubelet {
        client: client.clone(),
        own,
        namespace: namespace.to_owned(),
        folder: folder.to_owned(),
        running: BTreeMap::new(),
    };
    Coordinators(tokio::spawn(async move {
        loop {
            let began = Instant::now();
            // A failure is retried in the next round: the API server may be busy.
            if let Err(error) = kubelet.reconcile().await {
                eprintln!("coordinators: {error:#}");
            }
            tokio::time::sleep(EVERY.max(began.elapsed() * PAUSE)).await;
        }
    }))
}

struct Kubelet {
    client: Client,
    own: Client,
    namespace: String,
    folder: PathBuf,
    running: BTreeMap<String, Running>,
}

/// One coordinator. It ends when dropped.
struct Running {
    task: JoinHandle<Result<(), varuna_cluster_coordinator::error::Error>>,
    /// Number of times that the pods were read since it was deleted.
    deleted: u32,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Kubelet {
    async fn reconcile(&mut self) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let all = pods
            .list(&ListParams::default().labels(COORDINATOR_LABEL))
            .await?
            .items;
        self.running
            .retain(|name, _| all.iter().any(|pod| pod.name_any() == *name));
        for pod in all {
            let name = pod.name_any();
            let phase = pod
                .status
                .as_ref()
                .and_then(|s| s.phase.as_deref())
                .unwrap_or("Pending");
            let deleting = pod.metadata.deletion_timestamp.is_some();
            match self.running.get_mut(&name) {
                Some(running) if running.task.is_finished() => {
                    self.running.remove(&name);
                    set_status(&pods, &name, ended()).await?;
                }
                Some(running) if deleting => {
                    running.deleted += 1;
                    if running.deleted > GRACE {
                        self.running.remove(&name);
                    }
                }
                Some(_) => {}
                None if deleting => {
                    let now = DeleteParams {
                        grace_period_seconds: Some(0),
                        ..DeleteParams::default()
                    };
                    pods.delete(&name, &now).await?;
                }
                None if phase == "Pending" => {
                    let task = tokio::spawn(run(self.own.clone(), self.configuration(&pod).await?));
                    self.running.insert(name.clone(), Running { task, deleted: 0 });
                    set_status(&pods, &name, json!({ "phase": "Running" })).await?;
                }
                None => {}
            }
        }
        Ok(())
    }

    /// The configuration that the pod gives the program.
    async fn configuration(&self, pod: &Pod) -> Result<Configuration> {
        let spec = pod.spec.as_ref().context("a spec")?;
        let container = &spec.containers[0];
        let arguments = container.args.clone().unwrap_or_default();
        let argument = |name: &str| {
            let at = arguments.iter().position(|a| a == name);
            at.and_then(|at| arguments.get(at + 1)).context(name.to_owned())
        };
        let secret = spec
            .volumes
            .iter()
            .flatten()
            .find_map(|v| v.secret.as_ref()?.secret_name.clone());
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut data = secrets
            .get(&secret.context("credentials")?)
            .await?
            .data
            .unwrap_or_default();
        let mut text = |key: &str| -> Result<String> {
            let value = data.remove(key).with_context(|| key.to_owned())?;
            Ok(String::from_utf8(value.0)?)
        };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Ok(Configuration {
            namespace: self.namespace.clone(),
            job: pod.labels()[JOB_LABEL].clone(),
            run: argument("--run")?.clone(),
            number: argument("--number")?.parse()?,
            token: text("token")?,
            identity: Some(Identity {
                certificate: text("tls.crt")?,
                key: text("tls.key")?,
            }),
            address: ADDRESS.parse()?,
            bind: any,
            health: any,
            receiver: None,
            folder: self.folder.join(pod.name_any()),
        })
    }
}

async fn set_status(pods: &Api<Pod>, name: &str, status: serde_json::Value) -> Result<()> {
    let patch = Patch::Strategic(json!({ "status": status }));
    pods.patch_status(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

fn ended() -> serde_json::Value {
    let now = Timestamp::now().to_string();
    json!({ "phase": "Succeeded", "containerStatuses": [{
        "name": "coordinator", "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
        "state": { "terminated": { "exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now } },
    }] })
}
