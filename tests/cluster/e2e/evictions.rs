//! Records which pods of a job are evicted while a node is drained, and which plan was in force at that time.

use crate::job::Job;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, ListParams};
use kube::{Api, Client, ResourceExt as _};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use varuna_api::crd::VarunaRun;
use varuna_cluster_tests::documents;
use varuna_operator::decide::objects::worker_selector;

/// Interval at which the pods are read. There is a new plan between two evictions, which takes longer.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// An evicted pod, and the pods that were evicted before it but still had a place in the plan in force.
#[derive(Clone, Debug)]
struct Eviction {
    pod: String,
    before_it: Vec<String>,
}

/// The evictions from a node, which are recorded until this is dropped.
pub(crate) struct Evictions {
    seen: Arc<Mutex<Vec<Eviction>>>,
    watch: JoinHandle<()>,
}

impl Drop for Evictions {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Evictions {
    /// Records evictions of the job's pods from a node.
    pub(crate) fn from(job: &Job, node: &str) -> Evictions {
        let seen: Arc<Mutex<Vec<Eviction>>> = Arc::default();
        let (client, namespace, node) = (job.client.clone(), job.namespace.clone(), node.to_owned());
        let all = Arc::clone(&seen);
        let watch = tokio::spawn(async move {
            loop {
                // A failed read is repeated in the next round.
                let _ = read_pods(&client, &namespace, &node, &all).await;
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        });
        Evictions { seen, watch }
    }

    /// Checks that at least `pods` were evicted, and each of them only after a plan without the earlier ones was in force.
    ///
    /// # Errors
    /// One was evicted too early.
    pub(crate) fn check_one_at_a_time(&self, pods: usize) -> Result<()> {
        let seen = self
            .seen
            .lock()
            .map_err(|_| anyhow::anyhow!("the watch panicked"))?;
        ensure!(seen.len() >= pods, "{pods} were to be evicted: {seen:#?}");
        ensure!(
            seen.iter().all(|eviction| eviction.before_it.is_empty()),
            "evicted although one before it had a place still: {seen:#?}"
        );
        println!(
            "  {} pods were evicted, each of them under a plan without the earlier ones",
            seen.len()
        );
        Ok(())
    }
}

async fn read_pods(client: &Client, namespace: &str, node: &str, seen: &Mutex<Vec<Eviction>>) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pods = pods
        .list(&ListParams::default().labels(&worker_selector("j")))
        .await?;
    let goes = |p: &&Pod| {
        let on = p.spec.as_ref().and_then(|s| s.node_name.as_deref());
        p.metadata.deletion_timestamp.is_some() && on == Some(node)
    };
    let going: Vec<String> = pods.iter().filter(goes).map(|p| p.name_any()).collect();
    // The plan is read after the pods. A later plan does not include a pod again that an earlier one left out.
    let placed = placed(client, namespace).await?;
    let mut seen = seen.lock().map_err(|_| anyhow::anyhow!("a panic"))?;
    for pod in going {
        if seen.iter().all(|eviction| eviction.pod != pod) {
            let before = seen.iter().map(|eviction| &eviction.pod);
            let before_it = before.filter(|p| placed.contains(*p)).cloned().collect();
            seen.push(Eviction { pod, before_it });
        }
    }
    Ok(())
}

/// The pods whose workers have a place in the plan in force, according to the coordinator's report.
async fn placed(client: &Client, namespace: &str) -> Result<BTreeSet<String>> {
    let runs = documents(client, namespace, &ApiResource::erase::<VarunaRun>(&()));
    let run = runs
        .list(&ListParams::default())
        .await?
        .items
        .pop()
        .context("a run")?;
    let workers = run.data["status"]["state"]["workers"]
        .as_array()
        .context("workers")?;
    let placed = workers.iter().filter(|w| !w["pipeline"].is_null());
    Ok(placed
        .filter_map(|w| w["name"].as_str().map(str::to_owned))
        .collect())
}
