//! A thousand jobs: how long a reconciliation takes, what the operator's process needs, what it asks of the API server at rest, and
//! how quickly a new one has taken all of them over. Pods are bound to fake nodes as they are made, and run when this says so.

use crate::audit::Audited;
use crate::scrape;
use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use futures::stream;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use varuna_cluster_tests::{FakeNode, coordinators, jobs, unscheduled};
use varuna_operator::decide::objects::NUMBER_LABEL;

/// Concurrent calls.
const ABREAST: usize = 16;
/// What takes longer has failed.
const LIMIT: Duration = Duration::from_secs(400);
/// The time at rest over which requests are counted.
const REST: Duration = Duration::from_secs(60);

/// The operator as a process of its own.
struct Operator {
    process: Child,
    health: u16,
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Operator {
    fn start(binary: &Path, kubeconfig: &Path, folder: &Path, namespace: &str) -> Result<Operator> {
        let health = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = std::fs::File::create(folder.join(format!("operator-{health}.log")))?;
        let process = Command::new(binary)
            .args(["--namespace", namespace, "--address", "127.0.0.1"])
            .args(["--coordinator-image", "c:1"])
            .args([
                "--identity",
                &format!("bench-{health}"),
                "--lease-namespace",
                namespace,
                "--worker-image",
                "w:1",
            ])
            .args(["--health", &format!("127.0.0.1:{health}")])
            .env("KUBECONFIG", kubeconfig)
            .env("VARUNA_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        Ok(Operator { process, health })
    }

    async fn metrics(&self) -> Result<String> {
        scrape(self.health).await
    }

    /// Jobs that were reconciled and whose coordinator runs.
    async fn knows(&self) -> usize {
        let text = self.metrics().await.unwrap_or_default();
        let waits =
            |l: &&str| l.starts_with("varuna_job_phase{") && l.contains("\"Waiting\"") && l.ends_with(" 1.0");
        text.lines().filter(waits).count()
    }

    /// Resident memory in MB, and seconds of CPU so far.
    fn cost(&self) -> Result<(f64, f64)> {
        let id = self.process.id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
        let kb = status.lines().find_map(|l| {
            l.strip_prefix("VmRSS:")?
                .trim()
                .strip_suffix(" kB")?
                .parse::<f64>()
                .ok()
        });
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
        // After the name, which may hold anything: user and system time are the 12th and 13th, in hundredths.
        let rest: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let ticks = |i: usize| rest.get(i).and_then(|t| t.parse::<f64>().ok()).unwrap_or(0.0);
        Ok((kb.context("VmRSS")? / 1e3, (ticks(11) + ticks(12)) / 100.0))
    }
}

fn job(name: &str, pods: u32, node: &str) -> Value {
    json!({
        "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaJob", "metadata": { "name": name },
        "spec": {
            "model": { "preset": "gpt2-tiny" }, "data": { "path": "/data/x" },
            "training": { "globalBatchSize": 64, "steps": 1000, "optimizer": { "learningRate": 0.001 } },
            "elasticity": { "minWorkers": 1, "maxWorkers": pods },
            "coordinator": unscheduled(),
            // Bound at once: the scheduler is not what is measured.
            "workers": { "template": { "spec": { "nodeName": node } } },
        },
    })
}

async fn wait(what: &str, mut done: impl AsyncFnMut() -> bool) -> Result<f64> {
    let began = Instant::now();
    while !done().await {
        ensure!(
            began.elapsed() < LIMIT,
            "{what} takes longer than {} s",
            LIMIT.as_secs()
        );
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let took = began.elapsed().as_secs_f64();
    println!("{what}: {took:.1} s");
    Ok(took)
}

/// A share of a histogram's observations lies below this, in milliseconds: by interpolation within the bucket, as Prometheus does.
fn histogram(metrics: &str, name: &str, share: f64) -> f64 {
    let head = format!("{name}_bucket{{le=\"");
    let buckets: Vec<(f64, f64)> = metrics
        .lines()
        .filter_map(|l| {
            let (le, rest) = l.strip_prefix(&head)?.split_once('"')?;
            let le = if le == "+Inf" {
                f64::INFINITY
            } else {
                le.parse().ok()?
            };
            Some((le, rest.rsplit(' ').next()?.parse().ok()?))
        })
        .collect();
    let want = share * buckets.last().map_or(0.0, |b| b.1);
    let mut below = (0.0, 0.0);
    for (le, count) in buckets {
        if count >= want && count > below.1 {
            let within = (want - below.1) / (count - below.1);
            return 1e3
                * if le.is_finite() {
                    below.0 + (le - below.0) * within
                } else {
                    below.0
                };
        }
        below = (le, count);
    }
    f64::NAN
}

async fn each<T>(items: impl IntoIterator<Item = T>, work: impl AsyncFn(T) -> Result<()>) -> Result<()> {
    let work = &work;
    let results: Vec<Result<()>> = stream::iter(items.into_iter().map(|item| work(item)))
        .buffer_unordered(ABREAST)
        .collect()
        .await;
    results.into_iter().collect()
}

async fn set_running(client: &Client, namespace: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let names: Vec<String> = pods
        .list(&ListParams::default().labels(NUMBER_LABEL))
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    let patch = json!({ "status": { "phase": "Running" } });
    each(names, async |name: String| {
        pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok(())
    })
    .await
}

async fn make(client: &Client, namespace: &str, count: usize, pods: u32) -> Result<()> {
    let api = jobs(client, namespace);
    let began = Instant::now();
    each(0..count, async |i| {
        let document: DynamicObject =
            serde_json::from_value(job(&format!("j{i}"), pods, &format!("bench-{}", i % 8)))?;
        api.create(&PostParams::default(), &document).await?;
        Ok(())
    })
    .await?;
    println!("{count} jobs were made in {:.1} s", began.elapsed().as_secs_f64());
    Ok(())
}

pub(crate) async fn run(count: usize, pods: u32, binary: PathBuf) -> Result<()> {
    let audited = Audited::start()?;
    let (cluster, folder) = (&audited.cluster, audited.folder.path());
    let client = cluster.client().await?;
    let namespace = cluster.namespace("scale")?;
    let mut nodes = vec![];
    for i in 0..8 {
        nodes.push(FakeNode::add(&client, &format!("bench-{i}"), "bench", 8).await?);
    }
    let kubeconfig = audited.identity(&namespace)?;
    let operator = Operator::start(&binary, &kubeconfig, folder, &namespace)?;
    let _coordinators = coordinators(&client, client.clone(), &namespace, &folder.join("coordinators"));
    make(&client, &namespace, count, pods).await?;
    let all = count * pods as usize;
    let made: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let counted = async || {
        let one = made.list(&ListParams::default().limit(1)).await;
        one.is_ok_and(|l| {
            // With a coordinator for each job.
            1 + usize::try_from(l.metadata.remaining_item_count.unwrap_or(0)).unwrap_or(0) >= all + count
        })
    };
    let pods_s = wait(&format!("{all} pods made"), counted).await?;
    set_running(&client, &namespace).await?;
    wait("all jobs wait for their workers", async || {
        operator.knows().await == count
    })
    .await?;
    let text = operator.metrics().await?;
    let (p50, p99) = (
        histogram(&text, "varuna_reconcile_duration_seconds", 0.5),
        histogram(&text, "varuna_reconcile_duration_seconds", 0.99),
    );
    // What the last changes cause comes to rest: the status follows within 15 s.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let (before, (_, cpu)) = (audited.requests(), operator.cost()?);
    tokio::time::sleep(REST).await;
    let (rss, cpu_after) = operator.cost()?;
    #[expect(clippy::cast_precision_loss, reason = "counts")]
    let idle = (audited.requests() - before) as f64 / count as f64 / (REST.as_secs_f64() / 60.0);
    drop(operator);
    let operator = Operator::start(&binary, &kubeconfig, folder, &namespace)?;
    let cold = wait("another operator has taken all jobs over", async || {
        operator.knows().await == count
    })
    .await?;
    println!("RESULT operator.jobs {count}");
    println!("RESULT operator.pods {all}");
    println!("RESULT operator.pods_made_s {pods_s:.1}");
    println!("RESULT operator.reconcile_p50_ms {p50:.1}");
    println!("RESULT operator.reconcile_p99_ms {p99:.1}");
    println!("RESULT operator.rss_mb {rss:.0}");
    println!(
        "RESULT operator.idle_cpu_cores {:.2}",
        (cpu_after - cpu) / REST.as_secs_f64()
    );
    println!("RESULT operator.idle_requests_per_job_min {idle:.3}");
    println!("RESULT operator.cold_start_s {cold:.1}");
    drop(nodes);
    Ok(())
}
