//! `varuna-operator`: watches the cluster, and runs the controller while it leads; the process ends with its leadership.

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Parser;
use clap::builder::NonEmptyStringValueParser;
use kube::{Client, Config};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use varuna_operator::cluster::connection;
use varuna_operator::controller::{self, Scope};
use varuna_operator::decide::Settings;
use varuna_operator::health::Health;
use varuna_operator::installation::{self, Installation};
use varuna_operator::leadership::{self, LeaseOptions};
use varuna_wire::address::any_beside;
use varuna_wire::report_failure;

/// The operator keeps very many small objects, and parses what it reads into more. With the C library's allocator it took 1.6 times the processor time at
/// rest, and 1.7 times the memory (docs/internals/measurements.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Where probes and scrapes are answered, as the chart expects it.
const HEALTH_PORT: u16 = 8081;

/// The Varuna operator.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Manage only the jobs of this namespace [default: all namespaces].
    #[arg(long, env = "VARUNA_NAMESPACE")]
    namespace: Option<String>,
    /// Image of the workers of jobs that name no image.
    #[arg(long, env = "VARUNA_WORKER_IMAGE")]
    worker_image: Option<String>,
    /// Name of the GPU resource. If it is empty, workers request no GPU.
    #[arg(long, env = "VARUNA_GPU_RESOURCE", default_value = "nvidia.com/gpu")]
    gpu_resource: String,
    /// Prefix of a node taint, or type of a node condition, that announces the end of a node. It is added to the known ones. The option can
    /// be given several times. It must not be empty: every taint begins with that.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    node_signal: Vec<String>,
    /// Label of nodes with their location. It is added to the known labels of zones, blocks and NVLink domains. The option can be given
    /// several times, from the widest part to the narrowest.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    topology_label: Vec<String>,
    /// Image of the jobs' coordinators.
    #[arg(long, env = "VARUNA_COORDINATOR_IMAGE")]
    coordinator_image: String,
    /// Priority class of the coordinators of jobs that name no priority class.
    #[arg(long)]
    coordinator_priority_class: Option<String>,
    /// Name of this process. It must be unique among the replicas.
    #[arg(long, env = "VARUNA_POD_NAME")]
    identity: String,
    /// Namespace of the Lease.
    #[arg(long, env = "VARUNA_POD_NAMESPACE")]
    lease_namespace: String,
    /// Name of the Lease.
    #[arg(long, default_value = "varuna-operator")]
    lease_name: String,
    /// IP address of this process.
    #[arg(long, env = "VARUNA_POD_IP")]
    address: IpAddr,
    /// Check the installation with the permissions of this process, and end. The check covers the definitions, the permissions, and whether
    /// a replica leads.
    #[arg(long)]
    check: bool,
    /// Address for probes and metrics, ip:port [default: port 8081 on all addresses of the address family of --address].
    #[arg(long)]
    health: Option<SocketAddr>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report_failure("varuna-operator", &*error),
    }
}

async fn run() -> Result<()> {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .json()
        // By default a log line that cannot be written is reported with eprintln!, which panics if standard error is closed or its disk full.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("VARUNA_LOG").unwrap_or_else(|_| "info".into()),
        )
        .init();
    decline_huge_pages();
    let config = Config::infer()
        .await
        .context("no cluster: neither a kubeconfig nor a service account")?;
    let config = connection::bounded(config);
    let client = connection::client(config.clone()).context("the cluster's configuration cannot be used")?;
    if arguments.check {
        return check(&client, arguments).await;
    }
    let health = Arc::new(Health::new(Arc::default()));
    let probes = arguments.health.unwrap_or(SocketAddr::new(
        any_beside(&arguments.address.to_string()),
        HEALTH_PORT,
    ));
    let lease = LeaseOptions {
        config,
        namespace: arguments.lease_namespace,
        lease: arguments.lease_name,
        identity: arguments.identity.clone(),
        probes,
    };
    let stopped = stopped()?;
    let mut leadership = leadership::start(lease, Arc::clone(&health))?;
    let scope = Scope {
        namespace: arguments.namespace.clone(),
    };
    let settings = Settings {
        image: arguments.worker_image,
        coordinator_image: Some(arguments.coordinator_image),
        coordinator_priority_class: arguments.coordinator_priority_class,
        gpu_resource: Some(arguments.gpu_resource).filter(|g| !g.is_empty()),
        node_signals: arguments.node_signal,
        topology_labels: arguments.topology_label,
    };
    let leads = leadership.leads.clone();
    let ended = async {
        match (&mut leadership.ended).await {
            Ok(why) => why,
            Err(_) => anyhow!("the thread that holds the Lease has ended"),
        }
    };
    let identity = &arguments.identity;
    tokio::select! {
        why = ended => return Err(why),
        // The Lease is held until the last status is written, because the next leader continues from that.
        result = controller::run_until(client, scope, settings, identity, health, leads, stopped) => result?,
    }
    leadership.release();
    Ok(())
}

/// The allocator asks for huge pages, and each of them would stay in use because of a few small objects: with a hundred jobs of 64 pods this
/// process took 119 MB with huge pages and 71 MB without. A sandbox that does not know them may refuse; then the process continues with them.
fn decline_huge_pages() {
    if let Err(error) = nix::sys::prctl::set_thp_disable(true) {
        tracing::warn!(%error, "huge pages cannot be declined; this process will take more memory");
    }
}

/// Says what is wrong with the installation.
async fn check(client: &Client, arguments: Arguments) -> Result<()> {
    let installation = Installation {
        namespace: arguments.namespace,
        lease_namespace: arguments.lease_namespace,
        lease_name: arguments.lease_name,
    };
    let faults = installation::faults(client, &installation)
        .await
        .context("the API server does not answer")?;
    for fault in &faults {
        println!("{fault}");
    }
    if !faults.is_empty() {
        bail!("the installation is not whole: {} faults", faults.len());
    }
    println!("definitions, rights and leadership are as they should be");
    Ok(())
}

/// Resolves at SIGTERM or Ctrl-C.
fn stopped() -> Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_signal_that_every_taint_begins_with_is_refused() {
        let parsed = |signal: &str| {
            let others =
                "varuna-operator --coordinator-image=c --identity=i --lease-namespace=n --address=127.0.0.1";
            let parsed = Arguments::try_parse_from(others.split(' ').chain([signal]));
            parsed.map(|arguments| arguments.node_signal)
        };
        assert!(parsed("--node-signal=").is_err());
        assert_eq!(parsed("--node-signal=a.com/ends").unwrap(), ["a.com/ends"]);
    }
}
