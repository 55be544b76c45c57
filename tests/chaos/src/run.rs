//! Carries out one run: applies a timeline of faults until the job has ended.

use crate::disk::{FsyncSwitch, SmallDisk};
use crate::evidence;
use crate::fault::Planned;
use crate::job::JobFile;
use crate::judge::{Evidence, Problem};
use crate::processes::Paths;
use crate::schedule::{Settings, timeline};
use crate::world::{Parts, World};
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use varuna_run_folder::{Metric, RunFiles, now_ms};

/// Interval at which processes and files are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum time without a published step when there are no faults: a recovery waits half a minute for answers, and a launch a minute.
const QUIET_MAX: Duration = Duration::from_secs(150);
/// Time after the end of the job in which its workers are released.
const RELEASE: Duration = Duration::from_secs(10);
/// Steps between two checkpoints.
const CHECKPOINT_EVERY: u64 = 20;

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Request {
    /// Folder of the programs.
    pub programs: PathBuf,
    /// The dataset.
    pub data: PathBuf,
    /// Folder for the run's files. It is emptied first.
    pub folder: PathBuf,
    /// Steps of the job.
    pub steps: u64,
    /// Its seed and the settings of its faults. None for the undisturbed run, which has one worker.
    pub faults: Option<(u64, Settings)>,
}

/// A fault that was injected: a line of `faults.jsonl`.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Injected<'a> {
    /// Milliseconds since 1970.
    time_ms: u64,
    workers: Vec<String>,
    #[serde(flatten)]
    planned: &'a Planned,
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// All evidence for the judge, except the undisturbed losses.
    pub evidence: Evidence,
    /// Number of processes killed with SIGKILL: workers, coordinators.
    pub kills: [u64; 2],
    /// Number of faults, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Time from the start to the end of the job, in seconds.
    pub seconds: f64,
}

/// Carries out a run.
///
/// # Errors
/// The set-up fails. Errors of the run itself are evidence.
pub async fn run(request: &Request) -> Result<Outcome> {
    let folder = &request.folder;
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let (run, logs, store) = (
        folder.join("run"),
        folder.join("logs"),
        folder.join("checkpoints"),
    );
    for path in [&run, &logs, &store] {
        std::fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
    }
    let store = store.canonicalize()?;
    let (seed, settings) = request.faults.unzip();
    let depth = seed.map_or(1, depth);
    let job = JobFile {
        steps: request.steps,
        min_depth: depth,
        data: &request.data,
        checkpoints: seed.map(|_| (store.as_path(), CHECKPOINT_EVERY)),
    };
    let paths = Paths {
        programs: request.programs.clone(),
        job: folder.join("job.yaml"),
        run,
        logs,
    };
    std::fs::write(&paths.job, job.yaml()).context("cannot write the job file")?;
    let disk = settings
        .filter(|s| s.disk)
        .map(|_| SmallDisk::mount(&paths.run))
        .transpose()?;
    let fsync = settings
        .filter(|s| s.fsync)
        .map(|_| FsyncSwitch::build(folder))
        .transpose()?;
    let start = Instant::now();
    let parts = Parts {
        paths: paths.clone(),
        store,
        disk,
        fsync: fsync.flatten(),
        workers: seed.map_or(1, |_| crate::schedule::WORKERS as usize),
    };
    let mut world = World::start(parts).await?;
    let planned = request
        .faults
        .map_or(vec![], |(seed, settings)| timeline(seed, settings));
    let faults = carry_out(&mut world, &planned, folder, &paths).await?;
    let seconds = start.elapsed().as_secs_f64();
    release(&mut world).await?;
    let mut evidence = evidence::read(&paths, &world)?;
    let kept = folder.join("kept");
    copy(&paths.run, &kept)?;
    if request.faults.is_some() && world.exit == Some(0) {
        evidence.problems.extend(verify(request, folder));
    }
    Ok(Outcome {
        evidence,
        kills: world.kills,
        faults,
        seconds,
    })
}

/// The minimum number of stages. In deeper pipelines each segment has fewer holders.
fn depth(seed: u64) -> u32 {
    match seed % 4 {
        0 => 1,
        1 | 2 => 2,
        _ => 3,
    }
}

/// Begins and ends faults at their times, until the job has ended or makes no progress.
async fn carry_out(
    world: &mut World,
    planned: &[Planned],
    folder: &Path,
    paths: &Paths,
) -> Result<BTreeMap<&'static str, u64>> {
    let mut log = std::fs::File::create(folder.join("faults.jsonl")).context("cannot write faults.jsonl")?;
    let mut ends: Vec<(u64, usize)> = planned.iter().enumerate().map(|(i, p)| (p.end_ms(), i)).collect();
    ends.sort_unstable();
    let (mut begun, mut ended) = (0, 0);
    let mut counts = BTreeMap::new();
    let metrics = RunFiles::new(&paths.run).metrics_path();
    let size = || std::fs::metadata(&metrics).map_or(0, |m| m.len());
    let (mut last_size, mut grown) = (0, Instant::now());
    let start = Instant::now();
    while world.exit.is_none() {
        let now = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        while ended < ends.len() && ends[ended].0 <= now && ends[ended].1 < begun {
            world.end(ends[ended].1)?;
            ended += 1;
        }
        while begun < planned.len() && planned[begun].at_ms <= now {
            let fault = &planned[begun];
            let workers = world.begin(begun, fault)?;
            *counts.entry(fault.fault.name()).or_default() += 1;
            let line = Injected {
                time_ms: now_ms(),
                workers: workers.iter().map(|n| format!("w{n}")).collect(),
                planned: fault,
            };
            writeln!(log, "{}", serde_json::to_string(&line)?).context("cannot write faults.jsonl")?;
            begun += 1;
        }
        world.supervise().await?;
        let size = size();
        if size != last_size || ended < ends.len() {
            (last_size, grown) = (size, Instant::now());
        }
        if grown.elapsed() > QUIET_MAX {
            world.problems.push(Problem::Stuck {
                seconds: QUIET_MAX.as_secs(),
            });
            break;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    world.end_all()?;
    Ok(counts)
}

/// Gives the workers time to end.
async fn release(world: &mut World) -> Result<()> {
    let end = Instant::now() + RELEASE;
    while world.exit.is_some() && world.alive() > 0 && Instant::now() < end {
        world.supervise().await?;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Checks that every checkpoint that claims to be complete is valid.
fn verify(request: &Request, folder: &Path) -> Option<Problem> {
    let output = Command::new(request.programs.join("varuna"))
        .args(["checkpoint", "verify"])
        .arg(folder.join("checkpoints").join("chaos"))
        .output();
    match output {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(Problem::Checkpoints {
            why: String::from_utf8_lossy(&output.stdout).trim().to_owned()
                + String::from_utf8_lossy(&output.stderr).trim(),
        }),
        Err(error) => Some(Problem::Checkpoints {
            why: error.to_string(),
        }),
    }
}

/// Copies a run folder from its own disk.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(to)
        .status()
        .context("cannot start cp")?;
    anyhow::ensure!(status.success(), "cannot copy {}", from.display());
    Ok(())
}

/// The losses of an undisturbed run with this many steps. They are computed once and kept in a folder.
///
/// # Errors
/// The run fails, or the folder cannot be written.
pub async fn undisturbed(request: &Request, keep: &Path) -> Result<Vec<Metric>> {
    let kept = keep.join(format!("undisturbed-{}.jsonl", request.steps));
    if let Ok(text) = std::fs::read_to_string(&kept) {
        let metrics: Result<Vec<Metric>, _> = text.lines().map(serde_json::from_str).collect();
        return metrics.with_context(|| format!("{} is damaged: remove it", kept.display()));
    }
    let outcome = run(request).await?;
    let metrics = outcome.evidence.published;
    anyhow::ensure!(
        outcome.evidence.exit == Some(0) && metrics.len() as u64 == request.steps,
        "the undisturbed run has failed: see {}",
        request.folder.display()
    );
    let lines: Result<Vec<String>, _> = metrics.iter().map(serde_json::to_string).collect();
    std::fs::write(&kept, lines?.join("\n")).with_context(|| format!("cannot write {}", kept.display()))?;
    std::fs::remove_dir_all(&request.folder).context("cannot remove the undisturbed run")?;
    Ok(metrics)
}
