//! Fake nodes: they have no kubelet, but send the heartbeats of one, so the API server treats them as ready.

use anyhow::Result;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Kubernetes marks a node as unreachable after 40 s without a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(8);

/// A node without a kubelet. It reports that it is ready until it is dropped. Its pods run when a test sets their status.
pub struct FakeNode {
    /// Name of the node.
    pub name: String,
    client: Client,
    beat: JoinHandle<()>,
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        self.beat.abort();
    }
}

impl FakeNode {
    /// Adds a node with a number of GPUs, for pods that select `varuna.dev/test=<pool>`.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn add(client: &Client, name: &str, pool: &str, gpus: u32) -> Result<FakeNode> {
        let nodes: Api<Node> = Api::all(client.clone());
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": { "varuna.dev/test": pool } } });
        let params = PatchParams::apply("fake-node").force();
        nodes.patch(name, &params, &Patch::Apply(&node)).await?;
        let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
        beat(&leases, name).await?;
        let amounts =
            json!({ "cpu": "64", "memory": "512Gi", "pods": "250", "nvidia.com/gpu": gpus.to_string() });
        let status = json!({ "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Fake", "message": "as tests want it",
                "lastHeartbeatTime": Timestamp::now().to_string(), "lastTransitionTime": Timestamp::now().to_string(),
            }],
        } });
        nodes
            .patch_status(name, &PatchParams::default(), &Patch::Strategic(&status))
            .await?;
        let again = name.to_owned();
        let beat = tokio::spawn(async move {
            loop {
                tokio::time::sleep(HEARTBEAT).await;
                // A missed heartbeat does not matter: the next one follows soon.
                let _ = beat(&leases, &again).await;
            }
        });
        Ok(FakeNode {
            name: name.to_owned(),
            client: client.clone(),
            beat,
        })
    }

    /// Adds a taint.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn taint(&self, key: &str, effect: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = json!({ "spec": { "taints": [{ "key": key, "effect": effect }] } });
        nodes
            .patch(&self.name, &PatchParams::default(), &Patch::Strategic(&patch))
            .await?;
        Ok(())
    }

    /// Removes the node, as a cloud does when a machine is gone.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn remove(self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.delete(&self.name, &DeleteParams::default()).await?;
        Ok(())
    }
}

async fn beat(leases: &Api<Lease>, node: &str) -> Result<()> {
    let spec = LeaseSpec {
        holder_identity: Some(node.to_owned()),
        lease_duration_seconds: Some(40),
        renew_time: Some(MicroTime(Timestamp::now())),
        ..LeaseSpec::default()
    };
    match leases.get_opt(node).await? {
        Some(mut lease) => {
            lease.spec = Some(spec);
            leases.replace(node, &PostParams::default(), &lease).await?;
        }
        None => {
            let metadata = ObjectMeta {
                name: Some(node.to_owned()),
                ..ObjectMeta::default()
            };
            leases
                .create(
                    &PostParams::default(),
                    &Lease {
                        metadata,
                        spec: Some(spec),
                    },
                )
                .await?;
        }
    }
    Ok(())
}
