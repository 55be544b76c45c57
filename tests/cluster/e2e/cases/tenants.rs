//! Two teams that share a cluster and nothing else.

use super::CaseRun;
use crate::job::{Job, small, with_checkpoints, workers};
use crate::store::{BUCKET, Bucket};
use crate::world::OPERATOR;
use anyhow::{Context as _, Result, ensure};
use kube::api::{DynamicObject, PostParams};
use serde_json::Value;
use varuna_cluster_tests::nodes::BRIDGE;
use varuna_cluster_tests::{eventually, jobs};

impl CaseRun<'_> {
    /// A job of a second team, with a bucket of its own, trains beside the first; one that names the first team's bucket gets nowhere.
    pub(super) async fn two_tenants(&mut self) -> Result<()> {
        let state = self.world.cluster.state().context("a cluster of its own")?;
        let own = Bucket::start(&state.join("bucket-of-another"), BRIDGE, "another-team")?;
        let first = self.world.bucket.as_ref().context("a bucket")?;
        let namespace = self.world.cluster.namespace("e2e-another-team")?;
        let other = Job::create(
            &self.job.client,
            &namespace,
            OPERATOR,
            tenants_job("j", &own, &own.endpoint),
        )
        .await?;
        other
            .until("the second team has a checkpoint", |l| {
                l.status["checkpoint"]["newestStep"].as_i64().unwrap_or(0) > 0
            })
            .await?;
        let thief: DynamicObject = serde_json::from_value(tenants_job("thief", &own, &first.endpoint))?;
        let api = jobs(&self.job.client, &namespace);
        api.create(&PostParams::default(), &thief).await?;
        let status = eventually("the bucket of the first team refuses the second", || async {
            let status = api.get("thief").await?.data["status"].clone();
            let stale = status["conditions"]
                .as_array()
                .and_then(|all| all.iter().find(|c| c["type"] == "CheckpointStale").cloned())
                .context("the condition")?;
            ensure!(
                stale["status"] == "True" && stale["reason"] == "StoreFails",
                "{status}"
            );
            Ok(stale)
        })
        .await?;
        println!("  the first team's bucket to the second: {}", status["message"]);
        let folder = state.join("bucket").join(BUCKET).join("thief");
        ensure!(!folder.exists(), "{} was written", folder.display());
        self.kubectl(&["delete", "namespace", &namespace, "--wait=false"])?;
        let before = self.job.now()?;
        self.job
            .until("the first team's job trains on", |l| l.step() > before.step())
            .await?;
        Ok(())
    }
}

/// A job of one worker with the keys of this bucket, and checkpoints where `endpoint` is.
fn tenants_job(name: &str, keys: &Bucket, endpoint: &str) -> Value {
    let uri = format!("s3://{BUCKET}");
    with_checkpoints(small(name, workers()), &uri, keys.variables(endpoint))
}
