//! Reading a run folder.

use crate::{Contact, EventEntry, Metric, RunStatus, WorkerProcesses};
use serde::de::DeserializeOwned;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use varuna_plan::measured_step::MeasuredStep;
use varuna_plan::{Generation, Plan};

/// Why a file of a run folder could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file system refused.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file holds something else.
    #[error("{}, line {line}: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
}

/// Names and readers of the files of one run folder. Reading takes no lock: documents are replaced as a whole, and the last line of a log
/// counts only once it is complete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunFiles {
    folder: PathBuf,
}

impl RunFiles {
    /// The files of the run folder at `folder`.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> RunFiles {
        RunFiles {
            folder: folder.into(),
        }
    }

    /// The run folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Path of the file that a coordinator locks while it works in the folder. It is the first one of a run folder.
    #[must_use]
    pub fn lock_path(&self) -> PathBuf {
        self.folder.join("lock")
    }

    /// Whether a run has begun in the folder: its first step is that its coordinator writes the record, in this folder or elsewhere, and logs
    /// it.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        let logged = std::fs::metadata(self.events_path());
        self.record_path().exists() || logged.is_ok_and(|log| log.len() > 0)
    }

    /// Whether the folder has files, and none that only a run folder has. Keys and certificates may be put into a folder before its run begins,
    /// and a disk of its own has the folder `lost+found`.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        let own = [
            self.lock_path(),
            self.record_path(),
            self.certificate_path(),
            self.private_key_path(),
        ];
        // A folder that cannot be read says so when it is opened.
        let mut entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let has_files = entries.any(|entry| entry.file_name() != "lost+found");
        has_files && !own.iter().any(|path| path.exists())
    }

    /// Path of the job file.
    #[must_use]
    pub fn job_path(&self) -> PathBuf {
        self.folder.join("job.yaml")
    }

    /// Path of the coordinator's record.
    #[must_use]
    pub fn record_path(&self) -> PathBuf {
        self.folder.join("record.json")
    }

    /// Path of the coordinator's address and token.
    #[must_use]
    pub fn contact_path(&self) -> PathBuf {
        self.folder.join("coordinator.json")
    }

    /// Path of the certificate that the coordinator shows, if it was made for this run.
    #[must_use]
    pub fn certificate_path(&self) -> PathBuf {
        self.folder.join("certificate.pem")
    }

    /// Path of that certificate's private key.
    #[must_use]
    pub fn private_key_path(&self) -> PathBuf {
        self.folder.join("key.pem")
    }

    /// Path of the status document.
    #[must_use]
    pub fn status_path(&self) -> PathBuf {
        self.folder.join("status.json")
    }

    /// Path of the committed steps.
    #[must_use]
    pub fn metrics_path(&self) -> PathBuf {
        self.folder.join("metrics.jsonl")
    }

    /// Path of the event log.
    #[must_use]
    pub fn events_path(&self) -> PathBuf {
        self.folder.join("events.jsonl")
    }

    /// The folder of event files for TensorBoard.
    #[must_use]
    pub fn tensorboard_path(&self) -> PathBuf {
        self.folder.join("tensorboard")
    }

    /// The folder of plans.
    #[must_use]
    pub fn plans_path(&self) -> PathBuf {
        self.folder.join("plans")
    }

    /// Path of one plan.
    #[must_use]
    pub fn plan_path(&self, generation: Generation) -> PathBuf {
        self.plans_path().join(format!("g{:06}.json", generation.0))
    }

    /// Path of the last measured step.
    #[must_use]
    pub fn measured_step_path(&self) -> PathBuf {
        self.folder.join("measured-step.json")
    }

    /// The folder of the workers' logs.
    #[must_use]
    pub fn workers_path(&self) -> PathBuf {
        self.folder.join("workers")
    }

    /// Path of one worker's log.
    #[must_use]
    pub fn worker_log_path(&self, name: &str) -> PathBuf {
        self.workers_path().join(format!("{name}.log"))
    }

    /// Path of the processes of workers that the run's own process has started.
    #[must_use]
    pub fn worker_processes_path(&self) -> PathBuf {
        self.folder.join("processes.json")
    }

    /// The processes of workers that the run's own process has started.
    ///
    /// # Errors
    /// There is no such file, or it holds something else.
    pub fn worker_processes(&self) -> Result<WorkerProcesses, ReadError> {
        document(self.worker_processes_path())
    }

    /// How to reach the coordinator.
    ///
    /// # Errors
    /// There is no such file, or it holds something else.
    pub fn contact(&self) -> Result<Contact, ReadError> {
        document(self.contact_path())
    }

    /// The last published status.
    ///
    /// # Errors
    /// There is no such file, or it holds something else.
    pub fn status(&self) -> Result<RunStatus, ReadError> {
        document(self.status_path())
    }

    /// The last measured step, task by task; none if no plan has run for long enough.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn measured_step(&self) -> Result<Option<MeasuredStep>, ReadError> {
        match document(self.measured_step_path()) {
            Ok(step) => Ok(Some(step)),
            Err(ReadError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The committed steps in order. Steps that were given up and run again are in the file twice; only the last line counts.
    ///
    /// # Errors
    /// There is no such file, or a complete line holds something else.
    pub fn metrics(&self) -> Result<Vec<Metric>, ReadError> {
        let mut history: Vec<Metric> = Vec::new();
        for metric in self.published()? {
            while history.last().is_some_and(|last| last.step >= metric.step) {
                history.pop();
            }
            history.push(metric);
        }
        Ok(history)
    }

    /// All published steps in the order of their publication, including those that were given up.
    ///
    /// # Errors
    /// There is no such file, or a complete line holds something else.
    pub fn published(&self) -> Result<Vec<Metric>, ReadError> {
        lines(self.metrics_path())
    }

    /// The event log.
    ///
    /// # Errors
    /// There is no such file, or a complete line holds something else.
    pub fn events(&self) -> Result<Vec<EventEntry>, ReadError> {
        lines(self.events_path())
    }

    /// All plans that are kept, by generation.
    ///
    /// # Errors
    /// There is no such folder, or a file in it is no plan.
    pub fn plans(&self) -> Result<Vec<Plan>, ReadError> {
        let folder = self.plans_path();
        let io = |source| ReadError::Io {
            path: folder.clone(),
            source,
        };
        let mut plans = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(io)? {
            let path = entry.map_err(io)?.path();
            // Other files are still being written.
            if path.extension().is_some_and(|e| e == "json") {
                match document::<Plan>(path) {
                    // Old plans are removed as new ones are written.
                    Err(ReadError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
                    plan => plans.push(plan?),
                }
            }
        }
        plans.sort_by_key(|plan| plan.generation);
        Ok(plans)
    }
}

fn text(path: &Path) -> Result<String, ReadError> {
    std::fs::read_to_string(path).map_err(|source| ReadError::Io {
        path: path.to_owned(),
        source,
    })
}

fn document<T: DeserializeOwned>(path: PathBuf) -> Result<T, ReadError> {
    serde_json::from_str(&text(&path)?).map_err(|error| ReadError::Malformed {
        path,
        line: error.line(),
        why: error.to_string(),
    })
}

fn lines<T: DeserializeOwned>(path: PathBuf) -> Result<Vec<T>, ReadError> {
    let mut bytes = std::fs::read(&path).map_err(|source| ReadError::Io {
        path: path.clone(),
        source,
    })?;
    // The text after the last line break is still being written, and may end within a character.
    let end = bytes.iter().rposition(|byte| *byte == b'\n');
    bytes.truncate(end.unwrap_or(0));
    let complete = String::from_utf8(bytes).map_err(|error| ReadError::Malformed {
        line: 1 + lines_in(&error.as_bytes()[..error.utf8_error().valid_up_to()]),
        why: error.utf8_error().to_string(),
        path: path.clone(),
    })?;
    let read = |(index, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| ReadError::Malformed {
            path: path.clone(),
            line: index + 1,
            why: format!("{error} in {line}"),
        })
    };
    complete.lines().enumerate().map(read).collect()
}

/// Line breaks in a text.
fn lines_in(text: &[u8]) -> usize {
    text.iter().filter(|byte| **byte == b'\n').count()
}
