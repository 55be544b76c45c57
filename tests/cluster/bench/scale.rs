//! Measures the operator with a growing number of training jobs: its latency for single events and for a thousand at once, the resources
//! and requests that it needs while nothing happens, and the time until another operator has taken over all jobs.

use crate::audit::{Account, Audited, by_kind};
use crate::deletions::Deletions;
use crate::effects::effects;
use crate::operator_process::{MachineTime, Operator, OperatorOptions};
use crate::results::{EventResults, IdleResults, Storm};
use crate::simulated::{job, node_name};
use crate::stand_in::StandIn;
use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
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

/// Maximum number of concurrent calls.
const CONCURRENCY: usize = 32;
/// Timeout of each wait.
const LIMIT: Duration = Duration::from_secs(1200);
/// Time after which everything that an event causes has ended, including reports and statuses.
const SETTLED: Duration = Duration::from_secs(20);
/// Number of pods that are deleted one after the other, and the time between two deletions.
const DELETED: usize = 40;
const BETWEEN: Duration = Duration::from_millis(250);
/// Number of nodes that are tainted.
const TAINTED: usize = 4;
/// Maximum number of events in a storm.
const STORM: usize = 1000;
/// Interval at which the benchmark checks whether a storm is over.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Idle time that is measured for each number of jobs except the last.
const SHORT_REST: Duration = Duration::from_secs(45);

/// Size of the cluster.
pub(crate) struct Size {
    /// Numbers of jobs, ascending.
    pub(crate) jobs: Vec<usize>,
    /// Pods of each job.
    pub(crate) pods: usize,
    pub(crate) nodes: usize,
    /// Idle time that is measured with the last number of jobs.
    pub(crate) rest: Duration,
    /// Path of the operator.
    pub(crate) operator: PathBuf,
}

/// A process that is stopped until this is dropped. If it stayed stopped, the control plane could not end.
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
    deletions: Deletions,
    namespace: String,
    stand_in: Arc<StandIn>,
    operator: Operator,
    size: Size,
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
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    results.into_iter().collect()
}

#[expect(clippy::cast_precision_loss, reason = "counts")]
fn number(n: usize) -> f64 {
    n as f64
}

/// The flow schema for the operator's Lease, as in the chart (`templates/flow-control.yaml`).
fn lease_schema(namespace: &str) -> Value {
    let account = json!({ "name": Account::Operator.account(), "namespace": crate::audit::NAMESPACE });
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
        // The controller manager would treat nodes without leases as lost, and this machine cannot renew 5,000 leases. The benchmark needs
        // no other part of it.
        let manager = audited.cluster.component("kube-controller-manager");
        let manager = manager.context("the controller manager")?;
        kill(manager, Signal::SIGSTOP)?;
        let manager = Paused(manager);
        let coordinators = audited.client(Account::Coordinator).await?;
        let stand_in =
            StandIn::start(client.clone(), coordinators, &namespace, size.nodes, size.pods).await?;
        let kubeconfig = audited.kubeconfig(Account::Operator)?;
        let schema = lease_schema(&namespace).to_string();
        audited
            .cluster
            .kubectl(&["apply", "--server-side", "-f", "-"], &schema)?;
        let operator = Operator::start(OperatorOptions {
            binary: size.operator.clone(),
            kubeconfig,
            folder: audited.folder.path().to_owned(),
            namespace: namespace.clone(),
        })?;
        let signals = audited.client(Account::Signals).await?;
        Ok(Bench {
            _manager: manager,
            deletions: Deletions::new(&client, &signals, &namespace),
            signals,
            audited,
            client,
            namespace,
            stand_in,
            operator,
            size,
        })
    }

    /// Creates jobs until there are this many, and waits until all of them train. Returns the seconds that it took.
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

    /// Taints a node, which announces its end. Returns the jobs with pods on it.
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

    /// Causes events one after the other. Returns their results, and the number of requests of operator and coordinators for each event.
    async fn paced(&self, count: usize) -> Result<(EventResults, f64)> {
        let deleted = (0..DELETED).map(|i| i * 7 % count);
        let deleted: BTreeSet<usize> = deleted.collect();
        let pods = self.deletions.pods_of(deleted).await?;
        let events = pods.len();
        self.audited.requests()?;
        let time = MachineTime::now()?;
        self.deletions.one_by_one(&pods, BETWEEN).await?;
        let busy = time.busy_percent()?;
        tokio::time::sleep(SETTLED).await;
        // Only requests for deletions are counted: the number of pods on a node depends on the size of the cluster.
        let requests = self.audited.requests()?;
        let asked = requests.iter().filter(|r| r.who != Account::Signals).count();
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
        let answered = EventResults {
            effects: found,
            events,
            busy,
        };
        Ok((answered, number(asked) / number(events)))
    }

    /// Causes as many events at once as there are jobs, at most a thousand, and waits until all pods run and all jobs train again, or until
    /// the timeout. If the operator loses its Lease meanwhile, it is started again.
    async fn storm(&mut self, count: usize) -> Result<Storm> {
        let pods = self.deletions.pods_of(0..count.min(STORM)).await?;
        self.audited.requests()?;
        let (time, began) = (MachineTime::now()?, Instant::now());
        let mut restarts = 0;
        let busy = {
            let mut deletion = std::pin::pin!(self.deletions.at_once(&pods));
            loop {
                tokio::select! {
                    deleted = &mut deletion => {
                        deleted?;
                        break time.busy_percent()?;
                    }
                    () = tokio::time::sleep(POLL_INTERVAL) => restarts += usize::from(self.operator.restart_if_lease_lost()?),
                }
            }
        };
        let all = count * (self.size.pods + 1);
        let mut settles = Instant::now();
        while began.elapsed() < LIMIT && settles.elapsed() < SETTLED {
            tokio::time::sleep(POLL_INTERVAL).await;
            let was_started = self.operator.restart_if_lease_lost()?;
            restarts += usize::from(was_started);
            if was_started || self.stand_in.running() < all || self.operator.trains().await < count {
                settles = Instant::now();
            }
        }
        Ok(Storm {
            answered: EventResults {
                effects: effects(&self.audited.requests()?, &BTreeMap::new()),
                events: pods.len(),
                busy,
            },
            restarts,
        })
    }

    async fn rest(&self, count: usize, time: Duration) -> Result<IdleResults> {
        self.audited.requests()?;
        let (machine, (_, cpu)) = (MachineTime::now()?, self.operator.cost()?);
        tokio::time::sleep(time).await;
        let (mb, cpu_after) = self.operator.cost()?;
        let busy = machine.busy_percent()?;
        let requests = self.audited.requests()?;
        for (n, kind) in by_kind(&requests) {
            println!("{:8.1} a minute: {kind}", number(n) / time.as_secs_f64() * 60.0);
        }
        let job_minutes = number(count) * time.as_secs_f64() / 60.0;
        let of = |who| number(requests.iter().filter(|r| r.who == who).count()) / job_minutes;
        Ok(IdleResults {
            cores: (cpu_after - cpu) / time.as_secs_f64(),
            mb,
            busy,
            requests: of(Account::Operator),
            coordinator_requests: of(Account::Coordinator),
        })
    }

    /// Kills the leader and returns the seconds until another operator has reconciled all jobs. That operator is the leader from then on.
    async fn takeover(&mut self, count: usize) -> Result<f64> {
        let next = self.operator.another()?;
        wait("another operator is ready to take over", &next, async || {
            next.is_ready().await
        })
        .await?;
        let leader = std::mem::replace(&mut self.operator, next);
        let began = Instant::now();
        drop(leader);
        wait("it has taken all jobs over", &self.operator, async || {
            self.operator.trains().await >= count
        })
        .await?;
        let took = began.elapsed().as_secs_f64();
        tokio::time::sleep(SETTLED).await;
        Ok(took)
    }
}

pub(crate) async fn run(size: Size) -> Result<()> {
    let counts = size.jobs.clone();
    let last = *counts.last().context("a number of jobs")?;
    let (pods, nodes, rest) = (size.pods, size.nodes, size.rest);
    let mut bench = Bench::start(size).await?;
    let mut from = 0;
    for count in counts {
        let made = bench.grow(from, count).await?;
        from = count;
        let rested = bench
            .rest(count, if count == last { rest } else { SHORT_REST })
            .await?;
        let (found, requests) = bench.paced(count).await?;
        println!("RESULT operator.at_{count}.made_s {made:.1}");
        rested.print(&format!("at_{count}."));
        found.print(&format!("at_{count}."));
        println!("RESULT operator.at_{count}.requests_per_event {requests:.1}");
        if count == last {
            rested.print("");
            found.print("");
            println!("RESULT operator.requests_per_event {requests:.1}");
        }
    }
    let takeover = bench.takeover(last).await?;
    println!("RESULT operator.takeover_s {takeover:.1}");
    let storm = bench.storm(last).await?;
    storm.print();
    println!("RESULT operator.jobs {last}");
    println!("RESULT operator.pods {}", last * pods);
    println!("RESULT operator.nodes {nodes}");
    println!("RESULT operator.rest_s {}", rest.as_secs());
    Ok(())
}
