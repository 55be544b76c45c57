//! Workers of several kinds in one job: spot nodes, and nodes that stay.

use super::{CaseRun, node_of};
use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use varuna_cluster_tests::eventually;
use varuna_operator::decide::objects::GROUP_LABEL;

/// The node of the spot workers, and that of the others.
const SPOT: &str = "t3";
const LASTING: &str = "t4";
/// What a spot node of a cloud announces its end by.
const TAINT: &str = "aws-node-termination-handler/spot-itn";

/// Two workers of each kind, each kind on a node of its own.
pub(super) fn spot_and_lasting() -> Value {
    let on = |node: &str| json!({ "varuna.dev/node": node });
    json!([
        { "name": "spot", "maxWorkers": 2, "nodeSelector": on(SPOT) },
        { "name": "lasting", "minWorkers": 2, "maxWorkers": 2, "nodeSelector": on(LASTING) },
    ])
}

impl CaseRun<'_> {
    /// The names of a group's pods, all of which are on its node or on none.
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

    /// How many workers of a group run, of how many that it is to have, as the status says.
    fn counted(&self, group: &str) -> Result<(i64, i64)> {
        let status = self.job.now()?.status;
        let all = status["workerGroups"].as_array().context("workerGroups")?;
        let found = all.iter().find(|g| g["name"] == group).context("the group")?;
        let number = |field: &str| found[field].as_i64().unwrap_or(0);
        Ok((number("workers"), number("wanted")))
    }

    async fn counts(&self, spot: i64, lasting: i64) -> Result<()> {
        eventually("the status counts workers by group", || async {
            let found = (self.counted("spot")?, self.counted("lasting")?);
            ensure!(found == ((spot, 2), (lasting, 2)), "{found:?}");
            Ok(())
        })
        .await
    }

    pub(super) async fn worker_groups(&mut self) -> Result<()> {
        let (spot, lasting) = (
            self.of_group("spot", SPOT).await?,
            self.of_group("lasting", LASTING).await?,
        );
        ensure!(spot.len() == 2 && lasting.len() == 2, "{spot:?} {lasting:?}");
        self.counts(2, 2).await?;
        let before = self.job.now()?;
        self.kubectl(&["taint", "node", SPOT, &format!("{TAINT}=x:NoSchedule")])?;
        let result = self.without_spot(before.step(), &lasting).await;
        self.kubectl(&["taint", "node", SPOT, &format!("{TAINT}-")])?;
        result?;
        // The node stays after all: what waited for another one may have it.
        self.job.trains(4).await?;
        self.counts(2, 2).await?;
        let now = self.of_group("spot", SPOT).await?;
        ensure!(now.len() == 2 && now.is_disjoint(&spot), "{spot:?} then {now:?}");
        self.is_reported(&before).await
    }

    /// The spot node announces its end: the other group trains on with the same pods, and takes over no place of the first.
    async fn without_spot(&self, step: i64, lasting: &BTreeSet<String>) -> Result<()> {
        let two = self
            .job
            .until("the workers that stay train on", |l| {
                l.members() == 2 && l.phase() == "Training" && l.step() > step
            })
            .await?;
        println!("  two trained on from step {}", two.step());
        self.job.event("WorkerNoticed", SPOT).await?;
        self.counts(0, 2).await?;
        let now = self.of_group("lasting", LASTING).await?;
        ensure!(now == *lasting, "{lasting:?} then {now:?}");
        let waiting = self.of_group("spot", "").await?;
        ensure!(waiting.len() == 2, "{waiting:?} wait for a spot node");
        Ok(())
    }
}
