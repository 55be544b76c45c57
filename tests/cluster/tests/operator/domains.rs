//! Labels of nodes reach the coordinators of the jobs whose workers are there.

use super::{create, pooled};
use anyhow::ensure;
use varuna_cluster_tests::{FakeNode, cluster, eventually, observed, operator};
use varuna_operator::decide::objects::record_name;

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_is_told_the_zone_of_its_workers_nodes() {
    let namespace = cluster().namespace("zones").unwrap();
    let client = cluster().client().await.unwrap();
    let kubectl = |arguments: &[&str]| cluster().kubectl(arguments, "");
    let name = format!("{namespace}-n");
    let node = FakeNode::add(&client, &name, &namespace, 4).await.unwrap();
    kubectl(&[
        "label",
        "node",
        &node.name,
        "topology.kubernetes.io/zone=eu-1a",
        "nvidia.com/gpu.clique=c1",
    ])
    .unwrap();
    let _operator = operator(client.clone(), &namespace);
    create(&client, &namespace, pooled(&namespace, 1)).await.unwrap();
    let job = observed(&client, &namespace, "j").await.unwrap();
    let run = record_name(&job);
    eventually("the orders say where the worker's node is", || async {
        let said = kubectl(&[
            "-n",
            &namespace,
            "get",
            "varunarun",
            &run,
            "-o",
            "jsonpath={.spec.domains}",
        ])?;
        ensure!(said == format!("{{\"{}\":\"eu-1a/c1\"}}", node.name), "{said}");
        Ok(())
    })
    .await
    .unwrap();
}
