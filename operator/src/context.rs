//! What all reconciliations share.

use crate::backoff::Backoff;
use crate::cluster::apply::Applier;
use crate::cluster::credentials::CredentialStore;
use crate::cluster::event_recorder::EventRecorder;
use crate::decide::Settings;
use crate::health::Health;
use crate::resource::JobRef;
use crate::runs::{Endpoint, Launcher, Runs};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::runtime::reflector::Store;
use std::sync::Arc;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;

/// What all reconciliations share.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// All worker pods.
    pub pods: Store<Pod>,
    /// All nodes.
    pub nodes: Store<Node>,
    /// Whether the caches of pods and nodes are filled.
    pub caches_filled: watch::Sender<bool>,
    /// The operator's configuration.
    pub settings: Settings,
    /// What is measured, and whether the process is alive and ready.
    pub health: Arc<Health>,
    /// Writes objects and pods.
    pub applier: Applier,
    /// Tokens and certificates of the jobs.
    pub credentials: CredentialStore,
    /// Writes Events.
    pub recorder: EventRecorder,
    /// The coordinators of this process.
    pub runs: Runs,
    /// What failed and is not tried again yet.
    pub backoff: Arc<Backoff>,
}

impl Context {
    /// A context without any coordinator. `reconcile` takes requests to reconcile a job.
    #[must_use]
    pub fn new(
        client: Client,
        caches: (Store<Pod>, Store<Node>),
        settings: Settings,
        endpoint: Endpoint,
        health: Arc<Health>,
        reconcile: Sender<JobRef>,
    ) -> Context {
        let instance = format!("varuna-operator at {}", endpoint.address);
        let metrics = Arc::clone(&health.metrics);
        let backoff = Arc::new(Backoff::default());
        let launcher = Launcher {
            client: client.clone(),
            endpoint,
            metrics: Arc::clone(&metrics),
            backoff: Arc::clone(&backoff),
            reconcile,
        };
        Context {
            applier: Applier::new(client.clone()),
            credentials: CredentialStore::new(client.clone()),
            recorder: EventRecorder::new(client.clone(), instance, metrics),
            runs: Runs::new(launcher),
            client,
            pods: caches.0,
            nodes: caches.1,
            caches_filled: watch::channel(false).0,
            settings,
            health,
            backoff,
        }
    }
}
