//! Nodes and jobs of the simulated cluster, and responses to probes of its coordinators.

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Number of images in the status of a node, similar to that of real nodes.
const IMAGES: usize = 20;

pub(crate) fn node_name(i: usize) -> String {
    format!("bench-{i}")
}

/// Adds a node with a status like that of real nodes, but without a lease: the controller manager, which checks leases, is stopped.
pub(crate) async fn add_node(client: &Client, i: usize) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let name = node_name(i);
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
    nodes
        .create(&PostParams::default(), &serde_json::from_value(node)?)
        .await?;
    let now = Timestamp::now().to_string();
    let images: Vec<_> = (0..IMAGES)
        .map(|image| json!({ "names": [format!("registry.example/team/image-{image}@sha256:{image:064x}")], "sizeBytes": 1 << 30 }))
        .collect();
    let ready = json!({ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
        "lastHeartbeatTime": now, "lastTransitionTime": now });
    let amounts = json!({ "cpu": "64", "memory": "512Gi", "pods": "250", "nvidia.com/gpu": "64" });
    let status =
        json!({ "capacity": amounts, "allocatable": amounts, "conditions": [ready], "images": images });
    let patch = Patch::Strategic(json!({ "status": status }));
    nodes.patch_status(&name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Answers the probes of all coordinators.
pub(crate) async fn answer_probes(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(answer_probes_of(stream));
    }
}

async fn answer_probes_of(mut stream: TcpStream) {
    let mut seen = Vec::new();
    let mut buffer = [0; 512];
    while let Ok(n) = stream.read(&mut buffer).await {
        if n == 0 {
            return;
        }
        seen.extend_from_slice(&buffer[..n]);
        if seen.ends_with(b"\r\n\r\n") {
            seen.clear();
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            if stream.write_all(answer).await.is_err() {
                return;
            }
        }
    }
}

/// A job whose pods the simulation binds to nodes.
pub(crate) fn job(name: &str, pods: usize) -> Result<DynamicObject> {
    let unscheduled = json!({ "spec": { "schedulerName": "none" } });
    let document = json!({
        "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaJob", "metadata": { "name": name },
        "spec": {
            "model": { "preset": "gpt2-tiny" }, "data": { "path": "/data/x" },
            "training": { "globalBatchSize": 64, "steps": 1_000_000, "optimizer": { "learningRate": 0.001 } },
            "elasticity": { "minWorkers": 1, "maxWorkers": pods },
            "coordinator": { "template": unscheduled.clone() },
            "workers": { "template": unscheduled },
        },
    });
    Ok(serde_json::from_value(document)?)
}
