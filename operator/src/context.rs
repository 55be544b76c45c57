//! What all reconciliations share.

use crate::backoff::Backoff;
use crate::cluster::apply::Applier;
use crate::cluster::credentials::CredentialStore;
use crate::cluster::event_recorder::EventRecorder;
use crate::decide::Settings;
use crate::health::Health;
use crate::probes::Probes;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::DynamicObject;
use kube::runtime::reflector::Store;
use std::sync::Arc;
use tokio::sync::watch;

/// What all reconciliations share.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// All worker pods.
    pub pods: Store<Pod>,
    /// All nodes.
    pub nodes: Store<Node>,
    /// What all coordinators are ordered, and what they report.
    pub runs: Store<DynamicObject>,
    /// Whether the caches of pods, nodes and runs are filled.
    pub caches_filled: watch::Sender<bool>,
    /// The operator's configuration.
    pub settings: Settings,
    /// What is measured, and whether the process is alive and ready.
    pub health: Arc<Health>,
    /// Writes objects and pods.
    pub applier: Applier,
    /// Makes tokens and certificates of the jobs.
    pub credentials: CredentialStore,
    /// Writes Events.
    pub recorder: EventRecorder,
    /// Whether coordinators answer.
    pub probes: Probes,
    /// What failed and is not tried again yet.
    pub backoff: Backoff,
}

/// The caches that watches fill.
pub struct Caches {
    /// All worker and coordinator pods.
    pub pods: Store<Pod>,
    /// All nodes.
    pub nodes: Store<Node>,
    /// All runs.
    pub runs: Store<DynamicObject>,
}

impl Context {
    /// A context in which nothing has happened yet. `instance`: the name of this process, for Events.
    #[must_use]
    pub fn new(
        client: Client,
        caches: Caches,
        settings: Settings,
        instance: &str,
        health: Arc<Health>,
    ) -> Context {
        let instance = format!("varuna-operator {instance}");
        let metrics = Arc::clone(&health.metrics);
        Context {
            applier: Applier::new(client.clone()),
            credentials: CredentialStore::new(client.clone()),
            recorder: EventRecorder::new(client.clone(), instance, metrics),
            client,
            pods: caches.pods,
            nodes: caches.nodes,
            runs: caches.runs,
            caches_filled: watch::channel(false).0,
            settings,
            health,
            probes: Probes::default(),
            backoff: Backoff::default(),
        }
    }
}
