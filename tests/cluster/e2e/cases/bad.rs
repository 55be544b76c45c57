//! Jobs that cannot run: their conditions say what to do, and other jobs are not affected.

use super::CaseRun;
use crate::job::{small, spec, workers};
use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt;
use kube::api::{DynamicObject, PostParams};
use serde_json::{Value, json};
use varuna_cluster_tests::{eventually, jobs};

/// The defect of the job, the condition and its reason, and a part of its message.
type Bad = (&'static str, &'static str, &'static str, &'static str);

const BAD: [Bad; 5] = [
    ("image", "Degraded", "PodsCannotStart", "localhost/none:1"),
    (
        "secret",
        "Degraded",
        // The coordinator opens the checkpoint location with the workers' environment.
        "CoordinatorFails",
        "secret \"nowhere\" not found",
    ),
    (
        "selector",
        "Degraded",
        "PodsCannotBeScheduled",
        "affinity/selector",
    ),
    (
        "gpus",
        "Degraded",
        "PodsCannotBeScheduled",
        "Insufficient nvidia.com/gpu",
    ),
    ("bucket", "CheckpointStale", "StoreFails", "no-such-bucket"),
];

impl CaseRun<'_> {
    fn bad(&self, what: &str) -> Value {
        let mut document = small(what, workers());
        let worker = |fields: Value| json!({ "spec": { "containers": [fields] } });
        let (path, value) = match what {
            "image" => ("image", json!("localhost/none:1")),
            "secret" => (
                "template",
                worker(json!({ "name": "worker", "envFrom": [{ "secretRef": { "name": "nowhere" } }] })),
            ),
            "selector" => (
                "template",
                json!({ "spec": { "nodeSelector": { "no": "where" } } }),
            ),
            "gpus" => (
                "template",
                worker(json!({ "name": "worker", "resources": { "limits": { "nvidia.com/gpu": "100" } } })),
            ),
            _ => {
                document = self.world.with_checkpoints(document, "bad");
                document["spec"]["checkpoint"]["uri"] = "s3://no-such-bucket/x".into();
                return document;
            }
        };
        document["spec"]["workers"][path] = value;
        document
    }

    pub(super) async fn bad_input(&mut self) -> Result<()> {
        let (client, namespace) = (self.job.client.clone(), self.job.namespace.clone());
        let api = jobs(&client, &namespace);
        for (what, ..) in BAD {
            let document: DynamicObject = serde_json::from_value(self.bad(what))?;
            api.create(&PostParams::default(), &document).await?;
        }
        let (names, other) = (self.names().await?, self.second_at_same_location().await?);
        let result = self.check_reported_errors(&names, &other).await;
        // Deleted even after a failure: later cases need the GPUs and CPUs.
        self.kubectl(&["delete", "namespace", &other, "--wait=false"])?;
        result?;
        for (what, ..) in BAD {
            self.kubectl(&["-n", &namespace, "delete", "vj", what])?;
        }
        self.job.trains(4).await?;
        Ok(())
    }

    /// Each job that cannot run says why, including the copy of the job in the namespace `other`. The first job continues to train with the
    /// pods of these names.
    async fn check_reported_errors(&self, names: &[String], other: &str) -> Result<()> {
        let api = jobs(&self.job.client, &self.job.namespace);
        let reconciliations = self.reconciliations().await?;
        for (what, kind, reason, words) in BAD {
            eventually(&format!("job {what} says what is wrong"), || async {
                let status = api.get(what).await?.data["status"].clone();
                let all = status["conditions"].as_array().cloned().unwrap_or_default();
                let found = all
                    .into_iter()
                    .find(|c| c["type"] == kind)
                    .context("the condition")?;
                let message = found["message"].as_str().unwrap_or("");
                ensure!(
                    found["status"] == "True" && found["reason"] == reason && message.contains(words),
                    "{status}"
                );
                Ok(())
            })
            .await?;
        }
        self.refused(other).await?;
        self.job.trains(4).await?;
        let now = self.names().await?;
        ensure!(now == names, "the job's pods were {names:?} and are {now:?}");
        let reconciliations = self.reconciliations().await? - reconciliations;
        println!("  {reconciliations} reconciliations of seven jobs until all reported what is wrong");
        ensure!(
            reconciliations < 1000.0,
            "a hot loop: {reconciliations} reconciliations"
        );
        Ok(())
    }

    /// Creates a copy of the job in another namespace, with the same name and checkpoint location: with another name it would have another
    /// folder there. Returns the namespace.
    async fn second_at_same_location(&self) -> Result<String> {
        self.job
            .until("a checkpoint", |l| {
                l.status["checkpoint"]["newestStep"].as_i64().unwrap_or(0) > 0
            })
            .await?;
        let first = jobs(&self.job.client, &self.job.namespace).get("j").await?;
        let other = self.world.cluster.namespace("e2e-bad-input-copy")?;
        let mut document = self.world.with_checkpoints(spec("j"), "copy");
        document["spec"]["checkpoint"] = first.data["spec"]["checkpoint"].clone();
        document["spec"]["pipeline"] = json!({});
        document["spec"]["elasticity"] = json!({ "minWorkers": 1, "maxWorkers": 1 });
        let document: DynamicObject = serde_json::from_value(document)?;
        jobs(&self.job.client, &other)
            .create(&PostParams::default(), &document)
            .await?;
        Ok(other)
    }

    /// The copy is refused and names the job that owns the location. It has not trained at all, and deletes its pods.
    async fn refused(&self, other: &str) -> Result<()> {
        let api = jobs(&self.job.client, other);
        let owner = format!("{}/j", self.job.namespace);
        let status = eventually("the copy is refused", || async {
            let status = api.get("j").await?.data["status"].clone();
            let all = status["conditions"].as_array().cloned().unwrap_or_default();
            let accepted = all.iter().find(|c| c["type"] == "Accepted").context("Accepted")?;
            let message = accepted["message"].as_str().unwrap_or("");
            ensure!(
                accepted["status"] == "False"
                    && accepted["reason"] == "CheckpointsTaken"
                    && message.contains(&owner),
                "{status}"
            );
            Ok(status)
        })
        .await?;
        let events = self.kubectl(&["-n", other, "get", "events"])?;
        ensure!(
            status["plan"].is_null()
                && status["step"].as_i64().unwrap_or(0) == 0
                && !events.contains("Planned"),
            "the copy has trained: {status}\n{events}"
        );
        // A pod whose worker has ended by then is kept for its log.
        let runs = "--field-selector=status.phase!=Succeeded,status.phase!=Failed";
        eventually("no pod of the copy runs", || async {
            let pods = self.kubectl(&["-n", other, "get", "pods", "-o", "name", runs])?;
            ensure!(!pods.contains("pod/"), "{pods}");
            Ok(())
        })
        .await
    }

    async fn names(&self) -> Result<Vec<String>> {
        Ok(self.job.pods().await?.iter().map(ResourceExt::name_any).collect())
    }

    /// Number of reconciliations so far.
    async fn reconciliations(&self) -> Result<f64> {
        self.job
            .metric("varuna_reconcile_duration_seconds_count", &[])
            .await
    }
}
