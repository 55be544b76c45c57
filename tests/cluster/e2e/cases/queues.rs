//! A job in a queue of Kueue's own controller: admitted in part, preempted by a job of higher priority, admitted again, and grown when more
//! quota is free.

use super::CaseRun;
use crate::job::{Observation, small, workers};
use crate::world::QUOTA;
use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::{DynamicObject, ListParams};
use serde_json::{Value, json};
use varuna_cluster_tests::{documents, eventually, kueue_queues, kueue_resource};
use varuna_operator::decide::objects::INCREMENT_INFIX;

/// Steps of the job with higher priority.
const STEPS: i64 = 60;
/// Priority class of that job.
const PREFERRED: &str = "e2e-preferred";

/// Puts a job into the queue of its namespace.
pub(super) fn in_queue(document: &mut Value) {
    document["metadata"]["labels"] = json!({ "kueue.x-k8s.io/queue-name": "team-a" });
}

impl CaseRun<'_> {
    pub(super) async fn kueue(&mut self) -> Result<()> {
        let first = self.workload().await?;
        ensure!(
            self.job.pods().await?.len() == QUOTA as usize,
            "more pods than were admitted"
        );
        self.saved().await?;
        let asked = self.job.now()?.step();
        self.create_preferred().await?;
        let rests = self
            .job
            .until("the job gives its quota to the one that is preferred", |l| {
                l.phase() == "Queued" && says(l, "Evicted")
            })
            .await?;
        let newest = rests.status["checkpoint"]["newestStep"].as_i64().unwrap_or(0);
        ensure!(
            newest >= asked,
            "preempted at step {asked} with a checkpoint of step {newest}"
        );
        eventually("the preferred job is complete", || async {
            let status = self.status_of("preferred").await?;
            ensure!(
                status["phase"] == "Complete" && status["step"] == STEPS,
                "{status}"
            );
            ensure!(status["plan"]["workers"] == 2, "{status}");
            Ok(())
        })
        .await?;
        self.job.trains(QUOTA.into()).await?;
        let again = self.workload().await?;
        ensure!(again.uid() == first.uid(), "it has lost its place in the queue");
        let lost = self.job.now()?.status["stepsLost"].as_i64().unwrap_or(0);
        println!(
            "  preempted at step {asked}, resumed from the checkpoint of step {newest}; {lost} steps are trained again"
        );
        ensure!(lost <= rests.step() - newest, "{lost} steps are trained again");
        self.grows(lost).await
    }

    /// One more GPU is free: the job trains with it, and loses no step. `lost` is the number of steps that it had lost before.
    async fn grows(&self, lost: i64) -> Result<()> {
        for object in kueue_queues(&self.job.namespace, QUOTA + 1, &json!({})) {
            self.world
                .cluster
                .kubectl(&["apply", "-f", "-"], &object.to_string())?;
        }
        let grown = self.job.trains(i64::from(QUOTA) + 1).await?;
        let now = grown.status["stepsLost"].as_i64().unwrap_or(0);
        ensure!(now == lost, "{} steps were lost as it grew", now - lost);
        Ok(())
    }

    /// Creates a short job of two workers in the same queue, with higher priority.
    async fn create_preferred(&self) -> Result<()> {
        let class = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": { "name": PREFERRED }, "value": 1000,
        });
        self.world
            .cluster
            .kubectl(&["apply", "-f", "-"], &class.to_string())?;
        let mut document = small("preferred", workers());
        in_queue(&mut document);
        document["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = json!(PREFERRED);
        document["spec"]["allowStateLoss"] = json!(true);
        document["spec"]["elasticity"] = json!({ "minWorkers": 2, "maxWorkers": 2 });
        document["spec"]["training"]["steps"] = json!(STEPS);
        self.create_job(document).await
    }

    /// The first Workload of the job `j`.
    async fn workload(&self) -> Result<DynamicObject> {
        let all = documents(&self.job.client, &self.job.namespace, &kueue_resource("Workload"));
        let all = all.list(&ListParams::default()).await?.items;
        let is_own = |name: &str| name.starts_with("j-q") && !name.contains(INCREMENT_INFIX);
        let mut own = all.into_iter().filter(|w| is_own(&w.name_any()));
        own.next().context("no Workload")
    }
}

/// Whether the job's condition `Admitted` has this reason.
fn says(observation: &Observation, reason: &str) -> bool {
    let conditions = observation.status["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|c| c["type"] == "Admitted" && c["reason"] == reason)
}
