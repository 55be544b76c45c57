//! The cases: what happens to a job, and what must be true afterwards.

mod bad;
mod jobs;
mod monitoring;
mod nodes;
mod pods;
mod templates;
mod tenants;
mod upgrades;

use crate::curve::Curve;
use crate::job::{Job, Observation, spec};
use crate::world::{Need, World};
use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use nix::unistd::Pid;
use serde_json::json;

/// A case.
pub(crate) struct Case {
    /// Its name.
    pub(crate) name: &'static str,
    /// What happens.
    pub(crate) about: &'static str,
    /// What it needs.
    pub(crate) needs: &'static [Need],
}

const fn case(name: &'static str, about: &'static str, needs: &'static [Need]) -> Case {
    Case { name, about, needs }
}

/// All cases, in the order in which they run.
pub(crate) const CASES: &[Case] = &[
    case("pod-deleted", "a worker's pod is deleted by hand", &[]),
    case(
        "worker-killed",
        "a worker's process is killed with -9",
        &[Need::OwnCluster],
    ),
    case("eviction", "a worker's pod is evicted", &[]),
    case(
        "preemption",
        "a pod of higher priority takes a worker's GPU",
        &[Need::OwnCluster],
    ),
    case(
        "spot-taint",
        "a node announces its end by a spot taint, and stays",
        &[Need::OwnCluster],
    ),
    case(
        "node-announced",
        "a condition of a node announces its end, and pods could still be scheduled there",
        &[Need::OwnCluster],
    ),
    case(
        "eight-workers",
        "eight workers on two nodes, of which one is drained",
        &[Need::OwnCluster],
    ),
    case("drain", "kubectl drain, then uncordon", &[Need::OwnCluster]),
    case("scale", "kubectl scale to 2 workers and back", &[]),
    case(
        "node-cut",
        "a node is cut off the network, then comes back",
        &[Need::OwnCluster],
    ),
    case(
        "kubelet-killed",
        "a node's kubelet is killed, then started again",
        &[Need::OwnCluster],
    ),
    case(
        "containerd-killed",
        "a node's containerd is killed, then started again",
        &[Need::OwnCluster],
    ),
    case(
        "leader-killed",
        "the leading operator is killed in the middle of a recovery",
        &[],
    ),
    case(
        "coordinator-killed",
        "the job's coordinator and a worker are killed with -9 at the same moment",
        &[Need::OwnCluster],
    ),
    case(
        "coordinator-evicted",
        "the pod of the job's coordinator is deleted: another one runs before it goes",
        &[],
    ),
    case(
        "coordinator-cut",
        "the node of the job's coordinator is cut off the network",
        &[Need::OwnCluster],
    ),
    case(
        "operator-gone",
        "no operator runs for two minutes, in which a worker dies",
        &[Need::OwnCluster],
    ),
    case(
        "api-down",
        "the API server does not answer for 60 s",
        &[Need::OwnCluster],
    ),
    case(
        "suspend",
        "suspended, then resumed from the checkpoint",
        &[Need::Bucket],
    ),
    case(
        "all-gone",
        "all workers go at once and come back: resumed from the bucket",
        &[Need::Bucket],
    ),
    case(
        "store-down",
        "the bucket does not answer for a while",
        &[Need::Bucket],
    ),
    case(
        "bad-input",
        "jobs that cannot run say why, and disturb nobody",
        &[Need::Bucket],
    ),
    case(
        "monitoring",
        "a Prometheus scrapes the run: each query of the dashboard gives data, each alert is evaluated",
        &[Need::Bucket, Need::Prometheus],
    ),
    case(
        "two-tenants",
        "two namespaces with a bucket each: neither opens the other's",
        &[Need::Bucket],
    ),
    case(
        "upgrade",
        "helm upgrade to a build that speaks a newer version, coordinator and workers one by one, and back",
        &[Need::OwnCluster, Need::NextImages],
    ),
    case(
        "sidecar",
        "a worker beside a sidecar is killed with -9: its pod is replaced although it still runs",
        &[Need::OwnCluster],
    ),
    case(
        "two-workers-a-pod",
        "pods have two workers and a sidecar, and one worker is killed with -9: it is started again in its pod",
        &[Need::OwnCluster],
    ),
    case(
        "rejected",
        "the kubelets reject the job's pods: no hot loop, and the job says why",
        &[Need::OwnCluster],
    ),
    case(
        "image-corrected",
        "an image that does not exist is corrected",
        &[],
    ),
    case(
        "rolling-update",
        "the template changes while the job trains: all pods are replaced, and no step is lost",
        &[],
    ),
    case(
        "suspend-refused",
        "a job without checkpoints is not suspended, and trains on",
        &[],
    ),
    case(
        "name-taken",
        "somebody's pod has a name that a job needs: it is left alone and named, and the job goes on when it is gone",
        &[],
    ),
    case(
        "made-again",
        "the job is deleted and made again at once: it begins at its first step",
        &[],
    ),
    case("job-deleted", "the job is deleted: nothing of it is left", &[]),
];

/// One case with its job.
struct CaseRun<'a> {
    world: &'a mut World,
    job: Job,
}

/// Runs one case on a job of its own.
///
/// # Errors
/// What was not as it must be.
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
    ];
    if nodes.contains(&case.name) {
        // Half of the workers go at once: with one stage each, whoever is left holds everything.
        document["spec"]["pipeline"] = json!({ "maxDepth": 1 });
    }
    if case.name == "eight-workers" {
        document["spec"]["elasticity"] = json!({ "minWorkers": 2, "maxWorkers": 8 });
    }
    if case.name == "two-workers-a-pod" {
        document["spec"]["workers"]["gpusPerPod"] = json!(2);
    }
    if matches!(case.name, "sidecar" | "two-workers-a-pod") {
        let sidecar = json!({ "name": "sidecar", "image": "localhost/pause:1" });
        document["spec"]["workers"]["template"] = json!({ "spec": { "containers": [sidecar] } });
    }
    if case.name == "coordinator-cut" {
        // Its workers are all on the other node.
        document["spec"]["coordinator"]["template"]["spec"] =
            json!({ "nodeSelector": { "varuna.dev/node": "t4" } });
        document["spec"]["workers"]["template"] =
            json!({ "spec": { "nodeSelector": { "varuna.dev/node": "t3" } } });
    }
    let job = world.job(case.name, document).await?;
    let namespace = job.namespace.clone();
    let mut case_run = CaseRun { world, job };
    let result = case_run.play(case).await;
    curve.extend(case.name, case_run.job.losses());
    if let Err(error) = result {
        let folder = case_run.world.save_diagnostics(case.name, &namespace).await;
        if case_run.world.first_failure.is_none() {
            case_run.world.first_failure = Some(case_run.world.summary().await);
        }
        case_run.tidy(&namespace);
        return Err(error.context(format!("see {}", folder.display())));
    }
    case_run.tidy(&namespace);
    Ok(())
}

impl CaseRun<'_> {
    async fn play(&mut self, case: &Case) -> Result<()> {
        let members = if case.name == "eight-workers" { 8 } else { 4 };
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
            "made-again" => return self.made_again().await,
            "job-deleted" => self.job_deleted().await?,
            other => bail!("no case is called {other}"),
        }
        self.job.never_fell()
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.world.cluster.kubectl(arguments, "")
    }

    /// Ends the job and waits for its pods, which hold GPUs that the next case counts on; the namespace goes when it likes.
    fn tidy(&self, namespace: &str) {
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

    /// Waits for a plan after `before` with all four workers, and says how long it took to the next step.
    async fn goes_on(&self, before: &Observation) -> Result<()> {
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

    /// The same, and the pod is gone.
    async fn replaced(&self, before: &Observation, pod: &str) -> Result<()> {
        self.goes_on(before).await?;
        let names: Vec<_> = self.job.pods().await?.iter().map(ResourceExt::name_any).collect();
        ensure!(!names.iter().any(|n| n == pod), "{pod} is still there: {names:?}");
        self.is_reported(before).await
    }

    /// Status, Events and metrics tell of a change since then.
    async fn is_reported(&self, before: &Observation) -> Result<()> {
        let count = |l: &Observation| l.status["reconfigurations"].as_i64().unwrap_or(0);
        // Workers on notice train on until their replacements are there.
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

/// The process of a program in a pod of a node on this machine, by the control group that its kubelet made. The kernel keeps 15 characters of
/// a program's name.
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
