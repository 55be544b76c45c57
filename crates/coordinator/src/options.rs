//! The options with which a coordinator is started.

use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;
use varuna_api::Job;
use varuna_checkpoint::{Claim, Ownership, Store};
use varuna_plan::Costs;
use varuna_protocol::coordinator::Timing;

/// The options with which a coordinator is started.
pub struct Options {
    /// The job as it was when its run began.
    pub job: Job,
    /// The number of steps to train, if it is greater than the number with which the run began; a smaller number changes nothing.
    pub steps: u64,
    /// The job file's text, which workers get.
    pub job_text: String,
    /// The run's identity (see [`varuna_api::run_identity`]): a worker of another run is refused.
    pub run: String,
    /// Fingerprint of the dataset; empty = not known.
    pub data_fingerprint: String,
    /// The address to listen on, `host:port`; port 0 = any free one.
    pub bind: String,
    /// The run's token, which workers and commands must know.
    pub token: String,
    /// The server's certificate; without it the server does not use TLS.
    pub identity: Option<Identity>,
    /// The name of this host, if [`Control::process_ended`](crate::Control::process_ended) will report ended processes of it.
    pub host: Option<String>,
    /// How many workers are started with the run, if known.
    pub expected_workers: Option<usize>,
    /// Whether the job may lose its training progress: if no state is left, the run begins again instead of ending.
    pub allow_state_loss: bool,
    /// Deadlines of the protocol.
    pub timing: Timing,
    /// The checkpoint store, if the job has one.
    pub checkpoints: Option<Checkpointing>,
    /// Measured costs, checked to belong to the job's model; without them costs are estimated.
    pub costs: Option<Costs>,
    /// Takes requests for another number of workers, if there is a component that can start and stop workers.
    pub scale: Option<Sender<ScaleRequest>>,
}

/// A request for another number of workers.
pub struct ScaleRequest {
    /// The requested number of workers.
    pub workers: u32,
    /// Takes a sentence about what is done, or about why nothing is done.
    pub answer: oneshot::Sender<Result<String, String>>,
}

/// A run's checkpoint store, and its right to write there.
pub struct Checkpointing {
    /// The store, at the job's location.
    pub store: Store,
    /// How many checkpoints are kept.
    pub keep: usize,
    /// Identifies this run as an owner of the location.
    pub claim: Claim,
    /// The right to write, if the caller already has it; otherwise the coordinator claims it as soon as the store answers.
    pub ownership: Option<Ownership>,
    /// Whether the store also gets the run's event files for TensorBoard, because the run folder is lost with the process.
    pub event_files: bool,
}

/// A certificate and its key, as PEM. The certificate is for [`varuna_wire::SERVER_NAME`]; clients trust only this one.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// Private key of the certificate.
    pub key: String,
}

impl Identity {
    /// A new key, and a certificate signed with it: only the job's workers and commands need to trust it.
    ///
    /// # Errors
    /// The operating system gives no random bytes.
    pub fn self_signed() -> Result<Identity, rcgen::Error> {
        Identity::of_key(&rcgen::KeyPair::generate()?)
    }

    /// A key that exists, as PEM, and a new certificate signed with it.
    ///
    /// # Errors
    /// It is no private key that can be used.
    pub fn of_private_key(key: &str) -> Result<Identity, rcgen::Error> {
        Identity::of_key(&rcgen::KeyPair::from_pem(key)?)
    }

    fn of_key(key: &rcgen::KeyPair) -> Result<Identity, rcgen::Error> {
        let names = [varuna_wire::SERVER_NAME.to_owned()];
        let certificate = rcgen::CertificateParams::new(names)?.self_signed(key)?;
        Ok(Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity")
    }
}
