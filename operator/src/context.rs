//! What every part of the operator shares: the client, what is watched, the running coordinators.

use crate::decide::Settings;
use crate::diary::Diary;
use crate::health::Health;
use crate::run::Runs;
use crate::setbacks::Setbacks;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;
use varuna_api::crd::{GROUP, PLURAL, VERSION};
use varuna_api::manifest::KIND;

/// A job, by namespace and name.
pub type JobRef = ObjectRef<DynamicObject>;

/// The resource of jobs. Jobs are read as they are: one that does not parse must not hide all others.
#[must_use]
pub fn resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, KIND), PLURAL)
}

/// How this process was started.
#[derive(Clone, Debug)]
pub struct Place {
    /// Address at which workers reach this process.
    pub address: String,
    /// Where coordinators listen: host; the port is any free one.
    pub bind: String,
    /// Where coordinators keep what people read.
    pub folder: PathBuf,
}

/// Objects that were applied for a job, and when.
pub(crate) type Applied = BTreeMap<String, (Vec<Value>, Instant)>;

/// Shared by all reconciliations.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// All worker pods.
    pub pods: Store<Pod>,
    /// All nodes.
    pub nodes: Store<Node>,
    /// Whether pods and nodes are known.
    pub filled: watch::Sender<bool>,
    /// What the operator was told at its start.
    pub settings: Settings,
    /// Where this process runs.
    pub place: Place,
    /// What is measured, and whether all is well.
    pub health: Arc<Health>,
    /// Writes Events.
    pub diary: Diary,
    /// Coordinators that run here.
    pub runs: Runs,
    /// What is left alone for a while.
    pub setbacks: Setbacks,
    /// Objects that need not be applied again.
    pub(crate) applied: Mutex<Applied>,
    /// Asks for a job to be looked at.
    pub wake: Sender<JobRef>,
}

impl Context {
    /// A context without any run.
    #[must_use]
    pub fn new(
        client: Client,
        pods: Store<Pod>,
        nodes: Store<Node>,
        settings: Settings,
        place: Place,
        health: Arc<Health>,
        wake: Sender<JobRef>,
    ) -> Context {
        let instance = format!("varuna-operator at {}", place.address);
        Context {
            diary: Diary::new(client.clone(), instance, Arc::clone(&health.metrics)),
            health,
            client,
            pods,
            nodes,
            filled: watch::channel(false).0,
            settings,
            place,
            runs: Runs::default(),
            setbacks: Setbacks::default(),
            applied: Mutex::default(),
            wake,
        }
    }

    /// The jobs of a namespace.
    #[must_use]
    pub fn jobs(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &resource())
    }
}

/// Locks; a panic elsewhere while it was held leaves the maps of this crate sound.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
