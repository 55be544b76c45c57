//! Simulates the nodes, kubelets, scheduler, workers and coordinators of very many jobs. It uses as little CPU time as possible, because
//! the operator is what is measured. Coordinators report through the shipped reporter, so that the rate of reports is realistic.

use crate::simulated::{add_node, answer_probes, node_name};
use anyhow::Result;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use varuna_api::crd::{RunMessage, RunStatus};
use varuna_cluster_coordinator::orders::{self, SeenOrders};
use varuna_cluster_coordinator::reporter::Reports;
use varuna_operator::decide::objects::{COORDINATOR_LABEL, JOB_LABEL, NUMBER_LABEL};
use varuna_plan::{Generation, SegmentRange, Step, WorkerId};
use varuna_protocol::coordinator::{RunMode, RunView, Snapshot, WorkerView};

/// Maximum number of concurrent calls of all kubelets.
const CONCURRENCY: usize = 16;
/// Interval at which steps are committed. They are reported less often, as the reporter decides.
const STEP: Duration = Duration::from_secs(2);
/// Interval at which a kubelet reports the state of its node.
const HEARTBEAT: Duration = Duration::from_secs(300);
/// The coordinators do not listen at this address. An EndpointSlice must not contain a loopback address.
const ADDRESS: &str = "192.0.2.1:7070";

/// One job's coordinator.
struct Coordinator {
    report: watch::Sender<Option<RunStatus>>,
    number: i64,
    workers: BTreeSet<String>,
    generation: u64,
    step: u64,
    _writes: JoinHandle<()>,
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self._writes.abort();
    }
}

/// The simulation of everything except the operator.
pub(crate) struct StandIn {
    client: Client,
    coordinators: Client,
    namespace: String,
    nodes: usize,
    health: SocketAddr,
    jobs: Mutex<BTreeMap<String, Coordinator>>,
    /// For each run, the channel through which its coordinator gets its orders, instead of a watch of its own.
    orders: Mutex<BTreeMap<String, watch::Sender<Option<SeenOrders>>>>,
    /// Uids of pods that were bound and set to running.
    running: Mutex<BTreeSet<String>>,
    bound: AtomicUsize,
    calls: Semaphore,
    pods: usize,
}

impl StandIn {
    /// Adds nodes and starts the simulation. `pods` is the number of pods of each job.
    pub(crate) async fn start(
        client: Client,
        coordinators: Client,
        namespace: &str,
        nodes: usize,
        pods: usize,
    ) -> Result<Arc<StandIn>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let health = listener.local_addr()?;
        tokio::spawn(answer_probes(listener));
        let names: Vec<usize> = (0..nodes).collect();
        let results: Vec<Result<()>> = stream::iter(names)
            .map(|i| add_node(&client, i))
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        results.into_iter().collect::<Result<Vec<()>>>()?;
        let all = Arc::new(StandIn {
            client,
            coordinators,
            namespace: namespace.to_owned(),
            nodes,
            health,
            jobs: Mutex::default(),
            orders: Mutex::default(),
            running: Mutex::default(),
            bound: AtomicUsize::new(0),
            calls: Semaphore::new(CONCURRENCY),
            pods,
        });
        tokio::spawn(Arc::clone(&all).follow_pods());
        tokio::spawn(Arc::clone(&all).follow_runs());
        tokio::spawn(Arc::clone(&all).commit_steps());
        tokio::spawn(Arc::clone(&all).beat());
        Ok(all)
    }

    /// Number of running pods.
    pub(crate) fn running(&self) -> usize {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    async fn follow_pods(self: Arc<Self>) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let config = watcher::Config::default().labels(JOB_LABEL);
        let mut events = watcher(pods, config).boxed();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => self.seen(pod),
                Ok(watcher::Event::Delete(pod)) => self.gone(&pod),
                Ok(watcher::Event::Init | watcher::Event::InitDone) => {}
                Err(error) => eprintln!("pods: {error}"),
            }
        }
    }

    async fn follow_runs(self: Arc<Self>) {
        let runs = orders::runs(&self.client, &self.namespace);
        let mut events = watcher(runs, watcher::Config::default())
            .applied_objects()
            .boxed();
        while let Some(run) = events.next().await {
            let Ok(run) = run else { continue };
            let version = run.metadata.resource_version.as_ref();
            let version = version.and_then(|version| version.parse().ok());
            let seen = orders::orders_of(&run).zip(version);
            let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
            if let (Some((spec, version)), Some(to)) = (seen, orders.get(&run.name_any())) {
                to.send_replace(Some(SeenOrders { spec, version }));
            }
        }
    }

    fn seen(self: &Arc<Self>, pod: Pod) {
        let this = Arc::clone(self);
        let uid = pod.uid().unwrap_or_default();
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if pod.metadata.deletion_timestamp.is_some() {
            // A worker leaves at once, because the time that it needs is not measured here.
            if running.remove(&uid) {
                self.leaves(&pod);
                tokio::spawn(async move { this.kill(&pod.name_any()).await });
            }
        } else if running.insert(uid) {
            tokio::spawn(async move { this.run(pod).await });
        }
    }

    fn gone(&self, pod: &Pod) {
        let uid = pod.uid().unwrap_or_default();
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.remove(&uid) {
            self.leaves(pod);
        }
    }

    async fn kill(&self, name: &str) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let now = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::default()
        };
        let _permit = self.calls.acquire().await;
        let _ = pods.delete(name, &now).await;
    }

    /// Does what the scheduler and a kubelet do: binds the pod and sets it to running. Then its worker attaches, or its coordinator
    /// reports.
    async fn run(&self, pod: Pod) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let name = pod.name_any();
        {
            let _permit = self.calls.acquire().await;
            if pod.spec.as_ref().is_some_and(|s| s.node_name.is_none()) {
                let at = self.bound.fetch_add(1, Ordering::Relaxed) % self.nodes;
                let binding = json!({
                    "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
                    "target": { "apiVersion": "v1", "kind": "Node", "name": node_name(at) },
                });
                let bound: kube::Result<serde_json::Value> = pods
                    .create_subresource("binding", &name, &PostParams::default(), &binding)
                    .await;
                if let Err(error) = bound {
                    eprintln!("{name}: {error}");
                }
            }
            let patch = Patch::Merge(json!({ "status": { "phase": "Running" } }));
            if let Err(error) = pods.patch_status(&name, &PatchParams::default(), &patch).await {
                eprintln!("{name}: {error}");
            }
        }
        let Some(job) = pod.labels().get(JOB_LABEL).cloned() else {
            return;
        };
        if let Some(number) = pod.labels().get(COORDINATOR_LABEL) {
            let run = argument(&pod, "--run").unwrap_or_default();
            self.lead(job, number.parse().unwrap_or(0), run);
        } else if pod.labels().contains_key(NUMBER_LABEL) {
            self.change(&job, |coordinator| {
                coordinator.workers.insert(name.clone());
            });
        }
    }

    fn lead(&self, job: String, number: i64, run: String) {
        let (report, reports) = watch::channel(None);
        let (saw, seen) = watch::channel(None);
        self.orders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(run.clone(), saw);
        let writes = Reports {
            runs: orders::runs(&self.coordinators, &self.namespace),
            name: run.clone(),
            number,
            seen,
        };
        let writes = tokio::spawn(async move {
            writes.write(reports).await;
        });
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let before = jobs.remove(&job);
        let mut coordinator = Coordinator {
            report,
            number,
            workers: before.as_ref().map(|b| b.workers.clone()).unwrap_or_default(),
            generation: before.as_ref().map_or(0, |b| b.generation),
            step: before.as_ref().map_or(0, |b| b.step),
            _writes: writes,
        };
        self.publish(&mut coordinator);
        jobs.insert(job, coordinator);
    }

    fn leaves(&self, pod: &Pod) {
        if let Some(job) = pod.labels().get(JOB_LABEL) {
            self.change(job, |coordinator| {
                coordinator.workers.remove(&pod.name_any());
            });
        }
    }

    /// Changes the state of a job's coordinator. Once all workers that the job starts with are attached, each change makes another plan.
    fn change(&self, job: &str, change: impl Fn(&mut Coordinator)) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(coordinator) = jobs.get_mut(job) {
            change(coordinator);
            if coordinator.generation > 0 || coordinator.workers.len() == self.pods {
                coordinator.generation += 1;
                self.publish(coordinator);
            }
        } else {
            // The worker came before its coordinator.
            let mut early = Coordinator {
                report: watch::channel(None).0,
                number: 0,
                workers: BTreeSet::new(),
                generation: 0,
                step: 0,
                _writes: tokio::spawn(async {}),
            };
            change(&mut early);
            jobs.insert(job.to_owned(), early);
        }
    }

    fn publish(&self, coordinator: &mut Coordinator) {
        if coordinator.generation == 0 && coordinator.workers.len() == self.pods {
            coordinator.generation = 1;
        }
        coordinator
            .report
            .send_replace(Some(report(coordinator, self.health)));
    }

    async fn commit_steps(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(STEP);
        loop {
            ticks.tick().await;
            let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            for coordinator in jobs.values_mut().filter(|c| c.generation > 0) {
                coordinator.step += 1;
                let (step, report) = (coordinator.step, &coordinator.report);
                // Only the step changes, so that this is as cheap as in a real coordinator.
                report.send_modify(|report| {
                    if let Some(state) = report.as_mut().and_then(|r| r.state.as_mut()) {
                        state.run.step = Step(step);
                        state.workers.iter_mut().for_each(|w| w.step = Step(step));
                    }
                });
            }
        }
    }

    /// Sends the heartbeats of all nodes, one after the other.
    async fn beat(self: Arc<Self>) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let interval = HEARTBEAT / u32::try_from(self.nodes.max(1)).unwrap_or(u32::MAX);
        let mut ticks = tokio::time::interval(interval);
        for i in (0..self.nodes).cycle() {
            ticks.tick().await;
            let now = Timestamp::now().to_string();
            let ready = json!({ "type": "Ready", "status": "True", "lastHeartbeatTime": now });
            let patch = Patch::Strategic(json!({ "status": { "conditions": [ready] } }));
            let params = PatchParams::default();
            let _ = nodes.patch_status(&node_name(i), &params, &patch).await;
        }
    }
}

fn argument(pod: &Pod, name: &str) -> Option<String> {
    let arguments = pod.spec.as_ref()?.containers.first()?.args.as_ref()?;
    let at = arguments.iter().position(|a| a == name)?;
    arguments.get(at + 1).cloned()
}

fn report(coordinator: &Coordinator, health: SocketAddr) -> RunStatus {
    let generation = Generation(coordinator.generation);
    let workers = coordinator.workers.iter().zip(1..).map(|(name, id)| WorkerView {
        id: WorkerId(id),
        name: name.clone(),
        node: String::new(),
        up: true,
        phase: None,
        generation,
        step: Step(coordinator.step),
        draining: false,
        speed: 1.0,
        segments: vec![SegmentRange { start: 0, end: 2 }],
        pipeline: Some(0),
        left_out: None,
    });
    let trains = coordinator.generation > 0;
    let run = RunView {
        mode: if trains {
            RunMode::Training
        } else {
            RunMode::Waiting
        },
        term: 1,
        generation,
        next: None,
        step: Step(coordinator.step),
        last_step: Step(1_000_000),
        plan: trains.then(|| "P1xD64".to_owned()),
        predicted_ms: Some(2000.0),
        observed_ms: Some(2000.0),
        compute_factor: None,
        members: coordinator.workers.len(),
        min_workers: 1,
        max_workers: None,
        spare_copies: None,
    };
    // There is one message for each plan.
    let message = RunMessage {
        number: (coordinator.number << 32) + i64::try_from(coordinator.generation).unwrap_or(i64::MAX) + 1,
        resumed: trains,
        text: format!("training goes on under plan {}", coordinator.generation),
    };
    RunStatus {
        coordinator: coordinator.number,
        address: Some(ADDRESS.to_owned()),
        health_address: Some(health.to_string()),
        state: Some(Snapshot {
            run,
            workers: workers.collect(),
        }),
        loss: Some(2.5),
        messages: vec![message],
        ..RunStatus::default()
    }
}
