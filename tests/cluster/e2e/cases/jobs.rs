//! Events that affect the job as a whole, and its operator.

use super::{CaseRun, process_of};
use crate::job::Observation;
use crate::takeover::{AFTER_KILL_MAX, within};
use crate::world::OPERATOR;
use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use varuna_cluster_tests::{eventually, jobs};
use varuna_operator::decide::objects::COORDINATOR_LABEL;

/// Variable with the time without an operator in seconds, to shorten the case. Default: ten minutes.
const ABSENCE: &str = "VARUNA_E2E_OPERATOR_GONE_SECONDS";

/// How long no operator runs in the case operator-gone.
fn operator_absence() -> Result<Duration> {
    let seconds = match std::env::var(ABSENCE) {
        Ok(seconds) => seconds
            .parse()
            .with_context(|| format!("{ABSENCE}: {seconds} — seconds, 60 to 3600"))?,
        Err(_) => 600,
    };
    // After the recovery the coordinator reports steps within 15 s, and again after 30 s: a minute is enough to see them.
    ensure!(
        (60..=3600).contains(&seconds),
        "{ABSENCE}: {seconds} — seconds, 60 to 3600"
    );
    Ok(Duration::from_secs(seconds))
}

impl CaseRun<'_> {
    pub(super) async fn leader_killed(&mut self) -> Result<()> {
        let (before, leader) = (self.job.now()?, self.world.leader()?);
        let pod = self.first_pod().await?;
        let namespace = self.job.namespace.clone();
        self.kubectl(&[
            "-n",
            &namespace,
            "delete",
            "pod",
            &pod,
            "--grace-period=0",
            "--force",
            "--wait=false",
        ])?;
        self.kubectl(&[
            "-n",
            OPERATOR,
            "delete",
            "pod",
            &leader,
            "--grace-period=0",
            "--force",
            "--wait=false",
        ])?;
        eventually("another operator leads", || async {
            let now = self.world.leader()?;
            ensure!(now != leader, "{now} leads");
            Ok(())
        })
        .await?;
        let taken = self
            .job
            .until("the new leader knows the job and its recovery", |l| {
                l.step() > before.step() && l.generation() > before.generation()
            })
            .await?;
        println!(
            "  the next step was seen after {:.1} s",
            (taken.at - before.at).as_secs_f64()
        );
        self.job.trains(4).await?;
        ensure!(
            self.coordinator_number().await? == 1,
            "the coordinator was replaced"
        );
        Ok(())
    }

    async fn coordinator_number(&self) -> Result<i64> {
        Ok(self.job.coordinator().await?.labels()[COORDINATOR_LABEL].parse()?)
    }

    /// Kills the coordinator's process and a worker's process at the same time.
    pub(super) async fn coordinator_killed(&mut self) -> Result<()> {
        let before = self.job.now()?;
        let pods = self.job.pods().await?;
        let worker = process_of(pods.first().context("a pod")?, "varuna-worker")?;
        let coordinator = process_of(&self.job.coordinator().await?, "varuna-coordina")?;
        let began = Instant::now();
        kill(coordinator, Signal::SIGKILL)?;
        kill(worker, Signal::SIGKILL)?;
        let took = self.job.wait_for_leader(2, began).await?;
        self.wait_for_next_plan(&before).await?;
        ensure!(self.coordinator_number().await? == 2, "which coordinator leads?");
        within("operator.coordinator_replaced_s", took, AFTER_KILL_MAX)
    }

    /// The pod of the coordinator is evicted: another one runs before it ends.
    pub(super) async fn coordinator_evicted(&mut self) -> Result<()> {
        let namespace = self.job.namespace.clone();
        let pod = self.job.coordinator().await?.name_any();
        self.kubectl(&["-n", &namespace, "delete", "pod", &pod, "--wait=false"])?;
        self.job
            .event("Run", "this coordinator leads the run now (term 2)")
            .await?;
        self.job.trains(4).await?;
        ensure!(self.coordinator_number().await? == 2, "which coordinator leads?");
        Ok(())
    }

    /// No operator runs for ten minutes, and a worker dies during this time.
    pub(super) async fn operator_gone(&mut self) -> Result<()> {
        let before = self.job.now()?;
        let scale = |replicas: &str| {
            let replicas = format!("--replicas={replicas}");
            let deployment = "deployment/v-varuna-operator";
            self.kubectl(&["-n", OPERATOR, "scale", deployment, &replicas])
        };
        scale("0")?;
        let reported = self.without_operator(&before).await;
        // Later cases need the operator.
        scale("2")?;
        let reported = reported?;
        self.job
            .until("the operator knows the step", |l| l.step() >= reported)
            .await?;
        self.wait_for_next_plan(&before).await?;
        ensure!(
            self.coordinator_number().await? == 1,
            "the coordinator was replaced"
        );
        Ok(())
    }

    /// A worker dies while no operator runs. Returns the step that is reported at the end of this time.
    async fn without_operator(&self, before: &Observation) -> Result<i64> {
        eventually("no operator runs", || async {
            let left = self.world.operators().await?.len();
            ensure!(left == 0, "{left} run");
            Ok(())
        })
        .await?;
        let pods = self.job.pods().await?;
        kill(
            process_of(pods.first().context("a pod")?, "varuna-worker")?,
            Signal::SIGKILL,
        )?;
        // The length of this time is the purpose of the case.
        let absence = operator_absence()?;
        tokio::time::sleep(absence).await;
        let reported = self.job.run_step().await?;
        println!(
            "  {} steps were reported within {} s",
            reported - before.step(),
            absence.as_secs()
        );
        ensure!(reported > before.step() + 100, "only up to step {reported}");
        Ok(reported)
    }

    pub(super) async fn api_down(&mut self) -> Result<()> {
        let before = self.job.now()?;
        let server = self
            .world
            .cluster
            .component("kube-apiserver")
            .context("the API server's process")?;
        let names: Vec<_> = self.job.pods().await?.iter().map(ResourceExt::name_any).collect();
        let processes: Vec<Pid> = self
            .job
            .pods()
            .await?
            .iter()
            .filter_map(|p| process_of(p, "varuna-worker").ok())
            .collect();
        ensure!(processes.len() == 4, "{} workers", processes.len());
        kill(server, Signal::SIGSTOP)?;
        // The length of the outage is the purpose of the case.
        tokio::time::sleep(Duration::from_secs(60)).await;
        kill(server, Signal::SIGCONT)?;
        let resumed = Instant::now();
        let back = self
            .job
            .until("the status follows again", |l| {
                // The observation must be newer than the outage.
                l.at > resumed && l.step() > before.step() && l.phase() == "Training" && l.members() == 4
            })
            .await?;
        let trained = back.step() - before.step();
        println!("  {trained} steps were trained while the API server was down");
        ensure!(trained > 30, "only {trained} steps in 60 s");
        for process in processes {
            kill(process, None).context("a worker ended while the API server was down")?;
        }
        self.job.trains(4).await?;
        let now: Vec<_> = self.job.pods().await?.iter().map(ResourceExt::name_any).collect();
        ensure!(now == names, "pods were replaced: {names:?} then {now:?}");
        ensure!(
            self.coordinator_number().await? == 1,
            "the coordinator was replaced"
        );
        Ok(())
    }

    async fn set_suspend(&self, suspend: bool) -> Result<()> {
        let patch: Value = json!({ "spec": { "suspend": suspend } });
        jobs(&self.job.client, &self.job.namespace)
            .patch("j", &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok(())
    }

    /// Waits for the first checkpoint.
    pub(super) async fn saved(&self) -> Result<Observation> {
        self.job
            .until("a checkpoint", |l| {
                l.status["checkpoint"]["newestStep"].as_i64().unwrap_or(0) > 0
            })
            .await
    }

    pub(super) async fn suspend(&mut self) -> Result<()> {
        self.saved().await?;
        let asked = self.job.now()?.step();
        self.set_suspend(true).await?;
        let rests = self
            .job
            .until("the job rests", |l| l.phase() == "Suspended")
            .await?;
        eventually("all pods are gone", || async {
            ensure!(self.job.pods().await?.is_empty(), "pods");
            Ok(())
        })
        .await?;
        let newest = rests.status["checkpoint"]["newestStep"].as_i64().unwrap_or(0);
        ensure!(
            newest >= asked,
            "suspended at step {asked} with a checkpoint of step {newest}"
        );
        let keys = self.world.bucket.as_ref().context("a bucket")?.keys()?;
        ensure!(
            keys.iter()
                .any(|key| key.contains("/tensorboard/") && key.contains("tfevents")),
            "no event files beside the checkpoint: {keys:?}"
        );
        self.set_suspend(false).await?;
        self.job.trains(4).await?;
        let lost = self.job.now()?.status["stepsLost"].as_i64().unwrap_or(0);
        println!(
            "  suspended at step {asked}, resumed from the checkpoint of step {newest}; {lost} steps are trained again"
        );
        ensure!(lost <= rests.step() - newest, "{lost} steps are trained again");
        Ok(())
    }

    pub(super) async fn all_gone(&mut self) -> Result<()> {
        let before = self.saved().await?;
        let newest = before.status["checkpoint"]["newestStep"].as_i64().unwrap_or(0);
        for pod in self.job.pods().await? {
            kill(process_of(&pod, "varuna-worker")?, Signal::SIGKILL)?;
        }
        let back = self
            .job
            .until("training goes on from the checkpoint", |l| {
                l.generation() > before.generation() && l.phase() == "Training" && l.step() > newest + 5
            })
            .await?;
        // Even from the first checkpoint on, this few steps may be lost.
        self.job.event("Run", "from a checkpoint").await?;
        let lost = back.status["stepsLost"].as_i64().unwrap_or(0);
        ensure!(
            lost <= before.step() - newest + 200,
            "{lost} steps were lost; the newest checkpoint was of {newest}"
        );
        println!("  resumed from the bucket; {lost} steps are trained again");
        self.job.trains(4).await?;
        self.is_reported(&before).await
    }

    pub(super) async fn store_down(&mut self) -> Result<()> {
        let before = self.saved().await?;
        self.world.bucket.as_ref().context("a bucket")?.pause(true);
        let result = async {
            self.job
                .until("the job says so", |l| {
                    let conditions = l.status["conditions"].as_array().cloned().unwrap_or_default();
                    conditions
                        .iter()
                        .any(|c| c["type"] == "CheckpointStale" && c["status"] == "True")
                })
                .await?;
            self.job
                .until("training goes on", |l| l.step() > before.step() + 60)
                .await
        }
        .await;
        self.world.bucket.as_ref().context("a bucket")?.pause(false);
        let during = result?;
        self.job
            .until("a newer checkpoint", |l| {
                l.status["checkpoint"]["newestStep"].as_i64().unwrap_or(0) > during.step()
            })
            .await?;
        Ok(())
    }

    pub(super) async fn job_deleted(&mut self) -> Result<()> {
        let namespace = self.job.namespace.clone();
        self.kubectl(&["-n", &namespace, "delete", "vj", "j"])?;
        eventually("nothing is left of the job", || async {
            let kinds = "pods,secrets,services,serviceaccounts,roles,rolebindings,configmaps,endpointslices,varunaruns,varunarecords";
            let left = self.kubectl(&[
                "-n",
                &namespace,
                "get",
                kinds,
                "-l",
                "varuna.dev/job=j",
                "-o",
                "name",
            ])?;
            ensure!(left.trim().is_empty() || left.contains("No resources"), "{left}");
            let text = crate::metrics::of_operator(&self.job.client, OPERATOR).await?;
            ensure!(
                !text.contains(&format!("namespace=\"{namespace}\"")),
                "its metrics stay"
            );
            Ok(())
        })
        .await
    }
}
