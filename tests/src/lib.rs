//! Starts real runs (`varuna run`, `varuna-worker`) in temporary folders, watches what they publish, and hurts them.
//!
//! Everything that a test knows of a run comes from what any user sees: the run folder, `varuna status`, exit codes.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

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

/// The settings of a test job that tests vary.
#[derive(Clone, Debug)]
pub struct JobFile {
    /// Optimizer steps.
    pub steps: u64,
    /// Fewest workers.
    pub min_workers: u32,
    /// Fewest stages in a pipeline.
    pub min_depth: u32,
    /// Width of the model: what makes a step longer.
    pub hidden: u32,
}

impl Default for JobFile {
    fn default() -> Self {
        JobFile {
            steps: 60,
            min_workers: 1,
            min_depth: 1,
            hidden: 64,
        }
    }
}

impl JobFile {
    fn yaml(&self, data: &Path) -> String {
        let JobFile {
            steps,
            min_depth,
            hidden,
            ..
        } = self;
        let min_workers = self.min_workers.max(*min_depth);
        format!(
            "apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata: {{name: elastic}}
spec:
  model: {{layers: 4, hiddenSize: {hidden}, heads: 4, sequenceLength: 64, vocabularySize: 257, tiedHead: true, dropout: 0.1}}
  data: {{path: {data}, validationFraction: 0.1}}
  training:
    globalBatchSize: 8
    microBatchSize: 1
    steps: {steps}
    seed: 11
    optimizer: {{learningRate: 0.002, warmupSteps: 5}}
    evaluation: {{intervalSteps: 20, samples: 8}}
  pipeline: {{schedule: 1f1b, minDepth: {min_depth}}}
  elasticity: {{minWorkers: {min_workers}, maxWorkers: 8}}
",
            data = data.display()
        )
    }
}

/// A run in its own temporary folder; killed with all its workers when dropped.
pub struct Run {
    child: Child,
    folder: PathBuf,
    temp: TempDir,
}

impl Run {
    /// Writes the job and its data, and starts `varuna run` with so many workers.
    ///
    /// # Panics
    /// When something of the test's own set-up fails.
    #[must_use]
    pub fn start(job: &JobFile, workers: usize) -> Run {
        let temp = TempDir::new().expect("a temporary folder");
        let job = prepare(temp.path(), job);
        let folder = temp.path().join("run");
        let child = Command::new(program("varuna"))
            .arg("run")
            .arg(&job)
            .args(["--workers", &workers.to_string()])
            .arg("--run-dir")
            .arg(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(temp.path().join("stderr")).expect("a file for stderr"))
            .spawn()
            .expect("varuna starts");
        Run { child, folder, temp }
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
        let run = self.folder.to_str().expect("temporary folders are UTF-8");
        let arguments = arguments.iter().map(|a| if *a == "RUN" { run } else { a });
        Command::new(program("varuna"))
            .args(arguments)
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
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal.
///
/// # Panics
/// When there is no such process.
pub fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap_or_else(|e| panic!("{signal} to {pid}: {e}"));
}

/// Writes a small dataset of real words and a job file into a folder; returns the job file's path.
///
/// # Panics
/// When the folder cannot be written.
#[must_use]
pub fn prepare(folder: &Path, job: &JobFile) -> PathBuf {
    let text = include_str!("../data/genesis.txt");
    let source = folder.join("text.txt");
    std::fs::write(&source, text).expect("a writable folder");
    let prefix = folder.join("data");
    let built = Command::new(program("varuna"))
        .args(["data", "build", "--tokenizer", "byte", "--output"])
        .arg(&prefix)
        .arg(&source)
        .output()
        .expect("varuna starts");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let path = folder.join("job.yaml");
    std::fs::write(&path, job.yaml(&prefix)).expect("a writable folder");
    path
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

/// Steps must be 1..=n, each once: nothing lost, nothing repeated; and the losses those of the undisturbed run.
///
/// # Panics
/// When they are not.
pub fn assert_same_curve(undisturbed: &[Metric], run: &[Metric], steps: u64) {
    let numbers: Vec<u64> = run.iter().map(|m| m.step).collect();
    let expected: Vec<u64> = (1..=steps).collect();
    assert_eq!(
        numbers, expected,
        "every committed step is published once, in order"
    );
    for (a, b) in undisturbed.iter().zip(run) {
        let off = (a.loss - b.loss).abs() / a.loss.abs();
        assert!(
            off <= 1e-5,
            "step {}: {} undisturbed, {} here ({off:.1e} off)",
            a.step,
            a.loss,
            b.loss
        );
        match (a.eval_loss, b.eval_loss) {
            (None, None) => {}
            (Some(x), Some(y)) => assert!(
                (x - y).abs() <= 1e-5 * x.abs(),
                "evaluation at {}: {x} and {y}",
                a.step
            ),
            other => panic!("evaluation at step {}: {other:?}", a.step),
        }
    }
    assert!(
        run.last().is_some_and(|m| m.loss < 0.8 * run[0].loss),
        "the model learns"
    );
}
