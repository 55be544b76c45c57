//! What a coordinator is started with.

use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;
use varuna_api::Job;
use varuna_checkpoint::{Claim, Ownership, Store};
use varuna_plan::Costs;
use varuna_protocol::coordinator::Timing;

/// What a coordinator is started with.
pub struct Options {
    /// The job, as its run began.
    pub job: Job,
    /// The steps that are to be trained, where they are more than those that the run began with; fewer change nothing.
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
    /// The name of this host, where [`Control::process_ended`](crate::Control::process_ended) will report ended processes of it.
    pub host: Option<String>,
    /// How many workers are started with the run, where that is known.
    pub expected_workers: Option<usize>,
    /// The job may lose what it has trained: where nothing of it is left, the run begins anew instead of ending.
    pub allow_state_loss: bool,
    /// Deadlines of the protocol.
    pub timing: Timing,
    /// The checkpoint store, if the job has one.
    pub checkpoints: Option<Checkpointing>,
    /// Measured costs of the job's model, checked to be of it; without them costs are estimated.
    pub costs: Option<Costs>,
    /// Takes requests for another number of workers, where somebody can start and stop workers.
    pub scale: Option<Sender<ScaleRequest>>,
}

/// A request for another number of workers.
pub struct ScaleRequest {
    /// How many there shall be.
    pub workers: u32,
    /// Takes a sentence about what is done, or why nothing is.
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
    /// The right to write, where the caller has it already; otherwise the coordinator claims it as soon as the store answers.
    pub ownership: Option<Ownership>,
    /// The store also gets the run's event files for TensorBoard: the run folder goes with the process.
    pub event_files: bool,
}

/// A certificate and its key, as PEM. The certificate is for [`varuna_wire::SERVER_NAME`]; clients trust this one alone.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl Identity {
    /// A new key, and a certificate signed with it: nobody but the job's workers and commands needs to trust it.
    ///
    /// # Errors
    /// The operating system gives no random bytes.
    pub fn self_signed() -> Result<Identity, rcgen::Error> {
        let made = rcgen::generate_simple_self_signed([varuna_wire::SERVER_NAME.to_owned()])?;
        Ok(Identity {
            certificate: made.cert.pem(),
            key: made.signing_key.serialize_pem(),
        })
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity")
    }
}
