//! `kubectl scale` and a suspension change a job's pods.

use super::{condition, create, live_are, pooled};
use anyhow::ensure;
use varuna_cluster_tests::{cluster, eventually, operator};

#[tokio::test(flavor = "multi_thread")]
async fn scale_and_suspend_change_the_pods() {
    let namespace = cluster().namespace("scale").unwrap();
    let client = cluster().client().await.unwrap();
    let _operator = operator(client.clone(), &namespace);
    create(&client, &namespace, pooled(&namespace, 2)).await.unwrap();
    live_are(&client, &namespace, &[1, 2]).await.unwrap();
    cluster()
        .kubectl(&["-n", &namespace, "scale", "vj/j", "--replicas=4"], "")
        .unwrap();
    live_are(&client, &namespace, &[1, 2, 3, 4]).await.unwrap();
    cluster()
        .kubectl(&["-n", &namespace, "scale", "vj/j", "--replicas=1"], "")
        .unwrap();
    live_are(&client, &namespace, &[1]).await.unwrap();
    let suspend = |is: bool| {
        let patch = format!("{{\"spec\":{{\"suspend\":{is},\"allowStateLoss\":true}}}}");
        let arguments = ["-n", &namespace, "patch", "vj", "j", "--type=merge", "-p", &patch];
        cluster().kubectl(&arguments, "").unwrap();
    };
    suspend(true);
    live_are(&client, &namespace, &[]).await.unwrap();
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
    live_are(&client, &namespace, &[5]).await.unwrap();
}
