//! The watches: what makes the operator reconcile a job. Decides nothing.

use crate::cluster::{observe, orders};
use crate::context::{Caches, Context};
use crate::decide::objects::JOB_LABEL;
use crate::decide::{ObservedNode, Settings};
use crate::error::Error;
use crate::health::Health;
use crate::reconcile::{failed, reconcile};
use crate::resource::{JobRef, job_ref, resource};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, channel};
use varuna_api::manifest::KIND;

/// Jobs that are reconciled concurrently.
const CONCURRENCY: u16 = 16;
/// A dead connection is noticed five seconds after this time.
const WATCH_SECONDS: u32 = 45;
/// Requests to reconcile a job that may wait in the queue.
const REQUESTS_MAX: usize = 1024;
/// What is known of deleted jobs is forgotten within this time.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Which jobs.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Only those of this namespace; all where it is none.
    pub namespace: Option<String>,
}

impl Scope {
    fn api<K>(&self, client: &Client) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        match &self.namespace {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        }
    }

    fn documents(&self, client: &Client, resource: &ApiResource) -> Api<DynamicObject> {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
            None => Api::all_with(client.clone(), resource),
        }
    }
}

fn watch_config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS)
}

/// Runs the controller until the process ends. `instance`: the name of this process, for Events.
///
/// # Errors
/// The resource of jobs is not installed.
pub async fn run(
    client: Client,
    scope: Scope,
    settings: Settings,
    instance: &str,
    health: Arc<Health>,
) -> anyhow::Result<()> {
    health.metrics.leader.set(1);
    let jobs = scope.documents(&client, &resource());
    if let Err(error) = jobs.list(&kube::api::ListParams::default().limit(1)).await {
        anyhow::bail!("VarunaJobs cannot be listed (install crds/, check the role): {error}");
    }
    let (pods, pod_writer) = reflector::store();
    let (nodes, node_writer) = reflector::store();
    let run_writer = reflector::store::Writer::new(orders::resource());
    let runs = run_writer.as_reader();
    let (reconcile, requests) = channel(REQUESTS_MAX);
    let context = Arc::new(Context::new(
        client.clone(),
        Caches {
            pods: pods.clone(),
            nodes: nodes.clone(),
            runs,
        },
        settings,
        instance,
        Arc::clone(&health),
    ));
    let pod_events = watcher(scope.api::<Pod>(&client), watch_config().labels(JOB_LABEL))
        .default_backoff()
        .reflect(pod_writer)
        .touched_objects();
    let run_events = watcher(scope.documents(&client, &orders::resource()), watch_config())
        .default_backoff()
        .reflect(run_writer)
        .touched_objects();
    let node_events = watcher(Api::<Node>::all(client), watch_config())
        .default_backoff()
        .reflect(node_writer)
        .touched_objects();
    let jobs_on_changed = jobs_on_changed_nodes(nodes, pods);
    let controller = Controller::new_with(jobs, watch_config(), resource())
        .with_config(Config::default().concurrency(CONCURRENCY))
        .watches_stream_with(pod_events, |pod| owner(&pod), ())
        .watches_stream_with(run_events, |run| job_of_run(&run), orders::resource())
        .watches_stream_with(node_events, move |node| jobs_on_changed(&node), ())
        .reconcile_on(stream(requests));
    let sweep = forget_deleted_jobs(Arc::clone(&context), controller.store());
    let filled = report_filled_caches(Arc::clone(&context));
    let probes = Arc::clone(&context);
    let work = controller
        .run(reconcile_when_ready, failed, context)
        .for_each(|_| std::future::ready(()));
    tokio::select! {
        () = work => {}
        () = sweep => {}
        () = filled => {}
        () = probes.probes.run(reconcile) => {}
    }
    Ok(())
}

/// Reports once that the caches are filled; never ends. Nothing else waits for the stores themselves: kube-runtime wakes one waiter
/// only, and other reconciliations would wait for ever.
async fn report_filled_caches(context: Arc<Context>) {
    let pods_and_nodes =
        context.pods.wait_until_ready().await.is_ok() && context.nodes.wait_until_ready().await.is_ok();
    if pods_and_nodes && context.runs.wait_until_ready().await.is_ok() {
        context.health.caches_filled();
        context.caches_filled.send_replace(true);
    }
    std::future::pending().await
}

/// No decision before the caches are filled: a pod on a node that is not in the cache would be taken for lost.
async fn reconcile_when_ready(object: Arc<DynamicObject>, context: Arc<Context>) -> Result<Action, Error> {
    let mut filled = context.caches_filled.subscribe();
    if filled.wait_for(|filled| *filled).await.is_err() {
        return Err(Error::Timeout);
    }
    reconcile(object, context).await
}

fn stream(requests: Receiver<JobRef>) -> impl futures::Stream<Item = JobRef> + Send + 'static {
    futures::stream::unfold(requests, |mut requests| async {
        requests.recv().await.map(|job| (job, requests))
    })
}

/// The job that a pod belongs to.
fn owner(pod: &Pod) -> Option<JobRef> {
    let namespace = pod.namespace()?;
    observe::job_of(pod).map(|job| job_ref(&namespace, job))
}

/// The job that a run belongs to.
fn job_of_run(run: &DynamicObject) -> Option<JobRef> {
    let owners = run.metadata.owner_references.iter().flatten();
    let job = owners
        .filter(|o| o.controller == Some(true))
        .find(|o| o.kind == KIND)?;
    Some(job_ref(&run.namespace()?, &job.name))
}

/// The jobs with pods on a node of which something has changed that decisions are made from: heartbeats are not.
fn jobs_on_changed_nodes(
    nodes: Store<Node>,
    pods: Store<Pod>,
) -> impl Fn(&Node) -> Vec<JobRef> + Send + Sync + 'static {
    let known: Mutex<BTreeMap<String, ObservedNode>> = Mutex::default();
    move |node| {
        let name = node.name_any();
        let present = nodes
            .get(&reflector::ObjectRef::new(&name))
            .map(|n| observe::node(&n));
        let mut known = known.lock();
        if known.get(&name) == present.as_ref() {
            return vec![];
        }
        match present {
            Some(observed) => known.insert(name.clone(), observed),
            None => known.remove(&name),
        };
        let on = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.node_name.as_ref()) == Some(&name);
        let jobs: BTreeSet<(String, String)> = pods
            .state()
            .iter()
            .filter(|pod| on(pod))
            .filter_map(|pod| Some((pod.namespace()?, observe::job_of(pod)?.to_owned())))
            .collect();
        jobs.into_iter()
            .map(|(namespace, job)| job_ref(&namespace, &job))
            .collect()
    }
}

/// Forgets deleted jobs: a controller is not called when an object without finalizers is gone.
async fn forget_deleted_jobs(context: Arc<Context>, jobs: Store<DynamicObject>) {
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        ticks.tick().await;
        let exists = |namespace: &str, name: &str| jobs.get(&job_ref(namespace, name)).is_some();
        context.health.metrics.jobs.retain(exists);
        let uids: BTreeSet<String> = jobs.state().iter().filter_map(|j| j.uid()).collect();
        context.recorder.retain(|uid| uids.contains(uid));
        context.backoff.retain(|uid| uids.contains(uid));
        context.applier.retain(|uid| uids.contains(uid));
        context.credentials.retain(|uid| uids.contains(uid));
        context.probes.retain(|uid| uids.contains(uid));
    }
}
