//! The command line of `varuna-worker`.

use crate::ablation::Ablations;
use crate::gpu_place::{GpuChoice, GpuPlace, ON_ONE_GPU_MAX};
use crate::{inference, optimizer_check, profile};
use anyhow::{Result, bail};
use clap::Parser;
use std::net::{IpAddr, SocketAddr};
use varuna_torch::{AttentionChoice, DeviceChoice};
use varuna_wire::address::{any_beside, loopback_beside, split};

/// A Varuna worker. It attaches to a coordinator, gets its part of the model, and trains until it is released.
///
/// SIGTERM is a notice: the next plan leaves the worker out, and the worker is released and ends. Exit codes: 0 released, 1 failed or
/// refused, 2 wrong arguments.
#[derive(Parser)]
#[command(
    version = varuna_wire::program_version(),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Address of the coordinator (host:port).
    #[arg(long, env = "VARUNA_COORDINATOR", required = true)]
    pub(crate) coordinator: Option<String>,
    /// Name of this worker in messages.
    #[arg(long, env = "VARUNA_WORKER_NAME", default_value = "worker")]
    pub(crate) name: String,
    /// Address on which to listen for other workers, host:port. An IPv6 address stands in brackets. Port 0 is any free port [default: with
    /// --advertise all addresses of that address family, otherwise a loopback address if the coordinator is on this machine; port 0].
    #[arg(long)]
    pub(crate) bind: Option<String>,
    /// Host under which other workers reach this worker, if it is not the host of --bind. An IPv6 address may stand in brackets.
    /// --advertise or --bind is required if the coordinator is on another machine.
    #[arg(long)]
    pub(crate) advertise: Option<String>,
    /// The run's token.
    #[arg(long, env = "VARUNA_TOKEN", default_value = "", hide_env_values = true)]
    pub(crate) token: String,
    /// Certificate (PEM) that the coordinator must present. With it, the connection uses TLS; without it, the connection is not encrypted.
    #[arg(long, env = "VARUNA_CERTIFICATE", hide_env_values = true)]
    pub(crate) certificate: Option<String>,
    /// Dataset to train on (path without .bin or .idx), if it is not where the job file says. Not for a job with several datasets.
    #[arg(long)]
    pub(crate) data: Option<String>,
    /// Number of threads for tensor operations [default: the job file's, or 1]. Another number changes the last bits of results.
    #[arg(long)]
    pub(crate) threads: Option<u32>,
    /// Device to compute on: auto (a GPU if there is one, otherwise the CPU), cpu, cuda (a GPU) or cuda:N [default: the job file's]. The GPU of auto and
    /// cuda is that of --gpu-place, or else the first.
    #[arg(long, env = "VARUNA_DEVICE")]
    pub(crate) device: Option<DeviceChoice>,
    /// Implementation of attention, for comparisons: auto (what libtorch prefers), flash, cudnn, efficient or math.
    #[arg(long, env = "VARUNA_ATTENTION", default_value = "auto")]
    pub(crate) attention: AttentionChoice,
    /// Optimizations to switch off, to measure their gain, separated by commas: kernels (or some of optimizer, norm, gelu, dropout, loss,
    /// bias, squares), streams, pinned, ahead, chunks, padding, state-copies, read-ahead, following, parameters-first. The training stays the same.
    #[arg(long, value_name = "NAMES", env = "VARUNA_WITHOUT", default_value = "")]
    pub(crate) without: Ablations,
    /// Bytes of host memory that this worker may use: for training if it computes on the CPU, for spare copies and checkpoints beside a GPU
    /// [default: the memory that is available within the limits of its control group]. `varuna run` divides the available memory among its workers.
    #[arg(long, value_name = "BYTES")]
    pub(crate) host_memory: Option<u64>,
    /// Number of workers that share this worker's GPU, including this one. Each may use its share of the GPU's memory.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(ON_ONE_GPU_MAX)))]
    pub(crate) workers_on_gpu: u32,
    /// Place of this worker among the N workers of its machine, counted from 0. It takes the GPU of that number among those that the driver shows it,
    /// unless --device names one by its number, which is then that of all N workers. For whoever starts workers and cannot count the GPUs, or
    /// finds fewer than workers.
    #[arg(long, value_name = "I/N", conflicts_with = "workers_on_gpu")]
    gpu_place: Option<GpuPlace>,
    /// Several workers may have one GPU if there are more workers than GPUs. A worker that computes on a GPU ends with an error then, unless it has
    /// --share-gpus. For workers with --gpu-place; `varuna-launcher` reads this argument of the workers' command.
    #[arg(long)]
    share_gpus: bool,
    /// Name of the node. Workers of one node often fail together.
    #[arg(long, env = "VARUNA_NODE")]
    pub(crate) node: Option<String>,
}

impl Arguments {
    /// Which GPU this worker takes, if it computes on one.
    pub(crate) fn gpu(&self) -> GpuChoice {
        let shares = self.share_gpus;
        match (self.gpu_place, self.device) {
            // All workers of the machine have the same command.
            (Some(place), Some(DeviceChoice::Cuda(_))) => GpuChoice::NamedForAll { place, shares },
            (Some(place), _) => GpuChoice::ByPlace { place, shares },
            (None, _) => GpuChoice::Opened {
                workers: self.workers_on_gpu,
            },
        }
    }
}

/// What this program does instead of training.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Measure a job's model on this machine, and print a profile (see `varuna profile`).
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
    use super::*;

    /// The GPU that a worker takes with these arguments.
    fn gpu(arguments: &[&str]) -> GpuChoice {
        let needed = ["varuna-worker", "--coordinator", "127.0.0.1:7070"];
        let all = needed.iter().chain(arguments).copied();
        Arguments::try_parse_from(all).unwrap().gpu()
    }

    #[test]
    fn a_gpu_named_by_number_is_the_gpu_of_all_workers() {
        let (place, shares) = ("1/4".parse().unwrap(), false);
        let by_place = GpuChoice::ByPlace { place, shares };
        for device in ["auto", "cpu", "cuda"] {
            assert_eq!(
                gpu(&["--device", device, "--gpu-place", "1/4"]),
                by_place,
                "{device}"
            );
        }
        let opened = |workers| GpuChoice::Opened { workers };
        for device in ["cuda:0", "cuda:3"] {
            for shares in [false, true] {
                let mut arguments = vec!["--device", device, "--gpu-place", "1/4"];
                arguments.extend(shares.then_some("--share-gpus"));
                let named = GpuChoice::NamedForAll { place, shares };
                assert_eq!(gpu(&arguments), named, "{device}");
            }
            assert_eq!(gpu(&["--device", device]), opened(1));
        }
        assert_eq!(gpu(&["--device", "cuda", "--workers-on-gpu", "2"]), opened(2));
    }

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
    fn remote_coordinator_requires_an_advertised_address() {
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
