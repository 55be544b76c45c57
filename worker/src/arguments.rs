//! The command line of `varuna-worker`.

use crate::ablation::Ablations;
use crate::{inference, optimizer_check, profile};
use clap::Parser;
use std::net::SocketAddr;
use varuna_torch::{AttentionChoice, DeviceChoice};
use varuna_wire::address::{any_beside, loopback_beside};

/// A Varuna worker: attaches to a coordinator, gets its place, and trains until it is released.
///
/// SIGTERM is a notice: the worker is planned around and released, then ends. Exit codes: 0 released, 1 failed or refused,
/// 2 wrong arguments.
#[derive(Parser)]
#[command(
    version = varuna_wire::program_version(),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) instead: Option<Instead>,
    /// Where the coordinator listens (host:port).
    #[arg(long, env = "VARUNA_COORDINATOR", required = true)]
    pub(crate) coordinator: Option<String>,
    /// Name for people.
    #[arg(long, env = "VARUNA_WORKER_NAME", default_value = "worker")]
    pub(crate) name: String,
    /// Where to listen for peers, host:port, an IPv6 address in brackets; port 0 = any free one [default: with --advertise all addresses of that
    /// family, else the loopback address of the coordinator's; port 0].
    #[arg(long)]
    pub(crate) bind: Option<String>,
    /// Host under which peers reach this worker, where it is not the one of --bind; an IPv6 address with or without brackets.
    #[arg(long)]
    pub(crate) advertise: Option<String>,
    /// The run's token.
    #[arg(long, env = "VARUNA_TOKEN", default_value = "", hide_env_values = true)]
    pub(crate) token: String,
    /// The certificate (PEM) that the coordinator must show, for a stream over TLS; in the clear without it.
    #[arg(long, env = "VARUNA_CERTIFICATE", hide_env_values = true)]
    pub(crate) certificate: Option<String>,
    /// Dataset to train on (path without .bin / .idx), where it lies elsewhere than the job file says; not for a job with several.
    #[arg(long)]
    pub(crate) data: Option<String>,
    /// Threads for tensor operations; the job file's or 1 by default. A change of it changes the last bits of results.
    #[arg(long)]
    pub(crate) threads: Option<u32>,
    /// What to compute on: auto (the first GPU, where there is one), cpu, cuda or cuda:N; what the job file says by default.
    #[arg(long, env = "VARUNA_DEVICE")]
    pub(crate) device: Option<DeviceChoice>,
    /// How attention is computed: auto (what libtorch prefers), flash, cudnn, efficient or math, as a comparison.
    #[arg(long, env = "VARUNA_ATTENTION", default_value = "auto")]
    pub(crate) attention: AttentionChoice,
    /// What to leave out, to measure what it gains: kernels (or optimizer, norm, gelu, dropout, loss, bias, squares of them), streams, pinned,
    /// ahead, chunks, padding, state-copies, read-ahead, following; several with commas between. What is trained stays the same.
    #[arg(long, value_name = "NAMES", env = "VARUNA_WITHOUT", default_value = "")]
    pub(crate) without: Ablations,
    /// Bytes of host memory that this worker may use where it computes on the processor; by default what is available within the limits
    /// of its control group. `varuna run` divides what is available by its workers.
    #[arg(long, value_name = "BYTES")]
    pub(crate) host_memory: Option<u64>,
    /// Workers that share this worker's GPU, itself included: each may use its part of the GPU's memory.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) workers_on_gpu: u32,
    /// Node name: workers of one node tend to die together.
    #[arg(long, env = "VARUNA_NODE")]
    pub(crate) node: Option<String>,
}

/// What this program does instead of training.
#[derive(clap::Subcommand)]
pub(crate) enum Instead {
    /// Measure a job's model on this machine; prints a profile (see `varuna profile`).
    Profile(profile::Arguments),
    #[command(hide = true)]
    ProfilePeer(profile::PeerArguments),
    #[command(hide = true)]
    CheckOptimizer(optimizer_check::Arguments),
    Generate(inference::GenerateArguments),
    Evaluate(inference::EvaluateArguments),
    Logits(inference::LogitsArguments),
}

/// Where to listen for peers.
pub(crate) fn bind_address(named: Option<&str>, advertised: Option<&str>, coordinator: &str) -> String {
    match (named, advertised) {
        (Some(address), _) => address.to_owned(),
        (None, Some(host)) => SocketAddr::new(any_beside(host), 0).to_string(),
        (None, None) => SocketAddr::new(loopback_beside(coordinator), 0).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::bind_address;

    #[test]
    fn a_worker_listens_where_its_peers_and_its_coordinator_are() {
        assert_eq!(bind_address(None, None, "[::1]:7070"), "[::1]:0");
        assert_eq!(bind_address(None, None, "127.0.0.1:7070"), "127.0.0.1:0");
        assert_eq!(bind_address(None, None, "job-coordinator:7070"), "127.0.0.1:0");
        assert_eq!(
            bind_address(None, Some("fd00::5"), "job-coordinator:7070"),
            "[::]:0"
        );
        assert_eq!(
            bind_address(None, Some("10.0.0.5"), "job-coordinator:7070"),
            "0.0.0.0:0"
        );
        assert_eq!(bind_address(Some("[::1]:9"), Some("10.0.0.5"), "c:1"), "[::1]:9");
    }
}
