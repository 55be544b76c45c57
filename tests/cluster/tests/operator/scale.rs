//! `kubectl scale` and a suspension change a job's pods.

use super::{condition, create, jobs, live, pods, pooled, wait_for_live_pods, with};
use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use varuna_cluster_tests::{cluster, eventually, operator};
use varuna_operator::decide::objects::GROUP_LABEL;

#[tokio::test(flavor = "multi_thread")]
async fn scale_and_suspend_change_the_pods() {
    let namespace = cluster().namespace("scale").unwrap();
    let client = cluster().client().await.unwrap();
    let _operator = operator(client.clone(), &namespace);
    create(&client, &namespace, pooled(&namespace, 2)).await.unwrap();
    wait_for_live_pods(&client, &namespace, &[1, 2]).await.unwrap();
    cluster()
        .kubectl(&["-n", &namespace, "scale", "vj/j", "--replicas=4"], "")
        .unwrap();
    wait_for_live_pods(&client, &namespace, &[1, 2, 3, 4])
        .await
        .unwrap();
    cluster()
        .kubectl(&["-n", &namespace, "scale", "vj/j", "--replicas=1"], "")
        .unwrap();
    wait_for_live_pods(&client, &namespace, &[1]).await.unwrap();
    let suspend = |is: bool| {
        let patch = format!("{{\"spec\":{{\"suspend\":{is},\"allowStateLoss\":true}}}}");
        let arguments = ["-n", &namespace, "patch", "vj", "j", "--type=merge", "-p", &patch];
        cluster().kubectl(&arguments, "").unwrap();
    };
    suspend(true);
    wait_for_live_pods(&client, &namespace, &[]).await.unwrap();
    eventually("the condition says so", || async {
        let suspended = condition(&client, &namespace, "Suspended").await?;
        ensure!(
            suspended["status"] == "True" && suspended["observedGeneration"] == 4,
            "{suspended}"
        );
        Ok(())
    })
    .await
    .unwrap();
    suspend(false);
    wait_for_live_pods(&client, &namespace, &[5]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_share_the_maximum_and_replace_their_pods() {
    let namespace = cluster().namespace("groups").unwrap();
    let client = cluster().client().await.unwrap();
    let _operator = operator(client.clone(), &namespace);
    let groups = json!([
        { "name": "spot", "maxWorkers": 6 },
        { "name": "lasting", "minWorkers": 1, "nodeSelector": { "example.com/lasting": "true" } },
    ]);
    let document = with(pooled(&namespace, 3), "/spec/workerGroups", groups);
    create(&client, &namespace, document).await.unwrap();
    // For each group: its pods, the pods that its selector selects, and the numbers in the status.
    let are = async |want: [usize; 2]| {
        eventually(&format!("pods by group {want:?}"), || async {
            let mut count = [0, 0];
            for pod in pods(&client, &namespace).await? {
                if pod.metadata.deletion_timestamp.is_some() {
                    continue;
                }
                let lasting = pod.labels()[GROUP_LABEL] == "lasting";
                let selector = pod.spec.unwrap().node_selector.unwrap_or_default();
                ensure!(
                    selector.contains_key("example.com/lasting") == lasting,
                    "{selector:?}"
                );
                ensure!(
                    selector.contains_key("varuna.dev/test"),
                    "not merged: {selector:?}"
                );
                count[usize::from(lasting)] += 1;
            }
            ensure!(count == want, "{count:?}");
            let status = jobs(&client, &namespace).get("j").await?.data["status"]["workerGroups"].clone();
            let wanted = [0, 1].map(|i| status[i]["wanted"].as_u64());
            ensure!(wanted == want.map(|n| u64::try_from(n).ok()), "{status}");
            Ok(())
        })
        .await
        .unwrap();
    };
    are([2, 1]).await;
    let all: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let of_lasting = ListParams::default().labels(&format!("{GROUP_LABEL}=lasting"));
    let lost = all.list(&of_lasting).await.unwrap().items[0].name_any();
    all.delete(&lost, &DeleteParams::default()).await.unwrap();
    are([2, 1]).await;
    assert!(!live(&client, &namespace).await.unwrap().contains(&lost));
    let kubectl =
        |arguments: &[&str]| cluster().kubectl(&[&["-n", namespace.as_str()], arguments].concat(), "");
    kubectl(&["scale", "vj/j", "--replicas=5"]).unwrap();
    are([4, 1]).await;
    kubectl(&["scale", "vj/j", "--replicas=1"]).unwrap();
    are([0, 1]).await;
    let gone = "{\"spec\": {\"workerGroups\": [{\"name\": \"lasting\"}]}}";
    let said = kubectl(&["patch", "vj", "j", "--type=merge", "-p", gone])
        .unwrap_err()
        .to_string();
    assert!(said.contains("groups of workers cannot be removed"), "{said}");
}
