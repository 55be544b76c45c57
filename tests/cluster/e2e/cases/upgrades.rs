//! An upgrade of the programs while a job trains.

use super::CaseRun;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use std::collections::BTreeMap;
use varuna_cluster_tests::eventually;

impl CaseRun<'_> {
    /// Operator, coordinator and workers are upgraded one after the other to a build with a newer protocol version, and downgraded again.
    pub(super) async fn upgrade(&mut self) -> Result<()> {
        let next = self.world.load_next_images()?;
        let result = self.upgrade_one_by_one(&next).await;
        // Later cases use the build under test.
        self.world.install(&self.world.tag)?;
        result?;
        // The older coordinator, with one worker of the newer build.
        self.replace_coordinator(3, &self.world.tag).await
    }

    async fn upgrade_one_by_one(&mut self, next: &str) -> Result<()> {
        let (workers, coordinator) = (self.images().await?, self.job.coordinator().await?.name_any());
        self.world.install(next)?;
        self.job.trains(4).await?;
        ensure!(
            self.images().await? == workers && self.job.coordinator().await?.name_any() == coordinator,
            "an upgrade of the operator has replaced pods of the job"
        );
        self.replace_coordinator(2, next).await?;
        let (before, pod) = (self.job.now()?, self.first_pod().await?);
        self.kubectl(&["-n", &self.job.namespace, "delete", "pod", &pod, "--wait=false"])?;
        self.replaced(&before, &pod).await?;
        let images = self.images().await?;
        let newer = images.values().filter(|i| i.ends_with(next)).count();
        ensure!(newer == 1 && images.len() == 4, "{images:?}");
        Ok(())
    }

    /// Deletes the coordinator's pod. The next one has an image with this tag, and leads the same workers.
    async fn replace_coordinator(&self, term: u32, tag: &str) -> Result<()> {
        let pod = self.job.coordinator().await?.name_any();
        self.kubectl(&["-n", &self.job.namespace, "delete", "pod", &pod, "--wait=false"])?;
        self.job
            .event(
                "Run",
                &format!("this coordinator leads the run now (term {term})"),
            )
            .await?;
        let image = image(&self.job.coordinator().await?)?;
        ensure!(image.ends_with(&format!(":{tag}")), "the coordinator is {image}");
        self.job.trains(4).await?;
        Ok(())
    }

    /// The images of the job's workers, by pod.
    async fn images(&self) -> Result<BTreeMap<String, String>> {
        eventually("four workers", || async {
            let pods = self.job.pods().await?;
            ensure!(pods.len() == 4, "{} pods", pods.len());
            pods.iter().map(|p| Ok((p.name_any(), image(p)?))).collect()
        })
        .await
    }
}

fn image(pod: &Pod) -> Result<String> {
    let container = pod.spec.as_ref().and_then(|s| s.containers.first());
    container.and_then(|c| c.image.clone()).context("an image")
}
