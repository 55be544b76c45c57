//! `varuna profile`: measures a job's model on this machine, by way of the worker program.

use crate::children::worker_program;
use crate::failure::Failure;
use crate::job;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use varuna_plan::profile::Profile;

/// Measures what a job's model costs on this machine: compute by segment and micro-batch size, memory, links and rings
/// between worker processes.
///
/// Nothing else should run meanwhile. `varuna plan --profile F` and `varuna run --profile F` take what it writes.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The job file; its data is not read.
    job: PathBuf,
    /// Writes the profile into this file.
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// Samples in a micro-batch, ascending.
    #[arg(long, default_value = "1,2,4,8")]
    micro_batch_sizes: String,
    /// Worker processes between which links and rings are measured, 1 to 4.
    #[arg(long, short = 'n', default_value_t = 2)]
    workers: usize,
    /// Steps of each micro-batch size that count.
    #[arg(long, default_value_t = 4)]
    repeats: u32,
    /// Prints the profile as JSON in place of a table.
    #[arg(long)]
    json: bool,
    /// The worker program, where it does not lie beside this one.
    #[arg(long, env = "VARUNA_WORKER")]
    worker_binary: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let file = job::read(&arguments.job)?;
    let program = worker_program(arguments.worker_binary.as_deref())?;
    let own =
        std::env::current_exe().map_err(|e| Failure::Internal(format!("cannot find this program: {e}")))?;
    let done = Command::new(own)
        .args(["with-parent", &std::process::id().to_string()])
        .arg(program)
        .args(["profile", "--job"])
        .arg(&arguments.job)
        .args(["--micro-batch-sizes", &arguments.micro_batch_sizes])
        .args(["--workers", &arguments.workers.to_string()])
        .args(["--repeats", &arguments.repeats.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| Failure::Internal(format!("cannot start the measurement: {e}")))?;
    if !done.status.success() {
        return Err(match done.status.code() {
            // It has said why.
            Some(1 | 2) => Failure::Input("the measurement failed, see above".into()),
            _ => Failure::Internal(format!("the measurement ended: {}", done.status)),
        });
    }
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let profile = Profile::read("the measurement", &text, None)
        .map_err(|e| Failure::Internal(format!("the worker's profile cannot be read: {e}")))?;
    varuna_coordinator::measured_costs(&profile, &file.job).map_err(Failure::Internal)?;
    if let Some(path) = &arguments.output {
        write(path, &text)?;
    }
    if arguments.json {
        print!("{text}");
    } else {
        print!("{}", table(&profile));
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|e| Failure::Input(format!("cannot write the profile {}: {e}", path.display())))
}

/// What people see of a profile. Neighbours that cost the same stand in one line.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn table(profile: &Profile) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut text = format!(
        "{} on {}\n\nsegment           micro-batch  forward, ms  backward, ms  recompute, ms  optimizer, ms  saved, MiB  state, MiB\n",
        profile.model, profile.device
    );
    let mut before: Option<&[varuna_plan::profile::ProfileRow]> = None;
    for segment in &profile.segments {
        if before == Some(segment.rows.as_slice()) {
            continue;
        }
        before = Some(segment.rows.as_slice());
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
            "\n{} cores, {} thread(s) a worker; compute beside 0, 1, ... others takes x {}\n",
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
