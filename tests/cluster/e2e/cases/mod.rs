//! The cases: what happens to a job, and what must be true afterwards.

mod bad;
mod groups;
mod ipv6;
mod jobs;
mod monitoring;
mod nodes;
mod pods;
mod queues;
mod table;
mod templates;
mod tenants;
mod upgrades;

pub(crate) use table::{CASES, Case};

use crate::curve::Curve;
use crate::job::{Job, Observation, spec};
use crate::world::{Need, QUOTA, World};
use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use nix::unistd::Pid;
use serde_json::json;

/// One case with its job.
struct CaseRun<'a> {
    world: &'a mut World,
    job: Job,
}

/// Runs one case on a job of its own.
///
/// # Errors
/// Something was not as it must be.
pub(crate) async fn run(case: &Case, world: &mut World, curve: &mut Curve) -> Result<()> {
    let mut document = spec("j");
    if case.needs.contains(&Need::Bucket) {
        document = world.with_checkpoints(document, case.name);
    }
    let nodes = [
        "node-cut",
        "kubelet-killed",
        "containerd-killed",
        "spot-taint",
        "node-announced",
        "eight-workers",
        "drain",
        "worker-groups",
    ];
    if nodes.contains(&case.name) {
        // Half of the workers are lost at the same time. With one stage in each pipeline, every remaining worker holds everything.
        document["spec"]["pipeline"] = json!({ "maxDepth": 1 });
    }
    if case.name == "eight-workers" {
        document["spec"]["elasticity"] = json!({ "minWorkers": 2, "maxWorkers": 8 });
    }
    if case.name == "worker-groups" {
        document["spec"]["workerGroups"] = groups::spot_and_on_demand();
    }
    if case.name == "two-workers-a-pod" {
        document["spec"]["workers"]["gpusPerPod"] = json!(2);
    }
    if matches!(case.name, "sidecar" | "two-workers-a-pod") {
        let sidecar = json!({ "name": "sidecar", "image": "localhost/pause:1" });
        document["spec"]["workers"]["template"] = json!({ "spec": { "containers": [sidecar] } });
    }
    if case.name == "kueue" {
        queues::in_queue(&mut document);
    }
    if case.name == "ipv6" {
        ipv6::spread_workers_and_limit_steps(&mut document);
    }
    if case.name == "coordinator-cut" {
        // All workers of this case are on the other node.
        document["spec"]["coordinator"]["template"]["spec"] =
            json!({ "nodeSelector": { "varuna.dev/node": "t4" } });
        document["spec"]["workers"]["template"] =
            json!({ "spec": { "nodeSelector": { "varuna.dev/node": "t3" } } });
    }
    let job = world.job(case.name, document).await?;
    let namespace = job.namespace.clone();
    let mut case_run = CaseRun { world, job };
    let result = case_run.run_case(case).await;
    curve.extend(case.name, case_run.job.losses());
    if let Err(error) = result {
        let folder = case_run.world.save_diagnostics(case.name, &namespace).await;
        if case_run.world.first_failure.is_none() {
            case_run.world.first_failure = Some(case_run.world.summary().await);
        }
        case_run.delete_job(&namespace);
        return Err(error.context(format!("see {}", folder.display())));
    }
    case_run.delete_job(&namespace);
    Ok(())
}

impl CaseRun<'_> {
    async fn run_case(&mut self, case: &Case) -> Result<()> {
        let members = match case.name {
            "eight-workers" => 8,
            "kueue" => QUOTA.into(),
            _ => 4,
        };
        self.job.trains(members).await?;
        match case.name {
            "pod-deleted" => self.pod_deleted().await?,
            "worker-killed" => self.worker_killed().await?,
            "eviction" => self.eviction().await?,
            "preemption" => self.preemption().await?,
            "spot-taint" => self.spot_taint().await?,
            "node-announced" => self.node_announced().await?,
            "eight-workers" => self.eight_workers().await?,
            "drain" => self.drain().await?,
            "scale" => self.scale().await?,
            "node-cut" => self.node_cut().await?,
            "kubelet-killed" => self.kubelet_killed().await?,
            "containerd-killed" => self.containerd_killed().await?,
            "leader-killed" => self.leader_killed().await?,
            "coordinator-killed" => self.coordinator_killed().await?,
            "coordinator-evicted" => self.coordinator_evicted().await?,
            "coordinator-cut" => self.coordinator_cut().await?,
            "operator-gone" => self.operator_gone().await?,
            "api-down" => self.api_down().await?,
            "suspend" => return self.suspend().await,
            "all-gone" => return self.all_gone().await,
            "store-down" => self.store_down().await?,
            "bad-input" => self.bad_input().await?,
            "monitoring" => self.monitoring().await?,
            "two-tenants" => self.two_tenants().await?,
            "upgrade" => self.upgrade().await?,
            "sidecar" => self.worker_killed().await?,
            "two-workers-a-pod" => self.two_workers_a_pod().await?,
            "rejected" => self.rejected().await?,
            "image-corrected" => self.image_corrected().await?,
            "rolling-update" => self.rolling_update().await?,
            "suspend-refused" => self.suspend_refused().await?,
            "name-taken" => self.name_taken().await?,
            "worker-groups" => self.worker_groups().await?,
            "made-again" => return self.made_again().await,
            "kueue" => return self.kueue().await,
            "job-deleted" => self.job_deleted().await?,
            "ipv6" => self.ipv6().await?,
            other => bail!("no case is called {other}"),
        }
        self.job.check_no_step_lost()
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.world.cluster.kubectl(arguments, "")
    }

    /// Deletes the job and waits until its pods have ended, because the next case needs their GPUs. The namespace is deleted in the
    /// background.
    fn delete_job(&self, namespace: &str) {
        let gone = self.kubectl(&["-n", namespace, "delete", "vj", "--all", "--wait=false"]);
        let pods = self.kubectl(&[
            "-n",
            namespace,
            "delete",
            "pods",
            "--all",
            "--grace-period=1",
            "--timeout=60s",
        ]);
        let space = self.kubectl(&["delete", "namespace", namespace, "--wait=false"]);
        for result in [gone, pods, space] {
            if let Err(error) = result {
                eprintln!("cleaning up {namespace}: {error:#}");
            }
        }
    }

    async fn first_pod(&self) -> Result<String> {
        let pods = self.job.pods().await?;
        Ok(pods.first().context("a pod")?.name_any())
    }

    /// Waits for a plan after `before` with all four workers, and prints the time until the next step.
    async fn wait_for_next_plan(&self, before: &Observation) -> Result<()> {
        let next = self
            .job
            .until("the next step under another plan", |l| {
                l.generation() > before.generation() && l.step() > before.step()
            })
            .await?;
        println!(
            "  next plan and step seen after {:.1} s",
            (next.at - before.at).as_secs_f64()
        );
        self.job.trains(4).await?;
        Ok(())
    }

    /// Waits for such a plan, and until the pod is gone.
    async fn replaced(&self, before: &Observation, pod: &str) -> Result<()> {
        self.wait_for_next_plan(before).await?;
        let names: Vec<_> = self.job.pods().await?.iter().map(ResourceExt::name_any).collect();
        ensure!(!names.iter().any(|n| n == pod), "{pod} is still there: {names:?}");
        self.is_reported(before).await
    }

    /// Status, Events and metrics show a change since `before`.
    async fn is_reported(&self, before: &Observation) -> Result<()> {
        let count = |l: &Observation| l.status["reconfigurations"].as_i64().unwrap_or(0);
        // Workers with a notice train until their replacements have joined.
        let now = self
            .job
            .until("a reconfiguration", |l| count(l) > count(before))
            .await?;
        let newest = now.generation();
        self.job.event("Planned", &format!("plan {newest}")).await?;
        self.job.event("Resumed", "after").await?;
        let label = format!("namespace=\"{}\"", self.job.namespace);
        let generation = self.job.metric("varuna_job_generation", &[&label]).await?;
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let want = newest as f64;
        ensure!(
            generation >= want,
            "metrics tell of plan {generation}, the status of {newest}"
        );
        let recoveries = self
            .job
            .metric("varuna_recovery_duration_seconds_count", &["phase=\"total\""])
            .await?;
        ensure!(recoveries >= 1.0, "no recovery was measured");
        Ok(())
    }
}

fn node_of(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|s| s.node_name.as_deref())
        .unwrap_or("")
}

/// The process of a program in a pod on one of this machine's nodes, found by the control group that the kubelet made. The kernel keeps 15
/// characters of a program's name.
fn process_of(pod: &Pod, program: &str) -> Result<Pid> {
    let uid = pod.uid().context("a uid")?;
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Ok(id) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        if read("comm").trim() == program && read("cgroup").contains(&uid) {
            return Ok(Pid::from_raw(id));
        }
    }
    bail!("no {program} runs in pod {}", pod.name_any())
}
