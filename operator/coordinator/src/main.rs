//! `varuna-coordinator`: the coordinator of one job in a cluster. The operator starts it in a pod of the job.

use anyhow::{Context as _, Result};
use clap::Parser;
use kube::{Client, Config};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use varuna_cluster_coordinator::connection::bounded;
use varuna_cluster_coordinator::run::{Configuration, run};
use varuna_coordinator::Identity;
use varuna_metrics::receiver::Receiver;
use varuna_wire::address::any_beside;
use varuna_wire::{program_version, report_failure};

/// Where workers and the operator expect it.
const PORT: u16 = 7070;
const HEALTH_PORT: u16 = 8081;

/// The coordinator of one VarunaJob.
///
/// It reads its orders from the job's VarunaRun and reports there. Its record is the job's VarunaRecord. It ends when the run has ended or
/// another coordinator is in charge. SIGTERM does not end it: the operator first puts another coordinator in charge.
#[derive(Parser)]
#[command(name = "varuna-coordinator", version = program_version())]
struct Arguments {
    /// Namespace of the job.
    #[arg(long, env = "VARUNA_POD_NAMESPACE")]
    namespace: String,
    /// Name of the job.
    #[arg(long)]
    job: String,
    /// Name of the job's VarunaRun and VarunaRecord.
    #[arg(long)]
    run: String,
    /// Number of this coordinator. The VarunaRun names the number of the coordinator in charge.
    #[arg(long)]
    number: i64,
    /// Folder with the files token, tls.crt and tls.key.
    #[arg(long, default_value = "/run/varuna/credentials")]
    credentials: PathBuf,
    /// IP address at which workers reach this process.
    #[arg(long, env = "VARUNA_POD_IP")]
    address: IpAddr,
    /// Address on which to listen for workers, ip:port [default: port 7070 on all addresses of the address family of --address].
    #[arg(long)]
    bind: Option<SocketAddr>,
    /// Address for probes and metrics, ip:port [default: port 8081 on all addresses of the address family of --address].
    #[arg(long)]
    health: Option<SocketAddr>,
    /// The run folder. It may be lost when the process ends.
    #[arg(long, default_value = "/tmp/varuna")]
    run_dir: PathBuf,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    match coordinate().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report_failure("varuna-coordinator", &*error),
    }
}

async fn coordinate() -> Result<()> {
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
    varuna_open_files::raise();
    ignore_termination()?;
    let config = Config::infer()
        .await
        .context("no cluster: neither a kubeconfig nor a service account")?;
    let client = Client::try_from(bounded(config)).context("the cluster's configuration cannot be used")?;
    let any = any_beside(&arguments.address.to_string());
    let configuration = Configuration {
        namespace: arguments.namespace,
        job: arguments.job,
        run: arguments.run,
        number: arguments.number,
        token: read(&arguments.credentials, "token")?,
        identity: Some(Identity {
            certificate: read(&arguments.credentials, "tls.crt")?,
            key: read(&arguments.credentials, "tls.key")?,
        }),
        address: arguments.address,
        bind: arguments.bind.unwrap_or(SocketAddr::new(any, PORT)),
        health: arguments.health.unwrap_or(SocketAddr::new(any, HEALTH_PORT)),
        receiver: Receiver::from_environment()?,
        folder: arguments.run_dir,
    };
    Ok(run(client, configuration).await?)
}

fn read(folder: &Path, name: &str) -> Result<String> {
    let path = folder.join(name);
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {} (--credentials)", path.display()))
}

/// A pod that is evicted has some seconds left: training continues under this coordinator until the next one is in charge.
fn ignore_termination() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    tokio::spawn(async move {
        while terminate.recv().await.is_some() {
            tracing::info!("asked to end: goes on until another coordinator is in charge");
        }
    });
    Ok(())
}
