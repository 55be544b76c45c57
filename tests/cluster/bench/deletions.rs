//! Deletes pods of workers, as a preemption does.

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client, ResourceExt};
use std::time::Duration;
use varuna_operator::decide::objects::{JOB_LABEL, NUMBER_LABEL};

/// Concurrent calls.
const CONCURRENCY: usize = 32;

/// Deletes pods of workers.
pub(crate) struct Deletions {
    pods: Api<Pod>,
    /// The client's account is the one whose requests count as events.
    signals: Api<Pod>,
}

impl Deletions {
    pub(crate) fn new(client: &Client, signals: &Client, namespace: &str) -> Deletions {
        Deletions {
            pods: Api::namespaced(client.clone(), namespace),
            signals: Api::namespaced(signals.clone(), namespace),
        }
    }

    /// For each of these jobs, the name of one worker's pod that is not being deleted. Jobs without such a pod are left out.
    pub(crate) async fn pods_of(&self, jobs: impl IntoIterator<Item = usize>) -> Result<Vec<String>> {
        let found = jobs.into_iter().map(|i| async move {
            let selector = format!("{JOB_LABEL}=j{i},{NUMBER_LABEL}");
            let list = self.pods.list(&ListParams::default().labels(&selector)).await?;
            let mut live = list
                .items
                .iter()
                .filter(|pod| pod.metadata.deletion_timestamp.is_none());
            anyhow::Ok(live.next().map(ResourceExt::name_any))
        });
        let found = stream::iter(found).buffered(CONCURRENCY);
        let found: Vec<Option<String>> = found.try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Deletes these pods one after the other, with this time between two deletions.
    pub(crate) async fn one_by_one(&self, names: &[String], between: Duration) -> Result<()> {
        for name in names {
            self.delete(name).await?;
            tokio::time::sleep(between).await;
        }
        Ok(())
    }

    /// Deletes these pods concurrently.
    pub(crate) async fn at_once(&self, names: &[String]) -> Result<()> {
        let all = stream::iter(names).map(|name| self.delete(name));
        all.buffer_unordered(CONCURRENCY).try_collect().await
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.signals.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }
}
