//! Starts real runs (`varuna run`, `varuna-worker`) in temporary folders, watches what they publish, and hurts them.
//!
//! Everything that a test knows of a run comes from what any user sees: the run folder, `varuna status`, exit codes.

mod curve;
mod job;
mod launch;
mod slowed;

pub use curve::{assert_same_curve, last_of_each};
pub use job::{JobFile, prepare};
pub use slowed::Slowed;

use launch::coordinator;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use varuna_api::Job;
use varuna_plan::Plan;

/// No wait of a test lasts longer; a run of the test job takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often files are looked at while waiting for a condition.
const GLANCE: Duration = Duration::from_millis(5);

/// One line of `metrics.jsonl`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    /// Steps done after this one.
    pub step: u64,
    /// Mean training loss of the step.
    pub loss: f64,
    /// Loss on the held-out split, where this step began with an evaluation.
    pub eval_loss: Option<f64>,
    /// The generation that ran it.
    pub generation: u64,
}

/// A worker as `status.json` shows it.
#[derive(Clone, Debug, Deserialize)]
pub struct WorkerView {
    /// Its identity.
    pub id: String,
    /// Given at its start.
    pub name: String,
    /// Its process on this host.
    pub pid: i32,
    /// Where it stands, e.g. `Running`.
    pub phase: String,
    /// Its measured speed; 1 = as the others.
    pub speed: f64,
}

/// `status.json`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusView {
    /// The plan in force.
    pub generation: u64,
    /// Steps done.
    pub step: u64,
    /// All attached workers.
    pub workers: Vec<WorkerView>,
}

/// Where the programs under test lie: beside the test binary's folder.
///
/// # Panics
/// When they have not been built.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test
        .parent()
        .and_then(Path::parent)
        .expect("tests lie in target/<profile>/deps");
    let path = folder.join(name);
    assert!(
        path.exists(),
        "{} is missing: run `cargo build --workspace` first",
        path.display()
    );
    path
}

/// A run in its own temporary folder; killed with all its workers when dropped.
pub struct Run {
    child: Child,
    /// Workers that were started by hand.
    workers: Vec<Child>,
    folder: PathBuf,
    temp: TempDir,
}

impl Run {
    fn worker_log(&self, number: usize) -> PathBuf {
        self.folder.join(format!("workers/w{number}.log"))
    }

    /// Where the coordinator listens.
    fn address(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.folder.join("coordinator.json")).ok()?;
        let contact: serde_json::Value = serde_json::from_str(&text).ok()?;
        contact["address"].as_str().map(str::to_owned)
    }

    /// The last step that a worker started by hand has logged; 0 = none.
    #[must_use]
    pub fn step_of_worker(&self, number: usize) -> u64 {
        let log = std::fs::read_to_string(self.worker_log(number)).unwrap_or_default();
        let mut steps = log
            .lines()
            .rev()
            .filter_map(|l| l.split("committed step=").nth(1));
        let last = steps.next();
        let digits = last.and_then(|l| l.split(' ').next());
        digits.and_then(|d| d.parse().ok()).unwrap_or(0)
    }

    /// Kills the coordinator that stands alone with -9.
    ///
    /// # Panics
    /// When it has ended before.
    pub fn kill_coordinator(&mut self) {
        self.child.kill().expect("the coordinator runs");
        self.child.wait().expect("the child is ours");
    }

    /// Starts a coordinator on the run folder of the one that was killed, at the same address.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn restart_coordinator(&mut self) {
        let address = self.address().expect("the first coordinator wrote its address");
        self.child = coordinator(self.temp.path(), &self.folder, &address);
    }

    /// The run folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Process id of `varuna run`.
    ///
    /// # Panics
    /// Never on Linux, where process ids are small.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id fits")
    }

    /// Committed steps so far, in order of publication.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        lines(&self.folder.join("metrics.jsonl"))
    }

    /// The event log so far.
    #[must_use]
    pub fn events(&self) -> Vec<serde_json::Value> {
        lines(&self.folder.join("events.jsonl"))
    }

    /// All plans so far, in order of their generations.
    ///
    /// # Panics
    /// When one cannot be read.
    #[must_use]
    pub fn plans(&self) -> Vec<Plan> {
        let files = std::fs::read_dir(self.folder.join("plans")).into_iter().flatten();
        let paths = files.flatten().map(|f| f.path());
        let read = |path: PathBuf| {
            let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        let whole = paths.filter(|path| path.extension().is_some_and(|e| e == "json"));
        let mut plans: Vec<Plan> = whole.map(read).collect();
        plans.sort_by_key(|p| p.generation);
        plans
    }

    /// The job as the run took it.
    ///
    /// # Panics
    /// When there is none yet.
    #[must_use]
    pub fn job(&self) -> Job {
        let text = std::fs::read_to_string(self.folder.join("job.yaml")).expect("a run keeps its job file");
        varuna_api::parse_job(&text).expect("the run took it")
    }

    /// The published status, once there is one.
    #[must_use]
    pub fn status(&self) -> Option<StatusView> {
        serde_json::from_str(&std::fs::read_to_string(self.folder.join("status.json")).ok()?).ok()
    }

    /// Waits until a condition holds; it is looked at every few milliseconds.
    ///
    /// # Panics
    /// When it does not hold in time, or the run ends before.
    pub fn wait_for<T>(&mut self, what: &str, mut condition: impl FnMut(&Run) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(value) = condition(self) {
                return value;
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the run ended ({status}) before: {what}\n{}", self.story());
            }
            assert!(
                start.elapsed() < PATIENCE,
                "not in time: {what}\n{}",
                self.story()
            );
            std::thread::sleep(GLANCE);
        }
    }

    /// Waits until so many steps are committed.
    pub fn wait_for_step(&mut self, step: u64) {
        self.wait_for(&format!("step {step}"), |run| {
            run.metrics().last().is_some_and(|m| m.step >= step).then_some(())
        });
    }

    /// Waits until exactly so many workers are running in one generation, and returns them in order of name.
    pub fn wait_for_workers(&mut self, count: usize) -> Vec<WorkerView> {
        self.wait_for(&format!("{count} running workers"), |run| {
            let mut workers: Vec<WorkerView> = run
                .status()?
                .workers
                .into_iter()
                .filter(|w| w.phase == "Running")
                .collect();
            workers.sort_by(|a, b| a.name.cmp(&b.name));
            (workers.len() == count).then_some(workers)
        })
    }

    /// Waits for the end and returns the exit code.
    ///
    /// # Panics
    /// When the run does not end in time or is killed by a signal.
    pub fn exit_code(&mut self) -> i32 {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the child is ours") {
                return status
                    .code()
                    .unwrap_or_else(|| panic!("{status}\n{}", self.story()));
            }
            assert!(
                start.elapsed() < PATIENCE,
                "the run does not end\n{}",
                self.story()
            );
            std::thread::sleep(GLANCE);
        }
    }

    /// `varuna` with these arguments and the run folder at the place of `RUN`.
    ///
    /// # Panics
    /// When the program does not start.
    #[must_use]
    pub fn varuna(&self, arguments: &[&str]) -> Output {
        self.varuna_with(arguments, &[])
    }

    /// As [`Run::varuna`], with environment variables.
    ///
    /// # Panics
    /// As there.
    #[must_use]
    pub fn varuna_with(&self, arguments: &[&str], settings: &[(String, String)]) -> Output {
        let run = self.folder.to_str().expect("temporary folders are UTF-8");
        let arguments = arguments.iter().map(|a| if *a == "RUN" { run } else { a });
        Command::new(program("varuna"))
            .args(arguments)
            .envs(settings.iter().cloned())
            .output()
            .expect("varuna starts")
    }

    /// What a person needs to see of a run that failed.
    #[must_use]
    pub fn story(&self) -> String {
        let mut text = std::fs::read_to_string(self.temp.path().join("stderr")).unwrap_or_default();
        for event in self.events() {
            text.push_str(&format!("{event}\n"));
        }
        let logs = std::fs::read_dir(self.folder.join("workers"))
            .into_iter()
            .flatten()
            .flatten();
        for log in logs {
            let all = std::fs::read_to_string(log.path()).unwrap_or_default();
            let tail: Vec<&str> = all.lines().rev().take(12).collect();
            text.push_str(&format!("-- {}\n", log.path().display()));
            text.extend(tail.iter().rev().map(|l| format!("{l}\n")));
        }
        text
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Stopped workers do not see their parent's end before they are woken.
        for worker in self.status().into_iter().flat_map(|s| s.workers) {
            let _ = kill(Pid::from_raw(worker.pid), Signal::SIGKILL);
        }
        for child in self.workers.iter_mut().chain([&mut self.child]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The last event of a kind.
#[must_use]
pub fn event(run: &Run, kind: &str) -> Option<serde_json::Value> {
    run.events().into_iter().rev().find(|e| e["event"] == kind)
}

/// Sends a signal.
///
/// # Panics
/// When there is no such process.
pub fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap_or_else(|e| panic!("{signal} to {pid}: {e}"));
}

fn lines<T: for<'de> Deserialize<'de>>(path: &Path) -> Vec<T> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // The last line may be half written.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}")))
        .collect()
}
