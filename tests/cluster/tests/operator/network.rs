//! The network policies of a job, as an API server accepts them.

use super::{create, jobs, pooled, with};
use anyhow::ensure;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use varuna_cluster_tests::{cluster, eventually, observed, operator};

#[tokio::test(flavor = "multi_thread")]
async fn policies_follow_the_spec_of_an_isolated_job() {
    let namespace = cluster().namespace("isolated").unwrap();
    let client = cluster().client().await.unwrap();
    let _operator = operator(client.clone(), &namespace);
    let network = json!({ "policy": "isolated", "extraEgress": [{ "ports": [{ "port": 9000 }] }] });
    let document = with(pooled(&namespace, 1), "/spec/network", network);
    create(&client, &namespace, document).await.unwrap();
    let job = observed(&client, &namespace, "j").await.unwrap();
    let api: Api<NetworkPolicy> = Api::namespaced(client.clone(), &namespace);
    let egress = async |port: i32| {
        eventually("both policies let the port through", || async {
            let all = api.list(&ListParams::default()).await?.items;
            ensure!(all.len() == 2, "{} policies", all.len());
            for policy in all {
                ensure!(
                    policy.owner_references()[0].uid == job.uid,
                    "not the job's: {policy:?}"
                );
                let spec = serde_json::to_value(&policy.spec)?;
                let last = spec["egress"].as_array().and_then(|rules| rules.last().cloned());
                ensure!(
                    last == Some(json!({ "ports": [{ "port": port, "protocol": "TCP" }] })),
                    "{spec}"
                );
                ensure!(spec["policyTypes"] == json!(["Ingress", "Egress"]), "{spec}");
            }
            Ok(())
        })
        .await
        .unwrap();
    };
    egress(9000).await;
    let patch = |network: &str| {
        let patch = format!("{{\"spec\": {{\"network\": {network}}}}}");
        let arguments = ["-n", &namespace, "patch", "vj", "j", "--type=merge", "-p", &patch];
        cluster().kubectl(&arguments, "")
    };
    patch("{\"extraEgress\": [{\"ports\": [{\"port\": 9001}]}]}").unwrap();
    egress(9001).await;
    let said = patch("{\"policy\": \"none\", \"extraEgress\": null}")
        .unwrap_err()
        .to_string();
    assert!(said.contains("network.policy cannot change"), "{said}");
    let said = patch("{\"policy\": \"none\"}").unwrap_err().to_string();
    assert!(said.contains("leave extraEgress out"), "{said}");
    jobs(&client, &namespace)
        .delete("j", &DeleteParams::default())
        .await
        .unwrap();
    eventually("the policies go with the job", || async {
        let left = api.list(&ListParams::default()).await?.items.len();
        ensure!(left == 0, "{left} policies");
        Ok(())
    })
    .await
    .unwrap();
}
