//! The watches: they fill the index from the start of the process, so that a new leader knows the cluster already, and they name the
//! jobs that have to be reconciled. They decide nothing.

use crate::decide::objects::JOB_LABEL;
use crate::index::{DecidedOn, Fill, Index, KindIndex, ObjectKind};
use crate::job_object::JobObject;
use crate::metrics::Metrics;
use crate::node_object::NodeObject;
use crate::resource::JobRef;
use crate::run_object::RunObject;
use futures::{Stream, StreamExt as _};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch_objects};
use kube::{Api, Client, Resource};
use std::pin::pin;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;

/// A dead connection is noticed five seconds after this time.
const WATCH_SECONDS: u32 = 45;
/// One for each kind of object that decisions are made from, one for each kind of other object, and what Kueue says.
pub const WATCHES: usize = DecidedOn::ALL.len() + ObjectKind::ALL.len() + 1;

/// The jobs that this process manages.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Namespace that is watched; all namespaces if none.
    pub namespace: Option<String>,
}

impl Scope {
    /// Objects of a kind that is known at run time.
    pub(crate) fn documents<K>(&self, client: &Client, resource: &ApiResource) -> Api<K>
    where
        K: Resource<DynamicType = ApiResource, Scope = kube::core::DynamicResourceScope>,
    {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
            None => Api::all_with(client.clone(), resource),
        }
    }

    fn objects<K>(&self, client: &Client) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match &self.namespace {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        }
    }
}

/// The configuration of all watches.
#[must_use]
pub fn config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS)
}

/// The same, only for objects of jobs.
pub(crate) fn labelled() -> watcher::Config {
    config().labels(JOB_LABEL)
}

/// What the watches report to.
pub struct Reports<'a> {
    /// The index that the watches fill.
    pub index: &'a Index,
    /// Jobs that have to be reconciled.
    pub changed: Sender<JobRef>,
    /// How many watches have listed everything once.
    pub filled: &'a watch::Sender<usize>,
    /// Metrics, which count failures.
    pub metrics: &'a Metrics,
}

/// Watches pods, nodes, runs and all other objects of jobs. Never ends.
pub async fn run(client: &Client, scope: &Scope, to: &Reports<'_>) {
    let pods = watch_objects(scope.objects::<Pod>(client), labelled()).default_backoff();
    let nodes = watch_objects(Api::<NodeObject>::all(client.clone()), config()).default_backoff();
    let runs = watch_objects(scope.objects::<RunObject>(client), config()).default_backoff();
    let owned = ObjectKind::ALL.map(|kind| {
        let of_kind = GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
        let api =
            scope.documents::<PartialObjectMeta<DynamicObject>>(client, &ApiResource::from_gvk(&of_kind));
        let events = watch_objects(api, labelled()).default_backoff();
        async move { fill(kind.kind, events, &KindIndex(to.index, kind), to).await }
    });
    futures::join!(
        fill::<Pod, _>(DecidedOn::Pod.kind(), pods, to.index, to),
        fill::<NodeObject, _>(DecidedOn::Node.kind(), nodes, to.index, to),
        fill::<RunObject, _>(DecidedOn::VarunaRun.kind(), runs, to.index, to),
        futures::future::join_all(owned),
    );
}

/// Fills an index from a watch.
pub(crate) async fn fill<K, F: Fill<K>>(
    kind: &'static str,
    events: impl Stream<Item = watcher::Result<Event<K>>>,
    index: &F,
    to: &Reports<'_>,
) {
    let mut events = pin!(events);
    let mut is_filled = false;
    while let Some(event) = events.next().await {
        let changed = match event {
            Ok(Event::Init) => {
                index.begin();
                vec![]
            }
            Ok(Event::InitApply(object) | Event::Apply(object)) => index.seen(&object),
            Ok(Event::Delete(object)) => index.gone(&object),
            Ok(Event::InitDone) => {
                let gone = index.complete();
                if !std::mem::replace(&mut is_filled, true) {
                    to.filled.send_modify(|filled| *filled += 1);
                }
                gone
            }
            Err(error) => {
                tracing::warn!(%error, kind, "the watch has failed and begins anew");
                to.metrics.watch_failed(kind);
                vec![]
            }
        };
        for job in changed {
            // Nobody reads only when the controller has ended.
            let _ = to.changed.send(job).await;
        }
    }
}

/// The jobs themselves.
pub(crate) fn jobs(client: &Client, scope: &Scope) -> Api<JobObject> {
    scope.objects(client)
}
