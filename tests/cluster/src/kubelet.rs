//! Does what a kubelet does for the worker pods of a namespace: it runs a real worker process for each pod that has a node.
//!
//! When a pod is deleted, its process gets SIGTERM, and the pod is removed when the process has ended. When a process ends, the pod's
//! status shows how. The Service's address cannot be reached from here, so a proxy takes its place. It follows the EndpointSlice, as
//! kube-proxy does.

use crate::{documents, observed};
use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use varuna_operator::decide::objects::{NUMBER_LABEL, coordinator_name, token_name};

/// Interval at which pods are read.
const EVERY: Duration = Duration::from_millis(200);

/// The configuration of the processes.
pub struct Kubelet {
    client: Client,
    namespace: String,
    job: String,
    /// Path of the worker binary.
    worker: PathBuf,
    /// The dataset, without .bin and .idx.
    data: PathBuf,
    /// Folder for logs.
    folder: PathBuf,
    processes: Processes,
    /// Interval at which pods are read.
    pub every: Duration,
    /// Address of the proxy for the coordinator's Service.
    service: SocketAddr,
}

/// Worker processes by the name of their pod.
#[derive(Clone, Default)]
pub struct Processes(Arc<Mutex<BTreeMap<String, Child>>>);

impl Processes {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Child>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills a pod's process with SIGKILL.
    ///
    /// # Errors
    /// The pod has no process.
    pub fn kill(&self, pod: &str) -> Result<()> {
        Ok(self.all().get_mut(pod).context("no process")?.kill()?)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        for process in self.processes.all().values_mut() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Kubelet {
    /// A kubelet for the pods of one job.
    ///
    /// # Errors
    /// No port is free.
    pub async fn new(
        client: Client,
        namespace: &str,
        job: &str,
        worker: PathBuf,
        data: PathBuf,
        folder: PathBuf,
    ) -> Result<Kubelet> {
        let (namespace, job) = (namespace.to_owned(), job.to_owned());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let service = listener.local_addr()?;
        tokio::spawn(proxy(listener, client.clone(), namespace.clone(), job.clone()));
        Ok(Kubelet {
            client,
            namespace,
            job,
            worker,
            data,
            folder,
            processes: Processes::default(),
            every: EVERY,
            service,
        })
    }

    /// The processes, for tests that kill one.
    #[must_use]
    pub fn processes(&self) -> Processes {
        self.processes.clone()
    }

    /// Runs until it is aborted.
    pub async fn work(mut self) {
        loop {
            // A failure is retried in the next round: the API server may be busy.
            if let Err(error) = self.reconcile().await {
                eprintln!("kubelet: {error:#}");
            }
            tokio::time::sleep(self.every).await;
        }
    }

    async fn reconcile(&mut self) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        for pod in pods.list(&ListParams::default().labels(NUMBER_LABEL)).await? {
            let name = pod.name_any();
            let phase = pod
                .status
                .as_ref()
                .and_then(|s| s.phase.clone())
                .unwrap_or_default();
            let bound = pod.spec.as_ref().is_some_and(|s| s.node_name.is_some());
            let deleting = pod.metadata.deletion_timestamp.is_some();
            let (known, ended) = match self.processes.all().get_mut(&name) {
                Some(process) => (true, process.try_wait()?),
                None => (false, None),
            };
            match (known, ended) {
                (true, Some(status)) => {
                    self.processes.all().remove(&name);
                    pods.patch_status(
                        &name,
                        &PatchParams::default(),
                        &Patch::Strategic(&terminated(status)),
                    )
                    .await?;
                }
                (true, None) if deleting => self.terminate(&name)?,
                (true, None) => {}
                (false, _) if deleting => {
                    let now = DeleteParams {
                        grace_period_seconds: Some(0),
                        ..DeleteParams::default()
                    };
                    pods.delete(&name, &now).await?;
                }
                (false, _) if bound && phase == "Pending" => {
                    if self.start(&name).await? {
                        let running = json!({ "status": { "phase": "Running" } });
                        pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(&running))
                            .await?;
                    }
                }
                (false, _) => {}
            }
        }
        Ok(())
    }

    fn terminate(&self, name: &str) -> Result<()> {
        if let Some(process) = self.processes.all().get(name) {
            kill(Pid::from_raw(i32::try_from(process.id())?), Signal::SIGTERM)?;
        }
        Ok(())
    }

    /// Starts a pod's process. Returns false if the coordinator has no address yet.
    async fn start(&mut self, name: &str) -> Result<bool> {
        if backend(&self.client, &self.namespace, &self.job).await.is_err() {
            return Ok(false);
        }
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let job = observed(&self.client, &self.namespace, &self.job).await?;
        let secret = secrets.get(&token_name(&job)).await?;
        let mut data = secret.data.context("credentials")?;
        let mut text = |key: &str| -> Result<String> {
            let value = data.remove(key).with_context(|| key.to_owned())?;
            Ok(String::from_utf8(value.0)?)
        };
        let log = std::fs::File::create(self.folder.join(format!("{name}.log")))?;
        let process = Command::new(&self.worker)
            .arg("--data")
            .arg(&self.data)
            .env("VARUNA_COORDINATOR", self.service.to_string())
            .env("VARUNA_TOKEN", text("token")?)
            .env("VARUNA_CERTIFICATE", text("tls.crt")?)
            .env("VARUNA_WORKER_NAME", name)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.worker.display()))?;
        self.processes.all().insert(name.to_owned(), process);
        Ok(true)
    }
}

/// The port of the coordinator that is in charge of the job now.
async fn backend(client: &Client, namespace: &str, job: &str) -> Result<u16> {
    let slices = documents(client, namespace, &ApiResource::erase::<EndpointSlice>(&()));
    let job = observed(client, namespace, job).await?;
    let slice = slices.get(&coordinator_name(&job)).await?;
    let port = slice.data["ports"][0]["port"].as_u64().context("a port")?;
    Ok(u16::try_from(port)?)
}

/// Does what kube-proxy does for the coordinator's Service: forwards each connection to the address in the EndpointSlice.
async fn proxy(listener: TcpListener, client: Client, namespace: String, job: String) {
    while let Ok((mut from, _)) = listener.accept().await {
        let (client, namespace, job) = (client.clone(), namespace.clone(), job.clone());
        tokio::spawn(async move {
            // If there is no connection to the coordinator, this one is closed, and the worker retries.
            if let Ok(port) = backend(&client, &namespace, &job).await
                && let Ok(mut to) = TcpStream::connect(("127.0.0.1", port)).await
            {
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            }
        });
    }
}

fn terminated(status: ExitStatus) -> serde_json::Value {
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    let (phase, reason) = if code == 0 {
        ("Succeeded", "Completed")
    } else {
        ("Failed", "Error")
    };
    let now = Timestamp::now().to_string();
    json!({ "status": { "phase": phase, "containerStatuses": [{
        "name": "worker", "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
        "state": { "terminated": { "exitCode": code, "reason": reason, "startedAt": now, "finishedAt": now } },
    }] } })
}
