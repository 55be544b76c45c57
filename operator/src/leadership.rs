//! The thread that holds the Lease and answers probes, with its own runtime and connection: whatever the rest of the process does,
//! it renews the Lease in time, or the process gives up before another one may take over.

use crate::cluster::lease::Candidate;
use crate::health::{self, Health};
use anyhow::{Context as _, Result};
use kube::{Api, Client, Config};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::{oneshot, watch};

/// Settings of the Lease: where it is, and who holds it.
#[derive(Clone, Debug)]
pub struct LeaseOptions {
    /// How the API server is reached.
    pub config: Config,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub lease: String,
    /// Unique name of this process among its replicas.
    pub identity: String,
    /// Where probes and scrapes are answered.
    pub probes: SocketAddr,
}

/// The messages between the thread and the rest of the process.
pub struct Leadership {
    /// Whether this process leads.
    pub leads: watch::Receiver<bool>,
    /// Why it ended: leadership is lost, or probes cannot be answered.
    pub ended: oneshot::Receiver<anyhow::Error>,
    /// Dropped by the rest of the process to release the Lease.
    stop: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Leadership {
    /// Releases the Lease, so that another process need not wait.
    pub fn release(self) {
        drop(self.stop);
        // It has a deadline for each call. A panic in it has been printed.
        let _ = self.thread.join();
    }
}

/// Starts the thread.
///
/// # Errors
/// The system starts no thread.
pub fn start(options: LeaseOptions, health: Arc<Health>) -> Result<Leadership> {
    let (told, leads) = watch::channel(false);
    let (tell_end, ended) = oneshot::channel();
    let (stop, stopped) = oneshot::channel();
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let result = match runtime {
            Ok(runtime) => runtime.block_on(hold(options, health, &told, stopped)),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = result {
            told.send_replace(false);
            // Nobody reads only when the process ends anyway.
            let _ = tell_end.send(error);
        }
    };
    let thread = std::thread::Builder::new().name("lease".into()).spawn(work);
    Ok(Leadership {
        leads,
        ended,
        stop,
        thread: thread.context("no thread can be started for the Lease")?,
    })
}

/// Answers probes, and holds the Lease until it is lost or the process stops.
async fn hold(
    options: LeaseOptions,
    health: Arc<Health>,
    told: &watch::Sender<bool>,
    mut stopped: oneshot::Receiver<()>,
) -> Result<()> {
    let listener = tokio::net::TcpListener::bind(options.probes)
        .await
        .with_context(|| format!("cannot listen on {} (--health)", options.probes))?;
    // Its calls come one after another, and must not wait behind others on a shared connection.
    let client = Client::try_from(options.config).context("the cluster's configuration cannot be used")?;
    let leases = Api::namespaced(client, &options.namespace);
    let identity = options.identity.clone();
    let mut candidate = Candidate::new(leases, options.lease, identity.clone(), Arc::clone(&health));
    let lead = async {
        candidate.acquire().await;
        tracing::info!(identity, "leads");
        health.metrics.leader.set(1);
        told.send_replace(true);
        let why = candidate.hold().await;
        anyhow::anyhow!("leadership is lost: {why}")
    };
    tokio::select! {
        // Two that write would undo each other's work: the process ends.
        why = lead => return Err(why),
        answered = health::serve(listener, Arc::clone(&health)) => {
            answered.context("probes and scrapes are not answered any more")?;
        }
        _ = &mut stopped => {}
    }
    candidate.release().await;
    Ok(())
}
