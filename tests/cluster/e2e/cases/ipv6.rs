//! A cluster with IPv6 only: all addresses at which the job's pods listen, to which they connect, and under which they are found are IPv6.

use super::{CaseRun, node_of};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use varuna_operator::decide::objects::JOB_LABEL;

/// Steps of the job. They take a few minutes at most, and longer than the replacement of a worker.
const STEPS: i64 = 400;

/// Spreads the job's workers over nodes, and limits its number of steps.
pub(super) fn spread_workers_and_limit_steps(document: &mut Value) {
    document["spec"]["training"]["steps"] = json!(STEPS);
    // The first node, without GPUs, counts for the spread as well, so there are at most three workers on one node.
    let spread = json!({
        "maxSkew": 2, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { JOB_LABEL: "j" } },
    });
    document["spec"]["workers"]["template"] = json!({ "spec": { "topologySpreadConstraints": [spread] } });
}

impl CaseRun<'_> {
    pub(super) async fn ipv6(&mut self) -> Result<()> {
        let workers = self.job.pods().await?;
        let nodes: BTreeSet<&str> = workers.iter().map(node_of).collect();
        ensure!(nodes.len() > 1, "all workers are on {nodes:?}");
        self.has_no_other_addresses().await?;
        self.worker_killed().await?;
        self.has_no_other_addresses().await?;
        let end = self
            .job
            .until("the job is complete", |l| l.phase() == "Complete")
            .await?;
        ensure!(end.step() == STEPS, "complete at step {}", end.step());
        Ok(())
    }

    /// All addresses of the job's pods, Services and EndpointSlices belong to the cluster's family.
    async fn has_no_other_addresses(&self) -> Result<()> {
        let (client, namespace) = (&self.job.client, &self.job.namespace);
        let family = self.world.family;
        let ours = |text: &str| text.parse().is_ok_and(|address| family.has(address));
        let of_job = ListParams::default().labels(&format!("{JOB_LABEL}=j"));
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        for pod in pods.list(&of_job).await? {
            let status = pod.status.clone().unwrap_or_default();
            let addresses = status.pod_ips.unwrap_or_default();
            ensure!(
                addresses.iter().all(|a| ours(&a.ip)),
                "{}: {addresses:?}",
                pod.name_any()
            );
        }
        let services: Api<Service> = Api::namespaced(client.clone(), namespace);
        let services = services.list(&ListParams::default()).await?;
        ensure!(!services.items.is_empty(), "no Service");
        for service in services {
            let spec = service.spec.clone().unwrap_or_default();
            let families = spec.ip_families.unwrap_or_default();
            ensure!(families == ["IPv6"], "{}: {families:?}", service.name_any());
        }
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
        let slices = slices.list(&ListParams::default()).await?;
        let addresses = slices
            .iter()
            .flat_map(|s| s.endpoints.iter().flatten())
            .flat_map(|e| &e.addresses);
        let addresses: Vec<&String> = addresses.collect();
        addresses.first().context("no endpoint")?;
        ensure!(addresses.iter().all(|a| ours(a)), "{addresses:?}");
        Ok(())
    }
}
