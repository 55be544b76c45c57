//! A job on a real API server with real workers, from `kubectl apply` to Complete, with preemptions.
#![expect(clippy::too_many_lines, reason = "a test of many consecutive events")]

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::path::PathBuf;
use varuna_cluster_tests::kubelet::Kubelet;
use varuna_cluster_tests::{
    FakeNode, cluster, coordinators, eventually, jobs, log_tail, observed, operator, root, unscheduled,
};
use varuna_operator::decide::objects::{COORDINATOR_LABEL, coordinator_pod_name, pod_name, worker_selector};

const STEPS: i64 = 200;
/// Number of steps that are added while the job trains.
const MORE: i64 = 40;

/// The worker binary: `VARUNA_WORKER`, or else the one that `make test-kube` builds.
fn worker() -> PathBuf {
    let built = root().join("target/debug/varuna-worker");
    let path = std::env::var_os("VARUNA_WORKER").map_or(built, PathBuf::from);
    assert!(
        path.exists(),
        "{} is missing: run `make test-kube`",
        path.display()
    );
    path
}

fn job(pool: &str) -> Value {
    json!({
        "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaJob", "metadata": { "name": "j" },
        "spec": {
            "model": { "layers": 4, "hiddenSize": 128, "heads": 4, "sequenceLength": 64, "vocabularySize": 320 },
            "data": { "path": "elsewhere", "validationFraction": 0.05 },
            "training": { "globalBatchSize": 32, "steps": STEPS, "optimizer": { "learningRate": 0.001 } },
            // At least two stages, so that a lost worker takes a part of the model with it.
            "pipeline": { "minDepth": 2 },
            "elasticity": { "minWorkers": 2, "maxWorkers": 4 },
            "coordinator": unscheduled(),
            "workers": { "threads": 1, "template": { "spec": { "nodeSelector": { "varuna.dev/test": pool } } } },
        },
    })
}

/// The folder of the workers' logs. If the test fails, the ends of the logs are printed.
struct Logs(tempfile::TempDir);

impl Drop for Logs {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for entry in std::fs::read_dir(self.0.path()).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_file() {
                println!("-- {}\n{}", path.display(), log_tail(&path));
            }
        }
    }
}

async fn status(client: &Client, namespace: &str) -> Result<Value> {
    Ok(jobs(client, namespace).get("j").await?.data["status"].clone())
}

/// Waits until the job has reached a step with this number of workers in its plan.
async fn reaches(client: &Client, namespace: &str, step: i64, workers: i64) -> Result<Value> {
    eventually(&format!("step {step} with {workers} workers"), || async {
        let status = status(client, namespace).await?;
        let there = status["step"].as_i64().unwrap_or(0) >= step && status["plan"]["workers"] == workers;
        ensure!(there || status["phase"] == "Complete", "{status}");
        Ok(status)
    })
    .await
}

/// Waits until the job is complete, for as long as it commits steps: how long they take depends on the machine and what else runs on it.
async fn completes(client: &Client, namespace: &str) -> Result<Value> {
    let mut reached = 0;
    loop {
        let seen = eventually(&format!("a step after {reached}, or the end"), || async {
            let status = status(client, namespace).await?;
            let step = status["step"].as_i64().unwrap_or(0);
            ensure!(status["phase"] == "Complete" || step > reached, "{status}");
            Ok(status)
        })
        .await?;
        if seen["phase"] == "Complete" {
            return Ok(seen);
        }
        reached = seen["step"].as_i64().unwrap_or(0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn job_trains_through_preemptions_and_a_takeover() {
    let namespace = cluster().namespace("train").unwrap();
    let client = cluster().client().await.unwrap();
    let folder = Logs(tempfile::tempdir().unwrap());
    let data = root().join(".cache/data/kjv");
    assert!(
        data.with_extension("idx").exists(),
        "the dataset is missing: run `make data`"
    );
    let a = FakeNode::add(&client, &format!("{namespace}-a"), &namespace, 4)
        .await
        .unwrap();
    let logs = folder.0.path().to_owned();
    let kubelet = Kubelet::new(client.clone(), &namespace, "j", worker(), data, logs)
        .await
        .unwrap();
    let kubelet = tokio::spawn(kubelet.work());
    let first = operator(client.clone(), &namespace);
    let _coordinators = coordinators(
        &client,
        client.clone(),
        &namespace,
        &folder.0.path().join("coordinators"),
    );
    let document: DynamicObject = serde_json::from_value(job(&namespace)).unwrap();
    jobs(&client, &namespace)
        .create(&PostParams::default(), &document)
        .await
        .unwrap();
    let begun = reaches(&client, &namespace, 1, 4).await.unwrap();
    let generation = |status: &Value| status["plan"]["generation"].as_i64().unwrap_or(0);

    // A pod is evicted: the others continue, and a new pod joins.
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let own = observed(&client, &namespace, "j").await.unwrap();
    let (evicted, next) = (pod_name(&own, 1), pod_name(&own, 5));
    pods.evict(&evicted, &EvictParams::default()).await.unwrap();
    let replaced = eventually("the evicted pod is replaced and in the plan", || async {
        let names: Vec<_> = pods
            .list(&ListParams::default().labels(&worker_selector("j")))
            .await?
            .iter()
            .map(|p| p.name_any())
            .collect();
        ensure!(names.contains(&next) && !names.contains(&evicted), "{names:?}");
        let status = status(&client, &namespace).await?;
        ensure!(
            generation(&status) > generation(&begun) && status["plan"]["workers"] == 4,
            "{status}"
        );
        Ok(status)
    })
    .await
    .unwrap();
    assert_ne!(
        replaced["phase"], "Complete",
        "too quick for this test: {replaced}"
    );

    // The node announces its end, and its pods move to the other node.
    let _b = FakeNode::add(&client, &format!("{namespace}-b"), &namespace, 4)
        .await
        .unwrap();
    a.taint("karpenter.sh/disrupted", "NoSchedule").await.unwrap();
    let moved = eventually("all pods are on the other node", || async {
        let all = pods
            .list(&ListParams::default().labels(&worker_selector("j")))
            .await?;
        let on =
            |p: &Pod| p.spec.as_ref().and_then(|s| s.node_name.clone()) == Some(format!("{namespace}-b"));
        ensure!(
            all.items.len() == 4 && all.iter().all(on),
            "{} pods",
            all.items.len()
        );
        reaches(&client, &namespace, 1, 4).await
    })
    .await
    .unwrap();
    assert_ne!(moved["phase"], "Complete", "too quick for this test: {moved}");

    // More steps are ordered while the job trains.
    let more = json!({ "spec": { "training": { "steps": STEPS + MORE } } });
    jobs(&client, &namespace)
        .patch("j", &PatchParams::default(), &Patch::Merge(&more))
        .await
        .unwrap();

    // Another operator takes over: no step is lost.
    first.abort();
    let _second = operator(client.clone(), &namespace);
    // The coordinator is evicted: another one takes over.
    let coordinator = coordinator_pod_name(&observed(&client, &namespace, "j").await.unwrap(), 1);
    pods.evict(&coordinator, &EvictParams::default()).await.unwrap();
    eventually("another coordinator is in charge", || async {
        let all = pods
            .list(&ListParams::default().labels(COORDINATOR_LABEL))
            .await?;
        let names: Vec<_> = all.iter().map(|p| p.name_any()).collect();
        ensure!(!names.contains(&coordinator) && names.len() == 1, "{names:?}");
        Ok(())
    })
    .await
    .unwrap();
    let done = completes(&client, &namespace).await.unwrap();
    assert_eq!(
        (&done["step"], &done["steps"]),
        (&json!(STEPS + MORE), &json!(STEPS + MORE))
    );
    assert_eq!(done["progress"], format!("{0}/{0}", STEPS + MORE));
    let spent = &done["time"];
    assert!(spent["trainingSeconds"].as_i64().unwrap() > 0, "{done}");
    assert!(done["history"].as_array().is_some_and(|h| h.len() >= 3), "{done}");
    let loss: f64 = done["loss"].as_str().context("a loss").unwrap().parse().unwrap();
    assert!(loss < 4.5, "5.77 is what an untrained model says; {loss}");
    assert_eq!(done["stepsLost"].as_i64().unwrap_or(0), 0, "{done}");
    assert!(done["reconfigurations"].as_i64().unwrap() >= 2, "{done}");
    kubelet.abort();
}
