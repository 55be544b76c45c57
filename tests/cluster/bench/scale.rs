//! Very many jobs that train: how soon the operator answers an event, one and a thousand at once, what its process needs at rest, what it
//! asks of the API server, and how soon another one has taken all jobs over. Each for a growing number of jobs.

use crate::audit::{Audited, Who, by_kind};
use crate::effects::{Effects, effects};
use crate::operator_process::{MachineTime, Operator};
use crate::played::{job, node_name};
use crate::quantile;
use crate::stand_in::StandIn;
use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use varuna_cluster_tests::jobs;
use varuna_operator::decide::objects::{JOB_LABEL, NUMBER_LABEL};

/// Concurrent calls.
const ABREAST: usize = 32;
/// What takes longer has failed.
const LIMIT: Duration = Duration::from_secs(1200);
/// What an event causes has come to rest after this time, reports and statuses included.
const SETTLED: Duration = Duration::from_secs(20);
/// Pods that are deleted one after the other, and the time between two.
const DELETED: usize = 40;
const BETWEEN: Duration = Duration::from_millis(250);
/// Nodes that are tainted.
const TAINTED: usize = 4;
/// Events of a storm.
const STORM: usize = 1000;
/// Rest at a number of jobs that is not the last.
const SHORT_REST: Duration = Duration::from_secs(45);

/// How much.
pub(crate) struct Size {
    /// Numbers of jobs, growing.
    pub(crate) jobs: Vec<usize>,
    /// Pods of each.
    pub(crate) pods: usize,
    pub(crate) nodes: usize,
    /// At rest with the last number of jobs.
    pub(crate) rest: Duration,
    /// The program.
    pub(crate) operator: PathBuf,
}

/// A process that stands still until this is dropped: one that did for ever would keep the control plane from ending.
struct Paused(Pid);

impl Drop for Paused {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

struct Bench {
    _manager: Paused,
    audited: Audited,
    client: Client,
    signals: Client,
    namespace: String,
    stand_in: Arc<StandIn>,
    operator: Operator,
    size: Size,
}

/// What was measured of events.
struct Answered {
    effects: Effects,
    events: usize,
    /// Requests of operator and coordinators for each event.
    requests: f64,
    busy: f64,
}

/// What was measured at rest.
struct Rested {
    cores: f64,
    mb: f64,
    busy: f64,
    /// Requests of the operator for each job in a minute.
    requests: f64,
}

async fn wait(what: &str, operator: &Operator, mut done: impl AsyncFnMut() -> bool) -> Result<f64> {
    let began = Instant::now();
    while !done().await {
        operator.check_runs()?;
        ensure!(
            began.elapsed() < LIMIT,
            "{what} takes longer than {} s",
            LIMIT.as_secs()
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let took = began.elapsed().as_secs_f64();
    println!("{what}: {took:.1} s");
    Ok(took)
}

async fn each<T>(items: impl IntoIterator<Item = T>, work: impl AsyncFn(T) -> Result<()>) -> Result<()> {
    let work = &work;
    let results: Vec<Result<()>> = stream::iter(items.into_iter().map(|item| work(item)))
        .buffer_unordered(ABREAST)
        .collect()
        .await;
    results.into_iter().collect()
}

#[expect(clippy::cast_precision_loss, reason = "counts")]
fn number(n: usize) -> f64 {
    n as f64
}

/// How the API server serves the operator's Lease, as the chart says (`templates/flow-control.yaml`).
fn lease_schema(namespace: &str) -> Value {
    let account = json!({ "name": Who::Operator.account(), "namespace": crate::audit::NAMESPACE });
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema",
        "metadata": { "name": "bench-leader-election" },
        "spec": {
            "priorityLevelConfiguration": { "name": "leader-election" },
            "matchingPrecedence": 250,
            "distinguisherMethod": { "type": "ByUser" },
            "rules": [{
                "subjects": [{ "kind": "ServiceAccount", "serviceAccount": account }],
                "resourceRules": [{
                    "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                    "verbs": ["get", "create", "update"], "namespaces": [namespace],
                }],
            }],
        },
    })
}

impl Bench {
    async fn start(size: Size) -> Result<Bench> {
        let audited = Audited::start()?;
        let client = audited.cluster.client().await?;
        let namespace = audited.cluster.namespace("scale")?;
        // Nodes without leases would be lost for it, and 5,000 leases are more than this machine can renew. Nothing else of it is needed.
        let manager = audited.cluster.component("kube-controller-manager");
        let manager = manager.context("the controller manager")?;
        kill(manager, Signal::SIGSTOP)?;
        let manager = Paused(manager);
        let coordinators = audited.client(Who::Coordinator).await?;
        let stand_in =
            StandIn::start(client.clone(), coordinators, &namespace, size.nodes, size.pods).await?;
        let kubeconfig = audited.kubeconfig(Who::Operator)?;
        let schema = lease_schema(&namespace).to_string();
        audited
            .cluster
            .kubectl(&["apply", "--server-side", "-f", "-"], &schema)?;
        let folder = audited.folder.path();
        let operator = Operator::start(&size.operator, &kubeconfig, folder, &namespace)?;
        Ok(Bench {
            _manager: manager,
            signals: audited.client(Who::Signals).await?,
            audited,
            client,
            namespace,
            stand_in,
            operator,
            size,
        })
    }

    /// Makes jobs until there are this many, and waits until all of them train.
    async fn grow(&self, from: usize, to: usize) -> Result<f64> {
        let api = jobs(&self.client, &self.namespace);
        let began = Instant::now();
        each(from..to, async |i| {
            let job = job(&format!("j{i}"), self.size.pods)?;
            api.create(&PostParams::default(), &job).await?;
            Ok(())
        })
        .await?;
        let all = to * (self.size.pods + 1);
        wait(&format!("{all} pods run"), &self.operator, async || {
            self.stand_in.running() >= all
        })
        .await?;
        wait(&format!("{to} jobs train"), &self.operator, async || {
            self.operator.trains().await >= to
        })
        .await?;
        let took = began.elapsed().as_secs_f64();
        tokio::time::sleep(SETTLED).await;
        Ok(took)
    }

    /// Deletes a worker's pod of each of these jobs.
    async fn delete(
        &self,
        jobs: impl IntoIterator<Item = usize>,
        between: Option<Duration>,
    ) -> Result<usize> {
        let pods: Api<Pod> = Api::namespaced(self.signals.clone(), &self.namespace);
        let all: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut names = vec![];
        for chunk in jobs.into_iter().collect::<Vec<_>>().chunks(ABREAST) {
            let found = chunk.iter().map(|i| {
                let selector = format!("{JOB_LABEL}=j{i},{NUMBER_LABEL}");
                let all = &all;
                async move { all.list(&ListParams::default().labels(&selector)).await }
            });
            for list in futures::future::try_join_all(found).await? {
                let live = list
                    .items
                    .iter()
                    .filter(|p| p.metadata.deletion_timestamp.is_none());
                names.extend(live.map(ResourceExt::name_any).next());
            }
        }
        let count = names.len();
        let delete = async |name: String| -> Result<()> {
            pods.delete(&name, &DeleteParams::default()).await?;
            Ok(())
        };
        match between {
            Some(between) => {
                for name in names {
                    delete(name).await?;
                    tokio::time::sleep(between).await;
                }
            }
            None => each(names, delete).await?,
        }
        Ok(count)
    }

    /// Taints a node, so that it announces its end; the jobs with pods there.
    async fn taint(&self, node: &str) -> Result<Vec<String>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let there = ListParams::default()
            .fields(&format!("spec.nodeName={node}"))
            .labels(NUMBER_LABEL);
        let there = pods.list(&there).await?;
        let jobs: BTreeSet<String> = there
            .iter()
            .filter_map(|p| p.labels().get(JOB_LABEL).cloned())
            .collect();
        let nodes: Api<Node> = Api::all(self.signals.clone());
        let taint = json!([{ "key": "karpenter.sh/disrupted", "effect": "NoSchedule" }]);
        let patch = Patch::Merge(json!({ "spec": { "taints": taint } }));
        nodes.patch(node, &PatchParams::default(), &patch).await?;
        Ok(jobs.into_iter().collect())
    }

    /// Some events one after the other.
    async fn paced(&self, count: usize) -> Result<Answered> {
        self.audited.requests()?;
        let time = MachineTime::now()?;
        let deleted = (0..DELETED).map(|i| i * 7 % count);
        let deleted: BTreeSet<usize> = deleted.collect();
        let events = self.delete(deleted, Some(BETWEEN)).await?;
        let busy = time.busy_percent()?;
        tokio::time::sleep(SETTLED).await;
        // Of deletions alone: how many pods a node has depends on the size.
        let requests = self.audited.requests()?;
        let asked = requests.iter().filter(|r| r.who != Who::Signals).count();
        for (n, kind) in by_kind(&requests) {
            println!("{:6.2} {kind}", number(n) / number(events));
        }
        let mut found = effects(&requests, &BTreeMap::new());
        let mut on = BTreeMap::new();
        for i in 0..TAINTED.min(self.size.nodes / 2) {
            let node = node_name(self.size.nodes - 1 - i);
            let jobs = self.taint(&node).await?;
            on.insert(node, jobs);
            tokio::time::sleep(BETWEEN * 4).await;
        }
        tokio::time::sleep(SETTLED).await;
        let tainted = effects(&self.audited.requests()?, &on);
        found.ms.extend(tainted.ms);
        found.missing += tainted.missing;
        Ok(Answered {
            effects: found,
            events,
            requests: number(asked) / number(events),
            busy,
        })
    }

    /// As many events at once as there are jobs, up to a thousand.
    async fn storm(&self, count: usize) -> Result<Answered> {
        self.audited.requests()?;
        let time = MachineTime::now()?;
        let events = self.delete(0..count.min(STORM), None).await?;
        let busy = time.busy_percent()?;
        tokio::time::sleep(SETTLED).await;
        self.operator.check_runs()?;
        let requests = self.audited.requests()?;
        let asked = requests.iter().filter(|r| r.who != Who::Signals).count();
        Ok(Answered {
            effects: effects(&requests, &BTreeMap::new()),
            events,
            requests: number(asked) / number(events),
            busy,
        })
    }

    async fn rest(&self, count: usize, time: Duration) -> Result<Rested> {
        self.audited.requests()?;
        let (machine, (_, cpu)) = (MachineTime::now()?, self.operator.cost()?);
        tokio::time::sleep(time).await;
        let (mb, cpu_after) = self.operator.cost()?;
        let busy = machine.busy_percent()?;
        let requests = self.audited.requests()?;
        for (n, kind) in by_kind(&requests) {
            println!("{:8.1} a minute: {kind}", number(n) / time.as_secs_f64() * 60.0);
        }
        let asked = requests.iter().filter(|r| r.who == Who::Operator).count();
        Ok(Rested {
            cores: (cpu_after - cpu) / time.as_secs_f64(),
            mb,
            busy,
            requests: number(asked) / number(count) / (time.as_secs_f64() / 60.0),
        })
    }

    /// Seconds from the death of the leader until another one has looked at all jobs.
    async fn takeover(self, count: usize) -> Result<f64> {
        let kubeconfig = self.audited.kubeconfig(Who::Operator)?;
        let folder = self.audited.folder.path();
        let next = Operator::start(&self.size.operator, &kubeconfig, folder, &self.namespace)?;
        wait("another operator is ready to take over", &next, async || {
            next.is_ready().await
        })
        .await?;
        let began = Instant::now();
        drop(self.operator);
        wait("it has taken all jobs over", &next, async || {
            next.trains().await >= count
        })
        .await?;
        Ok(began.elapsed().as_secs_f64())
    }
}

fn print_events(name: &str, found: &Answered) {
    let quantile = |share| quantile(&found.effects.ms, share);
    println!("RESULT operator.{name}effect_p50_ms {:.0}", quantile(0.5));
    println!("RESULT operator.{name}effect_p99_ms {:.0}", quantile(0.99));
    println!("RESULT operator.{name}events {}", found.events);
    println!("RESULT operator.{name}effects_missing {}", found.effects.missing);
    println!("RESULT operator.{name}requests_per_event {:.1}", found.requests);
    println!("RESULT operator.{name}busy_percent {:.0}", found.busy);
}

fn print_rest(name: &str, rested: &Rested) {
    println!("RESULT operator.{name}rest_cores {:.4}", rested.cores);
    println!("RESULT operator.{name}rest_mb {:.0}", rested.mb);
    println!("RESULT operator.{name}rest_busy_percent {:.0}", rested.busy);
    println!(
        "RESULT operator.{name}rest_requests_per_job_min {:.3}",
        rested.requests
    );
}

pub(crate) async fn run(size: Size) -> Result<()> {
    let counts = size.jobs.clone();
    let last = *counts.last().context("a number of jobs")?;
    let (pods, nodes, rest) = (size.pods, size.nodes, size.rest);
    let bench = Bench::start(size).await?;
    let mut from = 0;
    for count in counts {
        let made = bench.grow(from, count).await?;
        from = count;
        let rested = bench
            .rest(count, if count == last { rest } else { SHORT_REST })
            .await?;
        let found = bench.paced(count).await?;
        println!("RESULT operator.at_{count}.made_s {made:.1}");
        print_rest(&format!("at_{count}."), &rested);
        print_events(&format!("at_{count}."), &found);
        if count == last {
            print_rest("", &rested);
            print_events("", &found);
        }
    }
    let storm = bench.storm(last).await?;
    print_events("storm_", &storm);
    let takeover = bench.takeover(last).await?;
    println!("RESULT operator.jobs {last}");
    println!("RESULT operator.pods {}", last * pods);
    println!("RESULT operator.nodes {nodes}");
    println!("RESULT operator.rest_s {}", rest.as_secs());
    println!("RESULT operator.takeover_s {takeover:.1}");
    Ok(())
}
