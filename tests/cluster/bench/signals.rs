//! Measures the time from a signal (a pod is evicted, deleted or killed, or its node is tainted) to the plan without that worker, and to
//! the next committed step. Worker processes and API server are real, operator and coordinator run in this process, and the kubelet is
//! simulated.

use crate::audit::{Account, Audited, Request, by_kind};
use crate::{quantile, scrape};
use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, EvictParams, ListParams, Patch, PatchParams, PostParams,
};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use varuna_api::crd::{VarunaRecord, VarunaRun};
use varuna_cluster_tests::kubelet::{Kubelet, Processes};
use varuna_cluster_tests::{FakeNode, coordinators, documents, eventually, jobs, operator, unscheduled};
use varuna_coordinator::record_format;
use varuna_operator::decide::objects::NUMBER_LABEL;

const KINDS: [&str; 4] = ["evicted", "deleted", "tainted", "killed"];
/// For each kind of signal: milliseconds to the plan and to the step.
type Measured = BTreeMap<&'static str, (Vec<f64>, Vec<f64>)>;

/// Interval at which the step is read.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Time within which reports, statuses and Events are written, so that the effects of two signals do not overlap.
const REST: Duration = Duration::from_secs(8);

fn job(pool: &str) -> Value {
    json!({
        "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaJob", "metadata": { "name": "j" },
        "spec": {
            "model": { "layers": 4, "hiddenSize": 64, "heads": 4, "sequenceLength": 64, "vocabularySize": 320 },
            "data": { "path": "elsewhere", "validationFraction": 0.05 },
            "training": { "globalBatchSize": 16, "steps": 1_000_000, "optimizer": { "learningRate": 0.001 } },
            "pipeline": { "minDepth": 2 },
            "elasticity": { "minWorkers": 2, "maxWorkers": 4 },
            "coordinator": unscheduled(),
            "workers": { "threads": 1, "template": { "spec": { "nodeSelector": { "varuna.dev/test": pool } } } },
        },
    })
}

struct Bench {
    client: Client,
    namespace: String,
    plans: watch::Receiver<(i64, Instant)>,
    /// Port of the coordinator's metrics.
    health: u16,
    processes: Processes,
}

impl Bench {
    /// Number of committed steps, according to the coordinator's metrics.
    async fn step(&self) -> Option<f64> {
        let text = scrape(self.health, "/metrics").await.ok()?;
        let line = text.lines().find(|l| l.starts_with("varuna_job_step{"))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    async fn settled(&self) -> Result<String> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        eventually("four workers train", || async {
            let status = jobs(&self.client, &self.namespace).get("j").await?.data["status"].clone();
            ensure!(
                status["phase"] == "Training"
                    && status["plan"]["workers"] == 4
                    // The status may still have the plan before the newest one.
                    && status["plan"]["generation"] == self.plans.borrow().0,
                "{status}"
            );
            // Killed pods remain, for their logs.
            let running = ListParams::default()
                .fields("status.phase=Running")
                .labels(NUMBER_LABEL);
            let names: Vec<_> = pods
                .list(&running)
                .await?
                .iter()
                .filter(|p| p.metadata.deletion_timestamp.is_none())
                .map(ResourceExt::name_any)
                .collect();
            ensure!(names.len() == 4, "{names:?}");
            names.first().cloned().context("a pod")
        })
        .await
    }

    /// Sends one signal. Returns the milliseconds to the plan and to the next step.
    async fn signal(&mut self, kind: &str) -> Result<(f64, f64)> {
        let name = self.settled().await?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let before = self.plans.borrow_and_update().0;
        let at = Instant::now();
        match kind {
            "evicted" => drop(pods.evict(&name, &EvictParams::default()).await?),
            "deleted" => drop(pods.delete(&name, &DeleteParams::default()).await?),
            "tainted" => {
                let node = pods
                    .get(&name)
                    .await?
                    .spec
                    .and_then(|s| s.node_name)
                    .context("a node")?;
                let nodes: Api<Node> = Api::all(self.client.clone());
                let patch = |taints: Value| Patch::Merge(json!({ "spec": { "taints": taints } }));
                let taint = json!([{ "key": "karpenter.sh/disrupted", "effect": "NoSchedule" }]);
                nodes.patch(&node, &PatchParams::default(), &patch(taint)).await?;
                let measured = self.measure(at, before).await;
                nodes
                    .patch(&node, &PatchParams::default(), &patch(json!([])))
                    .await?;
                return measured;
            }
            _ => self.processes.kill(&name)?,
        }
        self.measure(at, before).await
    }

    async fn measure(&mut self, at: Instant, before: i64) -> Result<(f64, f64)> {
        let limit = Duration::from_secs(60);
        let planned =
            tokio::time::timeout(limit, self.plans.wait_for(|(generation, _)| *generation > before))
                .await??
                .1;
        let from = self.step().await.unwrap_or(0.0);
        let began = Instant::now();
        while self.step().await.is_none_or(|s| s <= from) {
            ensure!(began.elapsed() < limit, "no step after the plan");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let ms = |to: Instant| to.duration_since(at).as_secs_f64() * 1e3;
        Ok((ms(planned), ms(Instant::now())))
    }
}

/// Sends the generation of each new plan in the record, and the time at which it was seen.
async fn follow(records: Api<VarunaRecord>, tell: watch::Sender<(i64, Instant)>) {
    let mut records = watcher(records, watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .boxed();
    while let Some(record) = records.next().await {
        let Ok(record) = record else { continue };
        let status = record.status;
        let Some(record) = status.and_then(|s| record_format::decode(&s.record.0).ok()) else {
            continue;
        };
        // A planned change is persisted as the next plan, a recovery as the plan.
        let plans = [&record.plan, &record.next].into_iter().flatten();
        let numbers = plans.filter_map(|plan| i64::try_from(plan.generation.0).ok());
        let newest = numbers.max().unwrap_or(0);
        tell.send_if_modified(|now| {
            let newer = newest > now.0;
            if newer {
                *now = (newest, Instant::now());
            }
            newer
        });
    }
}

pub(crate) async fn run(rounds: u32, worker: PathBuf, data: PathBuf) -> Result<()> {
    let audited = Audited::start()?;
    let namespace = audited.cluster.namespace("signals")?;
    let client = audited.cluster.client().await?;
    let folder = tempfile::tempdir()?;
    let mut nodes = vec![];
    for i in 0..4 {
        nodes.push(FakeNode::add(&client, &format!("{namespace}-{i}"), &namespace, 2).await?);
    }
    let mut kubelet = Kubelet::new(
        client.clone(),
        &namespace,
        "j",
        worker,
        data,
        folder.path().to_owned(),
    )
    .await?;
    kubelet.every = Duration::from_millis(10);
    let processes = kubelet.processes();
    let kubelet = tokio::spawn(kubelet.work());
    let operator = operator(audited.client(Account::Operator).await?, &namespace);
    let own = audited.client(Account::Coordinator).await?;
    let coordinators = coordinators(&client, own, &namespace, &folder.path().join("run"));
    let document: DynamicObject = serde_json::from_value(job(&namespace))?;
    jobs(&client, &namespace)
        .create(&PostParams::default(), &document)
        .await?;
    let (tell, plans) = watch::channel((0, Instant::now()));
    let follower = tokio::spawn(follow(Api::namespaced(client.clone(), &namespace), tell));
    let health = health_port(&client, &namespace).await?;
    let mut bench = Bench {
        client,
        namespace,
        plans,
        health,
        processes,
    };
    bench.settled().await?;
    tokio::time::sleep(REST).await;
    audited.requests()?;
    let all = measured(&mut bench, rounds).await?;
    let requests = audited.requests()?;
    follower.abort();
    operator.abort();
    drop(coordinators);
    kubelet.abort();
    report(&all, &requests);
    drop(nodes);
    Ok(())
}

/// Port of the coordinator's metrics. It listens on this machine, whatever address it reports.
async fn health_port(client: &Client, namespace: &str) -> Result<u16> {
    let runs = documents(client, namespace, &ApiResource::erase::<VarunaRun>(&()));
    eventually("the coordinator reports", || async {
        let run = runs
            .list(&ListParams::default())
            .await?
            .items
            .pop()
            .context("a run")?;
        let address = run.data["status"]["healthAddress"]
            .as_str()
            .context("an address")?;
        Ok(address.rsplit(':').next().context("a port")?.parse()?)
    })
    .await
}

async fn measured(bench: &mut Bench, rounds: u32) -> Result<Measured> {
    let mut all: Measured = BTreeMap::new();
    for _ in 0..rounds {
        for kind in KINDS {
            let (plan, step) = bench.signal(kind).await.context(kind)?;
            bench.settled().await?;
            tokio::time::sleep(REST).await;
            println!("{kind}: plan after {plan:.0} ms, step after {step:.0} ms");
            let (plans, steps) = all.entry(kind).or_default();
            plans.push(plan);
            steps.push(step);
        }
    }
    Ok(all)
}

fn report(all: &Measured, requests: &[Request]) {
    let mut every = (vec![], vec![]);
    for (kind, (plans, steps)) in all {
        for (what, values) in [("plan", plans), ("step", steps)] {
            println!(
                "RESULT operator.{kind}_to_{what}_p50_ms {:.0}",
                quantile(values, 0.5)
            );
            println!(
                "RESULT operator.{kind}_to_{what}_p99_ms {:.0}",
                quantile(values, 0.99)
            );
        }
        every.0.extend(plans);
        every.1.extend(steps);
    }
    println!("RESULT operator.signals {}", every.0.len());
    #[expect(clippy::cast_precision_loss, reason = "counts")]
    let each = |n: usize| n as f64 / every.0.len() as f64;
    let of = |who: Account| each(requests.iter().filter(|r| r.who == who).count());
    let (operator, coordinator) = (of(Account::Operator), of(Account::Coordinator));
    for (n, kind) in by_kind(requests) {
        println!("{:6.2} {kind}", each(n));
    }
    println!(
        "RESULT operator.requests_per_preemption {:.1}",
        operator + coordinator
    );
    println!("RESULT operator.requests_of_operator {operator:.1}");
    println!("RESULT operator.requests_of_coordinator {coordinator:.1}");
    println!(
        "RESULT operator.signal_to_plan_p50_ms {:.0}",
        quantile(&every.0, 0.5)
    );
    println!(
        "RESULT operator.signal_to_plan_p99_ms {:.0}",
        quantile(&every.0, 0.99)
    );
    println!(
        "RESULT operator.signal_to_step_p50_ms {:.0}",
        quantile(&every.1, 0.5)
    );
    println!(
        "RESULT operator.signal_to_step_p99_ms {:.0}",
        quantile(&every.1, 0.99)
    );
}
