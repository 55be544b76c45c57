//! The watches: what makes the operator look at a job. Decides nothing.

use crate::context::{Context, JobRef, Place, resource};
use crate::decide::objects::JOB_LABEL;
use crate::decide::{NodeSeen, Settings};
use crate::health::Health;
use crate::observe;
use crate::reconcile::{failed, reconcile};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::DynamicObject;
use kube::runtime::controller::{Config as Pace, Controller};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, channel};

/// Jobs that are looked at side by side.
const CONCURRENCY: u16 = 16;
/// A dead connection is noticed after this and five seconds.
const WATCH_SECONDS: u32 = 45;
/// Wishes to look at a job that may wait.
const WISHES: usize = 1024;
/// Coordinators of jobs that are no more end within this.
const SWEEP: Duration = Duration::from_secs(5);

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

    fn jobs(&self, client: &Client) -> Api<DynamicObject> {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource()),
            None => Api::all_with(client.clone(), &resource()),
        }
    }
}

fn pace() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS)
}

/// Looks after jobs until the process ends.
///
/// # Errors
/// The resource of jobs is not installed.
pub async fn run(
    client: Client,
    scope: Scope,
    settings: Settings,
    place: Place,
    health: Arc<Health>,
) -> anyhow::Result<()> {
    health.metrics.leader.set(1);
    let jobs = scope.jobs(&client);
    if let Err(error) = jobs.list(&kube::api::ListParams::default().limit(1)).await {
        anyhow::bail!("VarunaJobs cannot be listed (install crds/varunajobs.yaml, check the role): {error}");
    }
    make_private(&place.folder)?;
    let (pods, pod_writer) = reflector::store();
    let (nodes, node_writer) = reflector::store();
    let (wake, wishes) = channel(WISHES);
    let context = Arc::new(Context::new(
        client.clone(),
        pods.clone(),
        nodes.clone(),
        settings,
        place,
        Arc::clone(&health),
        wake,
    ));
    let pod_events = watcher(scope.api::<Pod>(&client), pace().labels(JOB_LABEL))
        .default_backoff()
        .reflect(pod_writer)
        .touched_objects();
    let node_events = watcher(Api::<Node>::all(client), pace())
        .default_backoff()
        .reflect(node_writer)
        .touched_objects();
    let changed = changes(nodes.clone(), pods.clone());
    let controller = Controller::new_with(jobs, pace(), resource())
        .with_config(Pace::default().concurrency(CONCURRENCY))
        .watches_stream_with(pod_events, |pod| owner(&pod), ())
        .watches_stream_with(node_events, move |node| changed(&node), ())
        .reconcile_on(stream(wishes));
    let known = controller.store();
    let sweep = sweep(Arc::clone(&context), known);
    let filled = filled(Arc::clone(&context));
    let work = controller
        .run(reconcile_when_ready, failed, context)
        .for_each(|_| std::future::ready(()));
    tokio::select! {
        () = work => {}
        () = sweep => {}
        () = filled => {}
    }
    Ok(())
}

/// Says that the caches are filled once they are; never ends. The only one that waits for the stores themselves: kube-runtime wakes
/// one waiter, and looks at other jobs would wait for ever.
async fn filled(context: Arc<Context>) {
    if context.pods.wait_until_ready().await.is_ok() && context.nodes.wait_until_ready().await.is_ok() {
        context.health.filled();
        context.filled.send_replace(true);
    }
    std::future::pending().await
}

/// No decision before pods and nodes are known: a pod on a node that is not known yet would be taken for lost.
async fn reconcile_when_ready(
    object: Arc<DynamicObject>,
    context: Arc<Context>,
) -> Result<kube::runtime::controller::Action, crate::reconcile::Error> {
    if context
        .filled
        .subscribe()
        .wait_for(|filled| *filled)
        .await
        .is_err()
    {
        return Err(crate::reconcile::Error::Late);
    }
    reconcile(object, context).await
}

/// The folder holds tokens.
fn make_private(folder: &PathBuf) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(folder)?;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))?;
    Ok(())
}

fn stream(wishes: Receiver<JobRef>) -> impl futures::Stream<Item = JobRef> + Send + 'static {
    futures::stream::unfold(wishes, |mut wishes| async {
        wishes.recv().await.map(|job| (job, wishes))
    })
}

/// The job that a pod belongs to.
fn owner(pod: &Pod) -> Option<JobRef> {
    let namespace = pod.namespace()?;
    observe::job_of(pod).map(|job| JobRef::new_with(job, resource()).within(&namespace))
}

/// The jobs with pods on a node, where what counts of the node has changed: heartbeats do not.
fn changes(nodes: Store<Node>, pods: Store<Pod>) -> impl Fn(&Node) -> Vec<JobRef> + Send + Sync + 'static {
    let known: Mutex<BTreeMap<String, NodeSeen>> = Mutex::default();
    move |node| {
        let name = node.name_any();
        let present = nodes
            .get(&reflector::ObjectRef::new(&name))
            .map(|n| observe::node(&n));
        let mut known = crate::context::lock(&known);
        if known.get(&name) == present.as_ref() {
            return vec![];
        }
        match present {
            Some(seen) => known.insert(name.clone(), seen),
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
            .map(|(namespace, job)| JobRef::new_with(&job, resource()).within(&namespace))
            .collect()
    }
}

/// Ends the coordinators of jobs that are no more: nobody is told when an object without finalizers is gone.
async fn sweep(context: Arc<Context>, jobs: Store<DynamicObject>) {
    let mut ticks = tokio::time::interval(SWEEP);
    loop {
        ticks.tick().await;
        let there = |namespace: &str, name: &str| {
            jobs.get(&JobRef::new_with(name, resource()).within(namespace))
                .is_some()
        };
        context.runs.retain(there);
        context.health.metrics.jobs.retain(there);
        let identities: BTreeSet<String> = jobs.state().iter().filter_map(|j| j.uid()).collect();
        context.diary.retain(|uid| identities.contains(uid));
        context.setbacks.retain(|uid| identities.contains(uid));
    }
}
