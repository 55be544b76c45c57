//! Pod templates that are wrong, corrected, or changed while the job trains; and a suspension that would lose training progress.

use super::CaseRun;
use crate::job::small;
use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use varuna_cluster_tests::{eventually, jobs, observed};
use varuna_operator::decide::objects::{JOB_LABEL, pod_name, token_name};

impl CaseRun<'_> {
    /// Creates a second job with this name and one worker.
    async fn small_job(&self, name: &str, workers: Value) -> Result<()> {
        self.create_job(small(name, workers)).await
    }

    pub(super) async fn create_job(&self, document: Value) -> Result<()> {
        let document: DynamicObject = serde_json::from_value(document)?;
        jobs(&self.job.client, &self.job.namespace)
            .create(&PostParams::default(), &document)
            .await?;
        Ok(())
    }

    async fn patch_spec(&self, name: &str, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        jobs(&self.job.client, &self.job.namespace)
            .patch(name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    pub(super) async fn status_of(&self, name: &str) -> Result<Value> {
        let job = jobs(&self.job.client, &self.job.namespace).get(name).await?;
        Ok(job.data["status"].clone())
    }

    async fn condition_of(&self, name: &str, kind: &str) -> Result<Value> {
        let status = self.status_of(name).await?;
        let all = status["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter()
            .find(|c| c["type"] == kind)
            .context("the condition")
    }

    pub(super) async fn rejected(&mut self) -> Result<()> {
        // The API server and the scheduler accept pods with any kernel parameter, but a kubelet rejects those with parameters that it does
        // not allow.
        let sysctls = json!([{ "name": "kernel.msgmax", "value": "65536" }]);
        let template = json!({ "spec": { "securityContext": { "sysctls": sysctls } } });
        self.small_job("forbidden", json!({ "template": template }))
            .await?;
        eventually("the job says that its pods are rejected", || async {
            let degraded = self.condition_of("forbidden", "Degraded").await?;
            let message = degraded["message"].as_str().unwrap_or("");
            ensure!(
                degraded["reason"] == "PodsRejected" && message.contains("SysctlForbidden"),
                "{degraded}"
            );
            Ok(())
        })
        .await?;
        // Replacements wait for 1, 2, 4, 8 and 16 s, so six pods take half a minute. A hot loop would create hundreds in this time.
        let began = std::time::Instant::now();
        let made = eventually("six pods were made", || async {
            let made = self.status_of("forbidden").await?["newestPod"]
                .as_i64()
                .unwrap_or(0);
            ensure!(made >= 6, "{made}");
            Ok(made)
        })
        .await?;
        let seconds = began.elapsed().as_secs();
        println!("  {made} pods in {seconds} s");
        ensure!(
            made <= 7 && seconds >= 15,
            "a hot loop: {made} pods in {seconds} s"
        );
        let failed = self.condition_of("forbidden", "Failed").await?;
        ensure!(failed["status"] == "False", "{failed}");
        self.kubectl(&["-n", &self.job.namespace, "delete", "vj", "forbidden"])?;
        self.job.trains(4).await?;
        Ok(())
    }

    pub(super) async fn image_corrected(&mut self) -> Result<()> {
        let right = self.job.pods().await?;
        let image = right
            .first()
            .and_then(|p| p.spec.as_ref()?.containers.first()?.image.clone())
            .context("the image of a worker")?;
        self.small_job("typo", json!({ "threads": 1, "image": "localhost/none:1" }))
            .await?;
        eventually("the job says that its pods cannot start", || async {
            let degraded = self.condition_of("typo", "Degraded").await?;
            ensure!(degraded["reason"] == "PodsCannotStart", "{degraded}");
            Ok(())
        })
        .await?;
        self.patch_spec("typo", json!({ "workers": { "image": image } }))
            .await?;
        eventually("the corrected job trains", || async {
            let status = self.status_of("typo").await?;
            ensure!(status["step"].as_i64().unwrap_or(0) > 0, "{status}");
            Ok(())
        })
        .await?;
        self.kubectl(&["-n", &self.job.namespace, "delete", "vj", "typo"])?;
        self.job.trains(4).await?;
        Ok(())
    }

    pub(super) async fn rolling_update(&mut self) -> Result<()> {
        let names = |pods: &[k8s_openapi::api::core::v1::Pod]| -> BTreeSet<String> {
            pods.iter().map(ResourceExt::name_any).collect()
        };
        let before = self.job.now()?;
        let old = names(&self.job.pods().await?);
        let template = json!({ "metadata": { "annotations": { "example.com/release": "2" } } });
        self.patch_spec("j", json!({ "workers": { "template": template } }))
            .await?;
        eventually("all pods are of the new template", || async {
            let pods = self.job.pods().await?;
            let is_new =
                |p: &k8s_openapi::api::core::v1::Pod| p.annotations().contains_key("example.com/release");
            let now = names(&pods);
            ensure!(
                now.len() == 4 && pods.iter().all(is_new) && now.is_disjoint(&old),
                "{now:?}"
            );
            Ok(())
        })
        .await?;
        self.job.trains(4).await?;
        self.job
            .event("RollingUpdate", "spec.workers has changed")
            .await?;
        self.is_reported(&before).await
    }

    pub(super) async fn name_taken(&mut self) -> Result<()> {
        let namespace = self.job.namespace.clone();
        // The names contain digits of the job's uid. So the job first waits, until somebody else has taken one of the names.
        let mut document = small("other", json!({ "threads": 1 }));
        document["spec"]["suspend"] = true.into();
        self.create_job(document).await?;
        let own = observed(&self.job.client, &namespace, "other").await?;
        let taken = pod_name(&own, 1);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": taken },
            "spec": { "containers": [{ "name": "c", "image": "localhost/pause:1" }], "terminationGracePeriodSeconds": 1 },
        });
        self.world
            .cluster
            .kubectl(&["-n", &namespace, "apply", "-f", "-"], &pod.to_string())?;
        let secret = token_name(&own);
        let foreign = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": secret }, "stringData": { "token": "not-the-jobs" },
        });
        self.world
            .cluster
            .kubectl(&["-n", &namespace, "apply", "-f", "-"], &foreign.to_string())?;
        self.patch_spec("other", json!({ "suspend": false })).await?;
        self.wait_for_name_taken(&format!("Secret {secret}")).await?;
        self.check_secret_is_unchanged(&secret).await?;
        self.kubectl(&["-n", &namespace, "delete", "secret", &secret])?;
        self.wait_for_name_taken(&format!("Pod {taken}")).await?;
        let phase = [
            "-n",
            &namespace,
            "get",
            "pod",
            &taken,
            "-o",
            "jsonpath={.metadata.deletionTimestamp}",
        ];
        ensure!(
            self.kubectl(&phase)?.is_empty(),
            "the pod of somebody else is deleted"
        );
        self.kubectl(&["-n", &namespace, "delete", "pod", &taken])?;
        eventually("the job trains", || async {
            let status = self.status_of("other").await?;
            ensure!(status["step"].as_i64().unwrap_or(0) > 0, "{status}");
            Ok(())
        })
        .await?;
        self.kubectl(&["-n", &namespace, "delete", "vj", "other"])?;
        self.job.trains(4).await?;
        Ok(())
    }

    async fn wait_for_name_taken(&self, object: &str) -> Result<()> {
        eventually("the job says whose the name is", || async {
            let degraded = self.condition_of("other", "Degraded").await?;
            let message = degraded["message"].as_str().unwrap_or("");
            ensure!(
                degraded["reason"] == "NameTaken" && message.contains(object),
                "{degraded}"
            );
            Ok(())
        })
        .await
    }

    /// Somebody else's Secret with the name of the job's token is unchanged, and no pod of the job uses it.
    async fn check_secret_is_unchanged(&self, secret: &str) -> Result<()> {
        let namespace = self.job.namespace.as_str();
        let token = "jsonpath={.data.token} {.metadata.ownerReferences}";
        let found = self.kubectl(&["-n", namespace, "get", "secret", secret, "-o", token])?;
        // "not-the-jobs" in base64.
        ensure!(
            found.trim() == "bm90LXRoZS1qb2Jz",
            "the Secret has changed: {found}"
        );
        let of_job = format!("{JOB_LABEL}=other");
        let pods = self.kubectl(&["-n", namespace, "get", "pods", "-l", &of_job, "-o", "name"])?;
        ensure!(pods.trim().is_empty(), "pods with somebody else's token: {pods}");
        Ok(())
    }

    pub(super) async fn made_again(&mut self) -> Result<()> {
        let api = jobs(&self.job.client, &self.job.namespace);
        let before = self.job.until("some steps", |l| l.step() > 60).await?;
        let first = api.get("j").await?;
        self.kubectl(&["-n", &self.job.namespace, "delete", "vj", "j"])?;
        let document = json!({
            "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaJob", "metadata": { "name": "j" },
            "spec": first.data["spec"],
        });
        let document: DynamicObject = serde_json::from_value(document)?;
        let again = api.create(&PostParams::default(), &document).await?;
        ensure!(again.uid() != first.uid(), "the same object");
        let status = eventually("the new job trains", || async {
            let job = api.get("j").await?;
            let status = &job.data["status"];
            let trains = status["phase"] == "Training" && status["step"].as_i64() > Some(0);
            ensure!(job.uid() == again.uid() && trains, "{status}");
            Ok(status.clone())
        })
        .await?;
        ensure!(
            status["step"].as_i64() < Some(before.step()) && status["plan"]["generation"] == 1,
            "it goes on from its predecessor: {status}"
        );
        self.job.trains(4).await?;
        Ok(())
    }

    pub(super) async fn suspend_refused(&mut self) -> Result<()> {
        let refused = self.patch_spec("j", json!({ "suspend": true })).await;
        let said = format!("{:#}", refused.err().context("the API server takes it")?);
        ensure!(said.contains("set allowStateLoss to true"), "{said}");
        self.job.trains(4).await?;
        self.patch_spec("j", json!({ "suspend": true, "allowStateLoss": true }))
            .await?;
        self.job
            .until("it is suspended", |l| l.phase() == "Suspended")
            .await?;
        Ok(())
    }
}
