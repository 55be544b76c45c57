//! `varuna profile`: measures a job's model on this machine. The worker program does the measurement.

use crate::children::{with_this_process, worker_program};
use crate::failure::Failure;
use crate::io::{print, write};
use crate::job;
use std::path::PathBuf;
use std::process::Stdio;
use varuna_api::WorkerDevice;
use varuna_plan::profile::Profile;

/// Measure compute, memory and links of a job's model on this machine.
///
/// This measures the compute time and memory of each segment by micro-batch size, and the links and gradient rings between worker
/// processes. Run nothing else at the same time. The commands `plan`, `replay`, `run` and `coordinator` read the profile with --profile.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The job file. Its dataset is not read.
    job: PathBuf,
    /// Write the profile to this file, as JSON.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Micro-batch sizes to measure, in samples, in ascending order.
    #[arg(long, value_name = "N,N,...", default_value = "1,2,4,8")]
    micro_batch_sizes: String,
    /// Number of worker processes for the measurement of links and rings, 1 to 4.
    #[arg(long, short = 'n', default_value_t = 2)]
    workers: usize,
    /// Device to measure: cpu, cuda, cuda:N or auto. auto is the first GPU if there is one, otherwise the CPU [default: the job's
    /// spec.workers.device].
    #[arg(long)]
    device: Option<String>,
    /// Number of measured steps for each micro-batch size. One more step is a warm-up.
    #[arg(long, default_value_t = 4)]
    repeats: u32,
    /// Print the profile as JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// The worker program [default: varuna-worker in the folder of this program].
    #[arg(long, value_name = "FILE", env = "VARUNA_WORKER")]
    worker_binary: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut file = job::read(&arguments.job)?;
    let device = arguments
        .device
        .as_deref()
        .unwrap_or(word(file.job.workers.device));
    if arguments.device.is_some() {
        // Another device than the job's may be measured; only plans for the job refuse it.
        file.job.workers.device = WorkerDevice::Auto;
    }
    let program = worker_program(arguments.worker_binary.as_deref())?;
    let done = with_this_process(&program)?
        .args(["profile", "--job"])
        .arg(&arguments.job)
        .args(["--micro-batch-sizes", &arguments.micro_batch_sizes])
        .args(["--workers", &arguments.workers.to_string()])
        .args(["--device", device])
        .args(["--repeats", &arguments.repeats.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| Failure::Internal(format!("cannot start the measurement: {e}")))?;
    if !done.status.success() {
        return Err(match done.status.code() {
            // The worker has printed the reason.
            Some(1 | 2) => Failure::Reported,
            _ => Failure::Internal(format!("the measurement ended: {}", done.status)),
        });
    }
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let profile = Profile::read("the measurement", &text, None)
        .map_err(|e| Failure::Internal(format!("the worker's profile cannot be read: {e}")))?;
    varuna_api::measured_costs(&profile, &file.job).map_err(Failure::Internal)?;
    if let Some(path) = &arguments.output {
        write(path, &text)?;
    }
    if arguments.json {
        print(&text);
    } else {
        print(&table(&profile));
    }
    Ok(())
}

/// A job's device as the worker's command line has it.
fn word(device: WorkerDevice) -> &'static str {
    match device {
        WorkerDevice::Auto => "auto",
        WorkerDevice::Cpu => "cpu",
        WorkerDevice::Cuda => "cuda",
    }
}

/// The profile as a table. Consecutive segments with equal costs share a row.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn table(profile: &Profile) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut text = format!(
        "{} on {}\n\nsegment           micro-batch  forward, ms  backward, ms  recompute, ms  optimizer, ms  saved, MiB  state, MiB\n",
        profile.model, profile.device
    );
    let mut previous: Option<&[varuna_plan::profile::ProfileRow]> = None;
    for segment in &profile.segments {
        if previous == Some(segment.rows.as_slice()) {
            continue;
        }
        previous = Some(segment.rows.as_slice());
        for (i, row) in segment.rows.iter().enumerate() {
            let first = i == 0;
            text.push_str(&format!(
                "{:<17} {:>11} {:>12} {:>13} {:>14.2} {:>14} {:>11} {:>11}\n",
                if first { segment.name.as_str() } else { "" },
                row.micro_batch_size,
                spread(row.forward_ms, row.forward_spread_ms),
                spread(row.backward_ms, row.backward_spread_ms),
                row.recompute_ms.unwrap_or(0.0),
                if first {
                    format!("{:.2}", segment.optimizer_ms)
                } else {
                    String::new()
                },
                if first {
                    format!("{:.1}", mib(segment.saved_bytes))
                } else {
                    String::new()
                },
                if first {
                    format!("{:.1}", mib(segment.state_bytes.unwrap_or(0)))
                } else {
                    String::new()
                },
            ));
        }
    }
    text.push_str("\nmessage, bytes       ms     MB/s\n");
    for link in &profile.links {
        let rate = link.bytes as f64 / link.ms / 1e3;
        text.push_str(&format!("{:>14} {:>8.3} {rate:>8.0}\n", link.bytes, link.ms));
    }
    if !profile.rings.is_empty() {
        text.push_str("\nring of   bytes          ms\n");
        for ring in &profile.rings {
            text.push_str(&format!(
                "{:>7} {:>9} {:>9.2}\n",
                ring.holders, ring.bytes, ring.ms
            ));
        }
    }
    if let Some(host) = &profile.host {
        let slow: Vec<String> = host.slowdown.iter().map(|s| format!("{s:.3}")).collect();
        text.push_str(&format!(
            "\n{} cores, {} thread(s) a worker; compute takes x {} with 0, 1, ... other workers busy\n",
            host.cores,
            host.threads,
            slow.join(", ")
        ));
    }
    text
}

fn spread(ms: f64, spread: Option<f64>) -> String {
    spread.map_or_else(|| format!("{ms:.2}"), |s| format!("{ms:.2} ~{s:.2}"))
}
