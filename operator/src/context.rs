//! What all reconciliations share.

use crate::backoff::Backoff;
use crate::cluster::apply::Applier;
use crate::cluster::credentials::CredentialStore;
use crate::cluster::event_recorder::EventRecorder;
use crate::cluster::pod_writer::PodWriter;
use crate::cluster::publish::Publisher;
use crate::decide::Settings;
use crate::health::Health;
use crate::index::Index;
use crate::parsed_specs::ParsedSpecs;
use crate::probes::Probes;
use crate::resource::JobRef;
use kube::Client;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::Sender;

/// Jobs that are reconciled concurrently.
const RECONCILED_CONCURRENTLY: usize = 32;

/// What all reconciliations share.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// What the watches have shown.
    pub index: Arc<Index>,
    /// The operator's configuration.
    pub settings: Settings,
    /// What is measured, and whether the process is alive and ready.
    pub health: Arc<Health>,
    /// Writes objects.
    pub applier: Applier,
    /// Creates and deletes pods.
    pub pods: PodWriter,
    /// Makes tokens and certificates of the jobs.
    pub credentials: CredentialStore,
    /// Writes statuses and Events.
    pub publisher: Publisher,
    /// The probes of coordinators.
    pub probes: Probes,
    /// What failed and is not tried again yet.
    pub backoff: Backoff,
    /// The jobs' specs, as they were parsed last.
    pub specs: ParsedSpecs,
    /// Permits to reconcile a job. Jobs get them in the order in which they ask.
    pub reconciliations: Semaphore,
}

impl Context {
    /// A context in which nothing has happened yet. `instance`: the name of this process, for Events; `changed`: where jobs are named that
    /// have to be reconciled.
    #[must_use]
    pub fn new(
        client: Client,
        settings: Settings,
        instance: &str,
        health: Arc<Health>,
        changed: Sender<JobRef>,
    ) -> Context {
        let instance = format!("varuna-operator {instance}");
        let metrics = Arc::clone(&health.metrics);
        let index = Arc::new(Index::new(settings.clone()));
        let recorder = EventRecorder::new(client.clone(), instance, metrics);
        Context {
            applier: Applier::new(client.clone(), Arc::clone(&index)),
            pods: PodWriter::new(client.clone(), Arc::clone(&index)),
            credentials: CredentialStore::new(client.clone()),
            publisher: Publisher::new(client.clone(), recorder),
            client,
            index,
            settings,
            health,
            probes: Probes::new(changed),
            backoff: Backoff::default(),
            specs: ParsedSpecs::default(),
            reconciliations: Semaphore::new(RECONCILED_CONCURRENTLY),
        }
    }
}
