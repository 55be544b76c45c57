//! The command line of `varuna-worker`.

use crate::ablation::Ablations;
use crate::{inference, optimizer_check, profile};
use anyhow::{Result, bail};
use clap::Parser;
use std::net::{IpAddr, SocketAddr};
use varuna_torch::{AttentionChoice, DeviceChoice};
use varuna_wire::address::{any_beside, loopback_beside, split};

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
    /// family, else the loopback address of the coordinator's, where that is a loopback address or localhost; port 0].
    #[arg(long)]
    pub(crate) bind: Option<String>,
    /// Host under which peers reach this worker, where it is not the one of --bind; an IPv6 address with or without brackets. This or --bind is
    /// needed where the coordinator is on another machine.
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
///
/// # Errors
/// Peers on other machines would be told an address at which they reach themselves.
pub(crate) fn bind_address(
    named: Option<&str>,
    advertised: Option<&str>,
    coordinator: &str,
) -> Result<String> {
    match (named, advertised) {
        (Some(address), None) if is_remote(coordinator) && is_unspecified(address) => bail!(
            "--bind is {address}, which tells peers on other machines no address of this one, and the coordinator is at {coordinator}: allowed is \
             an address of this machine that the other workers reach, or --advertise HOST with one beside it"
        ),
        (Some(address), _) => Ok(address.to_owned()),
        (None, Some(host)) => Ok(SocketAddr::new(any_beside(host), 0).to_string()),
        (None, None) if is_remote(coordinator) => bail!(
            "--coordinator is {coordinator}, which other machines reach, and workers there could not reach this one at a loopback address: \
             needed is --advertise HOST, the host under which the other workers reach this machine, or --bind HOST:PORT with such a host"
        ),
        (None, None) => Ok(SocketAddr::new(loopback_beside(coordinator), 0).to_string()),
    }
}

/// Whether a coordinator may be on another machine than this one. What is no address is refused by the attempt to connect.
fn is_remote(coordinator: &str) -> bool {
    // It may be a URI.
    let address = coordinator
        .split_once("://")
        .map_or(coordinator, |(_, address)| address);
    let Some((host, _)) = split(address.trim_end_matches('/')) else {
        return false;
    };
    match host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        // A connection to the unspecified address reaches this machine.
        Ok(ip) => !ip.is_loopback() && !ip.is_unspecified(),
        Err(_) => !host.eq_ignore_ascii_case("localhost"),
    }
}

/// Whether an address to listen on stands for all of this machine's.
fn is_unspecified(address: &str) -> bool {
    let ip = split(address).and_then(|(host, _)| host.parse::<IpAddr>().ok());
    ip.is_some_and(|ip| ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::bind_address;

    #[test]
    fn a_worker_listens_where_its_peers_and_its_coordinator_are() {
        let bind = |named, advertised, coordinator| bind_address(named, advertised, coordinator).unwrap();
        assert_eq!(bind(None, None, "[::1]:7070"), "[::1]:0");
        assert_eq!(bind(None, None, "127.0.0.1:7070"), "127.0.0.1:0");
        assert_eq!(bind(None, None, "localhost:7070"), "127.0.0.1:0");
        assert_eq!(bind(None, None, "http://127.77.1.2:7070/"), "127.0.0.1:0");
        assert_eq!(bind(None, None, "0.0.0.0:7070"), "127.0.0.1:0");
        assert_eq!(bind(None, Some("fd00::5"), "job-coordinator:7070"), "[::]:0");
        assert_eq!(bind(None, Some("10.0.0.5"), "job-coordinator:7070"), "0.0.0.0:0");
        assert_eq!(bind(Some("[::1]:9"), Some("10.0.0.5"), "c:1"), "[::1]:9");
        assert_eq!(bind(Some("10.0.0.5:0"), None, "c:1"), "10.0.0.5:0");
        assert_eq!(
            bind(Some("0.0.0.0:9"), Some("10.0.0.5"), "10.0.0.1:7070"),
            "0.0.0.0:9"
        );
        assert_eq!(bind(Some("0.0.0.0:9"), None, "127.0.0.1:7070"), "0.0.0.0:9");
    }

    #[test]
    fn a_worker_of_a_coordinator_on_another_machine_must_say_where_its_peers_reach_it() {
        for coordinator in [
            "10.0.0.1:7070",
            "[fd00::2]:7070",
            "https://10.0.0.1:7070",
            "job-coordinator:7070",
        ] {
            for named in [None, Some("0.0.0.0:0"), Some("[::]:7071")] {
                let why = bind_address(named, None, coordinator).unwrap_err().to_string();
                for part in [coordinator, "--bind", "--advertise"] {
                    assert!(why.contains(part), "{why}");
                }
            }
        }
    }
}
