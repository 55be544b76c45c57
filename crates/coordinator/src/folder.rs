//! The run folder: what people and tools read of a run, and what a restarted coordinator starts from.
//!
//! `record.json` (the protocol's record), `plans/` (every plan), `events.jsonl` (the diary), `metrics.jsonl` (one line for each
//! committed step), `status.json` (the present), `job.yaml`, `coordinator.json` (where the coordinator listens), `workers/` (logs).
//! Trouble with diary and metrics is said once and never stops training.

use crate::store::{Durability, PRIVATE, PUBLIC, replace};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use varuna_plan::{Generation, Plan, StateId, Step};

/// Why a run folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process works in it.
    #[error("the run folder {} is held by another coordinator that is still running", .0.display())]
    Held(PathBuf),
    /// It belongs to another job.
    #[error("the run folder {} holds another job's run; choose another --run-dir", .0.display())]
    OtherJob(PathBuf),
    /// The file system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

/// One line of `metrics.jsonl`. Times in milliseconds, losses in nats per token.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    /// Steps done.
    pub step: Step,
    /// Mean training loss of the step; `null` in the file where it is not a finite number.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f64,
    /// Mean loss on the held-out split, where this step began with an evaluation.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub eval_loss: Option<f64>,
    /// L2 norm of the gradient before clipping; `null` in the file where it is not a finite number.
    #[serde(deserialize_with = "null_is_nan")]
    pub gradient_norm: f64,
    /// The optimizer skipped this step.
    pub overflow: bool,
    /// The generation that ran it.
    pub generation: Generation,
    /// Workers of the plan in force when it was published.
    pub workers: usize,
    /// That plan's short form.
    pub plan: String,
    /// Tokens of the step.
    pub tokens: u64,
    /// Since the previous step was published.
    pub step_ms: f64,
    /// When it was published, since 1970.
    pub time_ms: u64,
    /// Identity of the state reached.
    pub state: StateId,
}

/// JSON has no word for a number that is not finite, and plotting tools want none: a diverged step's loss is `null`.
fn null_is_nan<'de, D: serde::Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or(f64::NAN))
}

/// `coordinator.json`: how to reach the coordinator of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Contact {
    /// Where it listens.
    pub address: String,
    /// The run's token.
    pub token: String,
    /// Its process.
    pub pid: u32,
}

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// An open, locked run folder.
pub struct RunFolder {
    path: PathBuf,
    /// Held as long as this lives; the system frees it with the process.
    _lock: File,
    events: File,
    metrics: File,
    last: Option<Metric>,
    complained: bool,
}

impl RunFolder {
    /// Opens or makes the folder for a job, and locks it.
    ///
    /// # Errors
    /// It is held, belongs to another job, or cannot be written; nothing in it is changed then.
    pub fn open(path: &Path, job: &str) -> Result<RunFolder, FolderError> {
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |source| FolderError::Io { action, path, source }
        };
        for folder in [path.to_owned(), path.join("plans"), path.join("workers")] {
            std::fs::create_dir_all(&folder).map_err(io("make", &folder))?;
        }
        let lock_path = path.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path);
        let lock = lock.map_err(io("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(FolderError::Held(path.to_owned())),
            Err(std::fs::TryLockError::Error(source)) => return Err(io("lock", &lock_path)(source)),
        }
        let job_path = path.join("job.yaml");
        match std::fs::read_to_string(&job_path) {
            Ok(text) if text != job => return Err(FolderError::OtherJob(path.to_owned())),
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                replace(&job_path, job, PUBLIC, Durability::Synced).map_err(io("write", &job_path))?;
            }
            Err(source) => return Err(io("read", &job_path)(source)),
        }
        let append = |name: &str| {
            let path = path.join(name);
            open_log(&path).map_err(io("open", &path))
        };
        let last = last_metric(&path.join("metrics.jsonl"));
        let (events, metrics) = (append("events.jsonl")?, append("metrics.jsonl")?);
        Ok(RunFolder {
            path: path.to_owned(),
            _lock: lock,
            events,
            metrics,
            last,
            complained: false,
        })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The last step that was published here.
    #[must_use]
    pub fn last(&self) -> Option<&Metric> {
        self.last.as_ref()
    }

    /// Says where the coordinator listens; readable by its owner alone, since it holds the token.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn write_contact(&self, contact: &Contact) -> Result<(), FolderError> {
        let path = self.path.join("coordinator.json");
        let io = |source| FolderError::Io {
            action: "write",
            path: path.clone(),
            source,
        };
        let text = serde_json::to_string_pretty(contact).map_err(|e| io(e.into()))?;
        replace(&path, &text, PRIVATE, Durability::Cached).map_err(io)
    }

    /// Adds an entry to the diary.
    pub fn event(&mut self, mut entry: Value) {
        if let Some(fields) = entry.as_object_mut() {
            fields.insert("timeMs".into(), now_ms().into());
        }
        let result = self.events.write_all(format!("{entry}\n").as_bytes());
        self.complain("events.jsonl", result);
    }

    /// Publishes a committed step, unless it was published before.
    pub fn metric(&mut self, metric: Metric) {
        if self.last.as_ref().is_some_and(|last| metric.step <= last.step) {
            return;
        }
        let result = serde_json::to_string(&metric)
            .map_err(std::io::Error::from)
            .and_then(|line| self.metrics.write_all(format!("{line}\n").as_bytes()));
        self.complain("metrics.jsonl", result);
        self.last = Some(metric);
    }

    /// Keeps a plan for people; the record is what counts.
    pub fn plan(&mut self, plan: &Plan) {
        let path = self
            .path
            .join("plans")
            .join(format!("g{:06}.json", plan.generation.0));
        if path.exists() {
            return;
        }
        // The secret opens connections of the generation: it does not belong into a file that people pass on.
        let public = Plan {
            secret: String::new(),
            ..plan.clone()
        };
        let result = serde_json::to_string_pretty(&public)
            .map_err(std::io::Error::from)
            .and_then(|text| replace(&path, &text, PUBLIC, Durability::Cached));
        self.complain("plans/", result);
    }

    /// Replaces `status.json`.
    pub fn status(&mut self, status: &Value) {
        let result = replace(
            &self.path.join("status.json"),
            &status.to_string(),
            PUBLIC,
            Durability::Cached,
        );
        self.complain("status.json", result);
    }

    fn complain(&mut self, what: &str, result: std::io::Result<()>) {
        match result {
            Err(error) if !self.complained => {
                self.complained = true;
                tracing::error!(%error, what, folder = %self.path.display(), "cannot write to the run folder; training goes on");
            }
            Err(_) => {}
            Ok(()) => self.complained = false,
        }
    }
}

/// Opens a file of lines for appending. A coordinator that was killed may have left half a line, which would spoil the next.
fn open_log(path: &Path) -> std::io::Result<File> {
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .append(true)
        .open(path)?;
    let mut at = file.metadata()?.len();
    let mut byte = [0];
    while at > 0 {
        file.seek(SeekFrom::Start(at - 1))?;
        file.read_exact(&mut byte)?;
        if byte == *b"\n" {
            break;
        }
        at -= 1;
    }
    file.set_len(at)?;
    Ok(file)
}

/// The last whole line; a coordinator that was killed may have left half of one.
fn last_metric(path: &Path) -> Option<Metric> {
    let lines = BufReader::new(File::open(path).ok()?).lines();
    lines
        .map_while(Result::ok)
        .filter_map(|line| serde_json::from_str(&line).ok())
        .last()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use varuna_plan::state::Chain;

    pub(crate) fn metric(step: u64) -> Metric {
        Metric {
            step: Step(step),
            loss: 1.5,
            eval_loss: None,
            gradient_norm: 1.0,
            overflow: false,
            generation: Generation(1),
            workers: 2,
            plan: "P2xD1".into(),
            tokens: 64,
            step_ms: 10.0,
            time_ms: 1,
            state: StateId {
                run_gen: Generation(1),
                step: Step(step),
                chain: Chain(step),
            },
        }
    }

    #[test]
    fn a_folder_belongs_to_one_coordinator_and_one_job() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("run");
        let held = RunFolder::open(&path, "job a").unwrap();
        assert!(matches!(
            RunFolder::open(&path, "job a"),
            Err(FolderError::Held(_))
        ));
        drop(held);
        assert!(matches!(
            RunFolder::open(&path, "job b"),
            Err(FolderError::OtherJob(_))
        ));
        assert!(RunFolder::open(&path, "job a").is_ok());
    }

    #[test]
    fn a_step_is_published_once_also_by_a_successor_after_half_a_line() {
        let temp = tempfile::tempdir().unwrap();
        let mut first = RunFolder::open(temp.path(), "job").unwrap();
        for step in [1, 2, 2, 1, 3] {
            first.metric(metric(step));
        }
        drop(first);
        let file = temp.path().join("metrics.jsonl");
        let whole = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{whole}{{\"step\":4,\"lo")).unwrap();
        let mut second = RunFolder::open(temp.path(), "job").unwrap();
        assert_eq!(second.last().map(|m| m.step), Some(Step(3)));
        second.metric(metric(3));
        second.metric(metric(4));
        let lines = std::fs::read_to_string(&file).unwrap();
        let steps: Vec<u64> = lines
            .lines()
            .map(|l| serde_json::from_str::<Metric>(l).unwrap().step.0)
            .collect();
        assert_eq!(steps, [1, 2, 3, 4], "{lines}");
    }

    #[test]
    fn a_diverged_step_is_published_and_remembered_like_any_other() {
        let temp = tempfile::tempdir().unwrap();
        let mut first = RunFolder::open(temp.path(), "job").unwrap();
        first.metric(metric(1));
        first.metric(Metric {
            loss: f64::NAN,
            gradient_norm: f64::INFINITY,
            overflow: true,
            ..metric(2)
        });
        drop(first);
        let second = RunFolder::open(temp.path(), "job").unwrap();
        assert_eq!(second.last().map(|m| m.state), Some(metric(2).state));
    }

    #[test]
    fn secrets_are_kept_out_of_what_others_may_read() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(temp.path(), "job").unwrap();
        folder
            .write_contact(&Contact {
                address: "a:1".into(),
                token: "t".into(),
                pid: 1,
            })
            .unwrap();
        let mode = std::fs::metadata(temp.path().join("coordinator.json"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
