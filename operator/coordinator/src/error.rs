//! Why a coordinator could not do its work.

use std::net::SocketAddr;
use varuna_coordinator::CoordinatorError;
use varuna_metrics::receiver::ReceiverError;

/// Why a coordinator could not do its work. Another one is started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or did not answer.
    #[error("API server: {0}")]
    Api(#[from] kube::Error),
    /// A document says what this release does not understand, or is of another job.
    #[error("{kind} {name}: {why}")]
    Document {
        /// The kind of object.
        kind: &'static str,
        /// Name of the document.
        name: String,
        /// Description of the error.
        why: String,
    },
    /// Probes and scrapes cannot be answered.
    #[error("cannot listen on {address} (--health): {source}")]
    Listen {
        /// Address at which it should listen.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// The orders were not read for minutes.
    #[error("VarunaRun {0} cannot be read: the log says why")]
    NoOrders(String),
    /// The job's checkpoint location cannot be used.
    #[error("spec.checkpoint.uri: {0}")]
    Store(String),
    /// Figures cannot be pushed as the variables of OpenTelemetry say.
    #[error(transparent)]
    Receiver(#[from] ReceiverError),
    /// The coordinator cannot listen, or its run folder cannot be written.
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    /// The run folder cannot be made.
    #[error("the run folder cannot be used: {0}")]
    Folder(String),
}
