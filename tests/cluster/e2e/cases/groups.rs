//! Workers of several kinds in one job: some on spot nodes, the others on on-demand nodes.

use super::{CaseRun, node_of};
use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use varuna_cluster_tests::eventually;
use varuna_operator::decide::objects::GROUP_LABEL;

/// The nodes of the spot workers and of the other workers.
const SPOT: &str = "t3";
const ON_DEMAND: &str = "t4";
/// The taint with which a cloud announces the end of a spot node.
const TAINT: &str = "aws-node-termination-handler/spot-itn";

/// Two workers of each kind; each kind has a node of its own.
pub(super) fn spot_and_on_demand() -> Value {
    let on = |node: &str| json!({ "varuna.dev/node": node });
    json!([
        { "name": "spot", "maxWorkers": 2, "nodeSelector": on(SPOT) },
        { "name": "on-demand", "minWorkers": 2, "maxWorkers": 2, "nodeSelector": on(ON_DEMAND) },
    ])
}

impl CaseRun<'_> {
    /// The names of a group's pods. Each of them is on the group's node, or not scheduled yet.
    async fn of_group(&self, group: &str, node: &str) -> Result<BTreeSet<String>> {
        let pods = self.job.pods().await?;
        let of_group = pods
            .iter()
            .filter(|p| p.labels().get(GROUP_LABEL).is_some_and(|g| g == group));
        let of_group: Vec<_> = of_group.collect();
        for pod in &of_group {
            let on = node_of(pod);
            ensure!(
                on == node || on.is_empty(),
                "{} of {group} is on {on}",
                pod.name_any()
            );
        }
        Ok(of_group.into_iter().map(kube::ResourceExt::name_any).collect())
    }

    /// The numbers of running and of wanted workers of a group, according to the status.
    fn counted(&self, group: &str) -> Result<(i64, i64)> {
        let status = self.job.now()?.status;
        let all = status["workerGroups"].as_array().context("workerGroups")?;
        let found = all.iter().find(|g| g["name"] == group).context("the group")?;
        let number = |field: &str| found[field].as_i64().unwrap_or(0);
        Ok((number("workers"), number("wanted")))
    }

    async fn wait_for_counts(&self, spot: i64, on_demand: i64) -> Result<()> {
        eventually("the status counts workers by group", || async {
            let found = (self.counted("spot")?, self.counted("on-demand")?);
            ensure!(found == ((spot, 2), (on_demand, 2)), "{found:?}");
            Ok(())
        })
        .await
    }

    pub(super) async fn worker_groups(&mut self) -> Result<()> {
        let (spot, on_demand) = (
            self.of_group("spot", SPOT).await?,
            self.of_group("on-demand", ON_DEMAND).await?,
        );
        ensure!(spot.len() == 2 && on_demand.len() == 2, "{spot:?} {on_demand:?}");
        self.wait_for_counts(2, 2).await?;
        let before = self.job.now()?;
        self.kubectl(&["taint", "node", SPOT, &format!("{TAINT}=x:NoSchedule")])?;
        let result = self.without_spot(before.step(), &on_demand).await;
        self.kubectl(&["taint", "node", SPOT, &format!("{TAINT}-")])?;
        result?;
        // The node stays after all, so the pods that wait for a node can use it.
        self.job.trains(4).await?;
        self.wait_for_counts(2, 2).await?;
        let now = self.of_group("spot", SPOT).await?;
        ensure!(now.len() == 2 && now.is_disjoint(&spot), "{spot:?} then {now:?}");
        self.is_reported(&before).await
    }

    /// The spot node announces its end. The other group continues to train with the same pods, and creates no pods in place of the spot
    /// group's.
    async fn without_spot(&self, step: i64, on_demand: &BTreeSet<String>) -> Result<()> {
        let two = self
            .job
            .until("the workers that stay train on", |l| {
                l.members() == 2 && l.phase() == "Training" && l.step() > step
            })
            .await?;
        println!("  two workers continue from step {}", two.step());
        self.job.event("WorkerNoticed", SPOT).await?;
        self.wait_for_counts(0, 2).await?;
        let now = self.of_group("on-demand", ON_DEMAND).await?;
        ensure!(now == *on_demand, "{on_demand:?} then {now:?}");
        let waiting = self.of_group("spot", "").await?;
        ensure!(waiting.len() == 2, "{waiting:?} wait for a spot node");
        Ok(())
    }
}
