//! Single pods that end: deleted by hand, killed, evicted, preempted, or removed by a smaller `maxWorkers`.

use super::{CaseRun, process_of};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::ResourceExt;
use kube::api::EvictParams;
use nix::sys::signal::{Signal, kill};
use serde_json::json;
use varuna_cluster_tests::eventually;

impl CaseRun<'_> {
    pub(super) async fn pod_deleted(&mut self) -> Result<()> {
        let (before, pod) = (self.job.now()?, self.first_pod().await?);
        self.kubectl(&["-n", &self.job.namespace, "delete", "pod", &pod, "--wait=false"])?;
        self.replaced(&before, &pod).await
    }

    pub(super) async fn worker_killed(&mut self) -> Result<()> {
        let pods = self.job.pods().await?;
        let pod = pods.first().context("a pod")?;
        let before = self.job.now()?;
        kill(process_of(pod, "varuna-worker")?, Signal::SIGKILL)?;
        self.replaced(&before, &pod.name_any()).await
    }

    pub(super) async fn two_workers_a_pod(&mut self) -> Result<()> {
        let pods = self.job.pods().await?;
        ensure!(pods.len() == 2, "{} pods for four workers", pods.len());
        let before = self.job.now()?;
        kill(process_of(&pods[0], "varuna-worker")?, Signal::SIGKILL)?;
        self.wait_for_next_plan(&before).await?;
        let names = |pods: &[Pod]| pods.iter().map(ResourceExt::name_any).collect::<Vec<_>>();
        let now = self.job.pods().await?;
        ensure!(names(&now) == names(&pods), "the pods stay: {:?}", names(&now));
        self.is_reported(&before).await
    }

    pub(super) async fn eviction(&mut self) -> Result<()> {
        let (before, pod) = (self.job.now()?, self.first_pod().await?);
        let pods: Api<Pod> = Api::namespaced(self.job.client.clone(), &self.job.namespace);
        pods.evict(&pod, &EvictParams::default()).await?;
        self.replaced(&before, &pod).await?;
        self.job.event("WorkerPreempted", &pod).await
    }

    pub(super) async fn preemption(&mut self) -> Result<()> {
        let before = self.job.now()?;
        let namespace = self.job.namespace.clone();
        let class = format!("urgent-{namespace}");
        let document = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": class }, "value": 1000,
        });
        self.world
            .cluster
            .kubectl(&["apply", "-f", "-"], &document.to_string())?;
        // More than is free: 4 of 8 GPUs are used.
        for name in ["urgent-1", "urgent-2"] {
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
                "spec": {
                    "priorityClassName": class, "terminationGracePeriodSeconds": 1,
                    "containers": [{ "name": "c", "image": "localhost/pause:1", "resources": { "limits": { "nvidia.com/gpu": "3" } } }],
                },
            });
            self.world
                .cluster
                .kubectl(&["-n", &namespace, "apply", "-f", "-"], &pod.to_string())?;
        }
        self.job.event("Run", "is about to end").await?;
        self.job.event("WorkerPreempted", "PreemptionByScheduler").await?;
        let fewer = self
            .job
            .until("training goes on with two workers", |l| {
                l.phase() == "Training" && l.members() == 2 && l.step() > before.step()
            })
            .await?;
        let message = fewer.status["message"].as_str().unwrap_or("");
        eventually("the job says that pods wait", || async {
            let status = self.job.now()?.status;
            let degraded = status["conditions"]
                .as_array()
                .and_then(|c| c.iter().find(|c| c["type"] == "Degraded").cloned());
            let degraded = degraded.context("a condition Degraded")?;
            ensure!(
                degraded["reason"] == "PodsCannotBeScheduled",
                "{message} {degraded}"
            );
            Ok(())
        })
        .await?;
        self.kubectl(&[
            "-n",
            &namespace,
            "delete",
            "pod",
            "urgent-1",
            "urgent-2",
            "--wait=false",
        ])?;
        self.job.trains(4).await?;
        self.kubectl(&["delete", "priorityclass", &class])?;
        self.is_reported(&before).await
    }

    pub(super) async fn scale(&mut self) -> Result<()> {
        let before = self.job.now()?;
        let namespace = self.job.namespace.clone();
        self.kubectl(&["-n", &namespace, "scale", "vj/j", "--replicas=2"])?;
        self.job.trains(2).await?;
        ensure!(self.job.pods().await?.len() == 2, "pods stay");
        self.kubectl(&["-n", &namespace, "scale", "vj/j", "--replicas=4"])?;
        self.job.trains(4).await?;
        self.is_reported(&before).await
    }
}
