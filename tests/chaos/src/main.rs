//! `varuna-chaos`: runs whole jobs under faults until a time is over, or until a number of processes was killed.

use anyhow::{Context, Result};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::signal::unix::{SignalKind, signal};
use varuna_chaos::campaign::{Campaign, Entry};
use varuna_chaos::disk::{FsyncSwitch, SmallDisk};
use varuna_chaos::job::dataset;
use varuna_chaos::judge::judge;
use varuna_chaos::run::{Request, run, undisturbed};
use varuna_chaos::schedule::Settings;
use varuna_run_folder::Metric;

/// Train small jobs with real processes that are killed, paused and cut off, and check the results.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Seed of the first run; each further run has the next seed [default: the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// Time in seconds after which no further run begins
    #[arg(long, default_value_t = 600)]
    duration: u64,
    /// Number of killed processes in the whole campaign after which no further run begins
    #[arg(long)]
    kills: Option<u64>,
    /// Maximum number of runs
    #[arg(long)]
    runs: Option<u64>,
    /// Repeat seeds that the campaign already has
    #[arg(long)]
    again: bool,
    /// Number of steps of each job
    #[arg(long, default_value_t = 600)]
    steps: u64,
    /// Mean time between two faults, in milliseconds
    #[arg(long, default_value_t = 1_100)]
    every_ms: u64,
    /// Maximum time in which faults begin in one run, in seconds
    #[arg(long, default_value_t = 300)]
    run_seconds: u64,
    /// Folder of the campaign; a campaign in this folder is continued
    #[arg(long, default_value = "runs/chaos")]
    folder: PathBuf,
    /// Folder with `varuna` and `varuna-worker` [default: the folder of this program]
    #[arg(long)]
    programs: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start")?
        // This runs on the main thread and not in a task, because the processes end with the thread that started them.
        .block_on(async {
            let mut interrupt = signal(SignalKind::interrupt())?;
            let mut terminate = signal(SignalKind::terminate())?;
            tokio::select! {
                code = campaign(&arguments) => code,
                _ = interrupt.recv() => Ok(ExitCode::from(130)),
                _ = terminate.recv() => Ok(ExitCode::from(143)),
            }
        })
}

async fn campaign(arguments: &Arguments) -> Result<ExitCode> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let programs = arguments
        .programs
        .clone()
        .or_else(|| own.parent().map(Path::to_owned));
    let programs = programs.context("cannot find the programs")?;
    std::fs::create_dir_all(&arguments.folder)
        .with_context(|| format!("cannot make {}", arguments.folder.display()))?;
    let folder = arguments.folder.canonicalize()?;
    let settings = Settings {
        length_ms: arguments.run_seconds * 1_000,
        every_ms: arguments.every_ms,
        disk: SmallDisk::possible(),
        fsync: FsyncSwitch::build(&folder)?.is_some(),
    };
    if !settings.disk {
        println!("left out: a full disk (mounting one needs root)");
    }
    if !settings.fsync {
        println!("left out: failing fsync (building it needs a C compiler)");
    }
    let quiet = Request {
        data: dataset(&programs, &folder)?,
        programs,
        folder: folder.join("undisturbed"),
        steps: arguments.steps,
        faults: None,
    };
    let losses = undisturbed(&quiet, &folder).await?;
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let first = arguments.seed.unwrap_or(clock.as_secs());
    let mut campaign = Campaign::open(folder.join("runs.jsonl"))?;
    let end = Instant::now() + Duration::from_secs(arguments.duration);
    let mut left = arguments.runs.unwrap_or(u64::MAX);
    let mut sound = true;
    let mut seed = first;
    while left > 0 && Instant::now() < end && arguments.kills.is_none_or(|k| campaign.kills() < k) {
        if arguments.again || !campaign.has(seed) {
            let request = Request {
                folder: folder.join(format!("run-{seed}")),
                faults: Some((seed, settings)),
                ..quiet.clone()
            };
            sound &= one(&request, seed, &losses, &mut campaign, arguments).await?;
            left -= 1;
        }
        seed += 1;
    }
    println!("{campaign}");
    Ok(if sound {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Carries out one run and judges it. Returns whether it was correct.
async fn one(
    request: &Request,
    seed: u64,
    losses: &[Metric],
    campaign: &mut Campaign,
    arguments: &Arguments,
) -> Result<bool> {
    let outcome = run(request).await.with_context(|| format!("seed {seed}"))?;
    let entry = Entry::new(seed, &outcome, &judge(&outcome.evidence, losses));
    println!("{entry}");
    let sound = entry.problems.is_empty();
    for problem in &entry.problems {
        println!("  {problem}");
    }
    if sound {
        std::fs::remove_dir_all(&request.folder).context("cannot remove a run")?;
    } else {
        println!("  kept: {}", request.folder.display());
        let (steps, every, seconds) = (arguments.steps, arguments.every_ms, arguments.run_seconds);
        println!(
            "  again: make chaos SEED={seed} RUNS=1 ARGUMENTS=\"--again --steps {steps} --every-ms {every} --run-seconds {seconds}\""
        );
    }
    campaign.add(entry)?;
    Ok(sound)
}
