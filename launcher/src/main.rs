//! `varuna-launcher`: the first process of a pod with several workers.

use anyhow::Result;
use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;
use varuna_api::WorkerDevice;
use varuna_launcher::processes::Processes;
use varuna_launcher::report::{Coordinator, Reports};
use varuna_launcher::shared_gpus;
use varuna_machine::{Gpus, Machine};

/// Longer than the 25 s that a worker counts on after a notice, where the job says nothing else: by then a job that can has planned without it.
const KILL_AFTER_SECONDS: u32 = 30;

/// Start several workers in one pod, each with its own GPU and its share of the memory, and restart workers that end with an error.
///
/// SIGTERM is passed on to all workers. The launcher ends when no worker is left. If a worker fails five times within ten minutes, or ten
/// times within an hour, the other workers get SIGTERM, and SIGKILL if they take too long to end; the launcher then ends with the exit code
/// of that worker. Otherwise it ends with 0 if all workers were released, or with the first exit code that is not 0.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Number of workers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: u16,
    /// Device on which the workers compute: auto, cpu or cuda.
    #[arg(long, default_value = "auto", value_parser = device)]
    device: WorkerDevice,
    /// Address of the coordinator (host:port). The launcher reports to it which workers have ended.
    #[arg(long, env = "VARUNA_COORDINATOR")]
    coordinator: Option<String>,
    /// The run's token.
    #[arg(long, env = "VARUNA_TOKEN", default_value = "", hide_env_values = true)]
    token: String,
    /// Certificate (PEM) that the coordinator must present.
    #[arg(long, env = "VARUNA_CERTIFICATE", hide_env_values = true)]
    certificate: Option<String>,
    /// Time in seconds that the other workers have to end after a worker has failed too often. Then they are killed.
    #[arg(long, value_name = "SECONDS", default_value_t = KILL_AFTER_SECONDS)]
    kill_after_seconds: u32,
    /// Program of a worker and its arguments. If there are fewer GPUs than workers, a worker that computes on a GPU ends with an error,
    /// unless it has --share-gpus: the launcher reads that argument here.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

fn device(word: &str) -> Result<WorkerDevice, String> {
    match word {
        "auto" => Ok(WorkerDevice::Auto),
        "cpu" => Ok(WorkerDevice::Cpu),
        "cuda" => Ok(WorkerDevice::Cuda),
        _ => Err("auto, cpu or cuda".to_owned()),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    launch()
        .await
        .unwrap_or_else(|error| varuna_wire::report_failure("varuna-launcher", &*error))
}

async fn launch() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        // By default a log line that cannot be written is reported with eprintln!, which panics if standard error is closed or its disk full.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("VARUNA_LOG").unwrap_or_else(|_| "info".into()),
        )
        .init();
    varuna_open_files::raise();
    let workers = usize::from(arguments.workers);
    let reports = Reports::start(arguments.coordinator.map(|address| Coordinator {
        address,
        token: arguments.token,
        certificate: arguments.certificate,
    }));
    let found = Gpus::of_machine(arguments.device);
    let (gpus, said) = shared_gpus::settle(found, workers, &arguments.command);
    if let Some(said) = said {
        tracing::warn!("{said}");
    }
    let machine = Machine::at_start(gpus, workers);
    let processes = Processes::new(arguments.command, machine, workers, reports);
    let kill_after = Duration::from_secs(arguments.kill_after_seconds.into());
    let code = processes.run(workers, kill_after).await?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
}
