//! Two teams that share only the cluster.

use super::CaseRun;
use crate::job::{Job, small, with_checkpoints, workers};
use crate::store::{BUCKET, Bucket};
use crate::world::OPERATOR;
use anyhow::{Context as _, Result, ensure};
use kube::api::{DynamicObject, PostParams};
use serde_json::Value;
use varuna_cluster_tests::{eventually, jobs};

impl CaseRun<'_> {
    /// A job of a second team trains beside the first one, with a bucket of its own. A job of that team that names the first team's bucket
    /// fails.
    pub(super) async fn two_tenants(&mut self) -> Result<()> {
        let state = self.world.cluster.state().context("a cluster of its own")?;
        let own = Bucket::start(
            &state.join("bucket-of-another"),
            self.world.family.bridge(),
            "another-team",
        )?;
        let namespace = self.world.cluster.namespace("e2e-another-team")?;
        let result = self.are_isolated(&namespace, &own).await;
        // Deleted even after a failure: later cases need the GPU and the CPUs.
        self.kubectl(&["delete", "namespace", &namespace, "--wait=false"])?;
        result?;
        self.kubectl(&["-n", &self.job.namespace, "delete", "vj", "thief"])?;
        let before = self.job.now()?;
        self.job
            .until("the first team's job trains on", |l| l.step() > before.step())
            .await?;
        Ok(())
    }

    /// The second team trains in this namespace with this bucket. Neither team can access the bucket of the other.
    async fn are_isolated(&self, namespace: &str, own: &Bucket) -> Result<()> {
        let state = self.world.cluster.state().context("a cluster of its own")?;
        let first = self.world.bucket.as_ref().context("a bucket")?;
        let document = tenants_job("j", own, &own.endpoint);
        let other = Job::create(&self.job.client, namespace, OPERATOR, document).await?;
        other
            .until("the second team has a checkpoint", |l| {
                l.status["checkpoint"]["newestStep"].as_i64().unwrap_or(0) > 0
            })
            .await?;
        // Each team uses its own keys and the other team's bucket.
        self.cannot_use_bucket_of_others(namespace, own, first).await?;
        self.cannot_use_bucket_of_others(&self.job.namespace, first, own)
            .await?;
        let folder = |bucket: &str, job: &str| state.join(bucket).join(BUCKET).join(job);
        let written = folder("bucket-of-another", "j");
        ensure!(written.exists(), "{} was not written", written.display());
        for bucket in ["bucket", "bucket-of-another"] {
            let written = folder(bucket, "thief");
            ensure!(!written.exists(), "{} was written", written.display());
        }
        Ok(())
    }

    /// A job in this namespace with its team's keys cannot use the bucket of another team, and says so.
    async fn cannot_use_bucket_of_others(
        &self,
        namespace: &str,
        keys: &Bucket,
        others: &Bucket,
    ) -> Result<()> {
        let thief: DynamicObject = serde_json::from_value(tenants_job("thief", keys, &others.endpoint))?;
        let api = jobs(&self.job.client, namespace);
        api.create(&PostParams::default(), &thief).await?;
        let stale = eventually("the bucket of the one team refuses the other", || async {
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
        println!("  another team's bucket to {namespace}: {}", stale["message"]);
        Ok(())
    }
}

/// A job of one worker with the keys of this bucket, and with checkpoints at `endpoint`.
fn tenants_job(name: &str, keys: &Bucket, endpoint: &str) -> Value {
    let uri = format!("s3://{BUCKET}");
    with_checkpoints(small(name, workers()), &uri, keys.variables(endpoint))
}
