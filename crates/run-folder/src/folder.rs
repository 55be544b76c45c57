//! Writing a run folder.

use crate::{
    Access, Contact, Durability, EventEntry, LoggedEvent, Metric, RunFiles, RunStatus,
    event_files::EventFiles, log::Log, now_ms, replace_file,
};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use varuna_plan::measured_step::MeasuredStep;
use varuna_plan::{Generation, Plan, Step, WorkerId};
use varuna_protocol::Event;

/// Number of plans that are kept. A plan takes some hundred bytes for each worker, and a run with a thousand workers, of which one comes or goes every few
/// minutes, would fill a disk with gigabytes of them within weeks.
const PLANS_KEPT: usize = 1_000;

/// Maximum number of workers whose names are read from the event log. Names are needed of those of the plan in force; a run may have many more
/// over the weeks.
const NAMES_MAX: usize = 8_192;

/// Why a run folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process works in it.
    #[error("the run folder {} is held by another coordinator that is still running", .0.display())]
    Held(PathBuf),
    /// The folder belongs to another job.
    #[error("the run folder {} holds another job's run; choose another --run-dir", .0.display())]
    OtherJob(PathBuf),
    /// The file system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

/// A locked run folder to which nothing was written yet. What may refuse a run is looked at meanwhile, so that a run that never begins does not
/// occupy the folder.
pub struct LockedFolder {
    files: RunFiles,
    /// Held as long as this value lives, see [`RunFolder`].
    lock: File,
    job: String,
    /// Whether the folder has the job file already.
    has_job: bool,
    /// Whether the folder was made for this.
    is_new: bool,
}

impl LockedFolder {
    /// Makes the folder if there is none, and locks it for a job.
    ///
    /// # Errors
    /// The folder is locked, belongs to another job's run that has begun, or cannot be written.
    pub fn lock(folder: &Path, job: &str) -> Result<LockedFolder, FolderError> {
        let files = RunFiles::new(folder);
        let is_new = !folder.exists();
        std::fs::create_dir_all(folder).map_err(io("make", folder))?;
        let lock = lock(&files)?;
        let path = files.job_path();
        let has_job = match std::fs::read_to_string(&path) {
            Ok(text) if text != job && files.has_begun() => {
                return Err(FolderError::OtherJob(folder.to_owned()));
            }
            Ok(text) => text == job,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(source) => return Err(io("read", &path)(source)),
        };
        Ok(LockedFolder {
            files,
            lock,
            job: job.to_owned(),
            has_job,
            is_new,
        })
    }

    /// Writes the job file, if the folder has another one or none, and opens the logs.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn open(self) -> Result<RunFolder, FolderError> {
        let files = self.files;
        for path in [files.plans_path(), files.workers_path()] {
            std::fs::create_dir_all(&path).map_err(io("make", &path))?;
        }
        if !self.has_job {
            let path = files.job_path();
            replace_file(&path, &self.job, Access::Everyone, Durability::Synced)
                .map_err(io("write", &path))?;
        }
        let (last, nan_steps) = history(&files.metrics_path());
        let append = |path: PathBuf| Log::open(&path).map_err(io("open", &path));
        Ok(RunFolder {
            _lock: self.lock,
            last,
            nan_steps,
            worker_names: worker_names(&files.events_path()),
            events: append(files.events_path())?,
            metrics: append(files.metrics_path())?,
            event_files: EventFiles::new(files.tensorboard_path()),
            failing: false,
            files,
        })
    }

    /// Gives the folder up. It is removed if it was made for this and holds nothing but its lock.
    pub fn give_up(self) {
        let folder = self.files.folder();
        let entries = std::fs::read_dir(folder).map(Iterator::count);
        if self.is_new && entries.is_ok_and(|entries| entries == 1) {
            // The lock is held until this returns. Whoever opened the file before finds that it is no longer there, see `lock`. An error
            // leaves an empty folder, which does no harm.
            let _ = std::fs::remove_file(self.files.lock_path());
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// An open, locked run folder, to which the coordinator writes. A full disk is logged once and never stops training; lines that the two
/// logs miss meanwhile are written when there is room again.
pub struct RunFolder {
    files: RunFiles,
    /// The lock is held as long as this value lives; the system releases it with the process.
    _lock: File,
    events: Log,
    metrics: Log,
    event_files: EventFiles,
    last: Option<Metric>,
    /// Published steps whose loss was not a finite number, in order.
    nan_steps: Vec<Step>,
    /// Names of the workers that have joined under earlier coordinators.
    worker_names: BTreeMap<WorkerId, String>,
    /// Whether the last write failed, which was logged.
    failing: bool,
}

impl RunFolder {
    /// Opens or makes the folder for a job, and locks it. The job file of a run that never began is replaced.
    ///
    /// # Errors
    /// The folder is locked, belongs to another job's run, or cannot be written.
    pub fn open(folder: &Path, job: &str) -> Result<RunFolder, FolderError> {
        LockedFolder::lock(folder, job)?.open()
    }

    /// The files, for reading.
    #[must_use]
    pub fn files(&self) -> &RunFiles {
        &self.files
    }

    /// The last step that was published in this folder.
    #[must_use]
    pub fn last_metric(&self) -> Option<&Metric> {
        self.last.as_ref()
    }

    /// Names of the workers that had joined the run before the folder was opened, as far as its event log has them.
    #[must_use]
    pub fn worker_names(&self) -> &BTreeMap<WorkerId, String> {
        &self.worker_names
    }

    /// Number of the steps before this one whose loss was not finite.
    #[must_use]
    pub fn nan_steps_before(&self, step: Step) -> u64 {
        self.nan_steps.partition_point(|nan| *nan < step) as u64
    }

    /// Writes the coordinator's address. Only the owner can read the file, because it holds the token.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn write_contact(&self, contact: &Contact) -> Result<(), FolderError> {
        let path = self.files.contact_path();
        serde_json::to_string_pretty(contact)
            .map_err(std::io::Error::from)
            .and_then(|text| replace_file(&path, &text, Access::OwnerOnly, Durability::Cached))
            .map_err(io("write", &path))
    }

    /// Adds a line to the event log. `steps_lost`: published steps that are run again because of it.
    pub fn append_event(&mut self, event: LoggedEvent, steps_lost: Option<u64>) {
        let entry = EventEntry {
            event,
            steps_lost,
            time_ms: now_ms(),
        };
        let result = self.events.append(&entry);
        self.log_failure("events.jsonl", result);
    }

    /// Publishes a committed step, unless it was published before. A step that is run again after it was given up counts as new.
    pub fn append_metric(&mut self, metric: Metric) {
        if self.last.as_ref().is_some_and(|last| metric.state <= last.state) {
            return;
        }
        let line = self.metrics.append(&metric);
        let events = self.event_files.append(&metric);
        let file = match &line {
            Ok(()) => "tensorboard",
            Err(_) => "metrics.jsonl",
        };
        self.log_failure(file, line.and(events));
        note_loss(&mut self.nan_steps, &metric);
        self.last = Some(metric);
    }

    /// Writes a plan, for people and tools; only the record is authoritative. Only the newest plans are kept.
    pub fn write_plan(&mut self, plan: &Plan) {
        if self.files.plan_path(plan.generation).exists() {
            return;
        }
        let result = serde_json::to_string_pretty(plan)
            .map_err(std::io::Error::from)
            .and_then(|text| self.keep_plan(plan.generation, &text, PLANS_KEPT));
        self.log_failure("plans/", result);
    }

    /// Writes a plan of this text, and removes old ones beyond this number.
    fn keep_plan(&self, generation: Generation, text: &str, kept: usize) -> std::io::Result<()> {
        let path = self.files.plan_path(generation);
        replace_file(&path, text, Access::Everyone, Durability::Cached)?;
        let mut plans = BTreeMap::new();
        for entry in std::fs::read_dir(self.files.plans_path())? {
            let path = entry?.path();
            plans.extend(generation_of(&path).map(|generation| (generation, path)));
        }
        let surplus = plans.len().saturating_sub(kept);
        plans.values().take(surplus).try_for_each(std::fs::remove_file)
    }

    /// Replaces the last measured step.
    pub fn write_measured_step(&mut self, step: &MeasuredStep) {
        let path = self.files.measured_step_path();
        let result = serde_json::to_string(step)
            .map_err(std::io::Error::from)
            .and_then(|text| replace_file(&path, &text, Access::Everyone, Durability::Cached));
        self.log_failure("measured-step.json", result);
    }

    /// Replaces `status.json`, and writes log lines that did not fit on a full disk.
    pub fn write_status(&mut self, status: &RunStatus) {
        let path = self.files.status_path();
        let result = serde_json::to_string(status)
            .map_err(std::io::Error::from)
            .and_then(|text| replace_file(&path, &text, Access::Everyone, Durability::Cached))
            .and_then(|()| self.events.write_waiting())
            .and_then(|()| self.metrics.write_waiting())
            .and_then(|()| self.event_files.write_waiting());
        self.log_failure("status.json", result);
    }

    fn log_failure(&mut self, file: &str, result: std::io::Result<()>) {
        if let Err(error) = &result
            && !self.failing
        {
            let folder = self.files.folder().display();
            tracing::error!(%error, file, %folder, "cannot write to the run folder; training goes on");
        }
        self.failing = result.is_err();
    }
}

/// The number of the plan in a file; none for a file that is no plan's.
fn generation_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix('g')?.strip_suffix(".json")?.parse().ok()
}

fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> FolderError + 'a {
    move |source| FolderError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

fn lock(files: &RunFiles) -> Result<File, FolderError> {
    let path = files.lock_path();
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(io("open", &path))?;
    match file.try_lock() {
        Ok(()) if is_at(&file, &path) => Ok(file),
        // A lock file that was removed, with the folder, by the one that held it keeps nobody else out.
        Ok(()) | Err(std::fs::TryLockError::WouldBlock) => Err(FolderError::Held(files.folder().to_owned())),
        Err(std::fs::TryLockError::Error(source)) => Err(io("lock", &path)(source)),
    }
}

/// Whether the open file is the one at this path.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let ids = (file.metadata().map(id), std::fs::metadata(path).map(id));
    matches!(ids, (Ok(open), Ok(named)) if open == named)
}

/// The last complete line, and the steps whose loss was not finite. A coordinator that was killed may have left half a line.
fn history(path: &Path) -> (Option<Metric>, Vec<Step>) {
    let (mut last, mut nan_steps) = (None, Vec::new());
    let Ok(file) = File::open(path) else {
        return (last, nan_steps);
    };
    let lines = BufReader::new(file).lines().map_while(Result::ok);
    for metric in lines.filter_map(|line| serde_json::from_str::<Metric>(&line).ok()) {
        note_loss(&mut nan_steps, &metric);
        last = Some(metric);
    }
    (last, nan_steps)
}

/// The names of the last [`NAMES_MAX`] workers that have joined. What cannot be read has no names: they are for people.
fn worker_names(path: &Path) -> BTreeMap<WorkerId, String> {
    let mut joined = VecDeque::new();
    let lines = File::open(path).map(|file| BufReader::new(file).lines().map_while(Result::ok));
    // Most lines are of other events, and need not be parsed.
    let lines = lines
        .into_iter()
        .flatten()
        .filter(|line| line.contains("workerJoined"));
    for entry in lines.filter_map(|line| serde_json::from_str::<EventEntry>(&line).ok()) {
        if let LoggedEvent::Protocol(Event::WorkerJoined { worker, name, .. }) = entry.event {
            joined.push_back((worker, name));
        }
        if joined.len() > NAMES_MAX {
            joined.pop_front();
        }
    }
    joined.into_iter().collect()
}

/// Records a step whose loss is not finite. Recorded steps from this one on are removed first: they were given up.
fn note_loss(nan_steps: &mut Vec<Step>, metric: &Metric) {
    nan_steps.truncate(nan_steps.partition_point(|nan| *nan < metric.step));
    if metric.mean_loss().is_some_and(|loss| !loss.is_finite()) {
        nan_steps.push(metric.step);
    }
}

#[cfg(test)]
mod tests;
