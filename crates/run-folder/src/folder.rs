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
mod tests {
    use super::*;
    use crate::metric::example as metric;
    use varuna_plan::StateId;

    /// The first event of a run in this folder.
    fn begin(path: &Path, job: &str) {
        let mut folder = RunFolder::open(path, job).unwrap();
        folder.append_event(LoggedEvent::Protocol(Event::TookOver { term: 1 }), None);
    }

    #[test]
    fn a_run_that_never_began_does_not_occupy_its_folder() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("run");
        LockedFolder::lock(&path, "job a").unwrap().give_up();
        assert!(!path.exists());
        // As a coordinator leaves it that was refused later, or that an older release was.
        drop(RunFolder::open(&path, "job a").unwrap());
        let locked = LockedFolder::lock(&path, "job b").unwrap();
        assert!(matches!(
            LockedFolder::lock(&path, "job a"),
            Err(FolderError::Held(_))
        ));
        locked.give_up();
        assert!(path.exists(), "it is not this command's");
        begin(&path, "job b");
        let job = RunFiles::new(&path).job_path();
        assert_eq!(std::fs::read_to_string(job).unwrap(), "job b");
        assert!(LockedFolder::lock(&path, "job a").is_err());
    }

    #[test]
    fn a_lock_file_that_is_removed_locks_nobody_out() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("lock");
        let file = File::create(&path).unwrap();
        assert!(is_at(&file, &path));
        std::fs::remove_file(&path).unwrap();
        assert!(!is_at(&file, &path));
        File::create(&path).unwrap();
        assert!(!is_at(&file, &path), "another file");
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
        begin(&path, "job a");
        assert!(matches!(
            RunFolder::open(&path, "job b"),
            Err(FolderError::OtherJob(_))
        ));
        assert!(RunFolder::open(&path, "job a").is_ok());
    }

    #[test]
    fn step_is_published_once_across_coordinators() {
        let temp = tempfile::tempdir().unwrap();
        let mut first = RunFolder::open(temp.path(), "job").unwrap();
        for step in [1, 2, 2, 1, 3] {
            first.append_metric(metric(step));
        }
        let file = first.files().metrics_path();
        drop(first);
        let whole = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{whole}{{\"step\":4,\"lo")).unwrap();
        let read = || RunFiles::new(temp.path()).metrics().unwrap();
        assert_eq!(read().len(), 3, "half a line is left out");
        let mut second = RunFolder::open(temp.path(), "job").unwrap();
        assert_eq!(second.last_metric().map(|m| m.step), Some(Step(3)));
        second.append_metric(metric(3));
        second.append_metric(metric(4));
        let steps = || -> Vec<u64> { read().iter().map(|m| m.step.0).collect() };
        assert_eq!(steps(), [1, 2, 3, 4]);
        // Steps 3 and 4 were given up, and 3 is run again.
        let again = Metric {
            loss: 0.5,
            state: StateId {
                run_gen: Generation(2),
                ..metric(3).state
            },
            ..metric(3)
        };
        second.append_metric(again);
        assert_eq!(steps(), [1, 2, 3]);
        assert_eq!(read()[2].loss.to_bits(), 0.5f64.to_bits());
    }

    #[test]
    fn a_diverged_step_is_published_and_remembered_like_any_other() {
        let temp = tempfile::tempdir().unwrap();
        let mut first = RunFolder::open(temp.path(), "job").unwrap();
        first.append_metric(metric(1));
        first.append_metric(Metric {
            loss: f64::NAN,
            gradient_norm: f64::INFINITY,
            overflow: true,
            ..metric(2)
        });
        drop(first);
        let second = RunFolder::open(temp.path(), "job").unwrap();
        assert_eq!(second.last_metric().map(|m| m.state), Some(metric(2).state));
    }

    #[test]
    fn skipped_steps_are_counted_across_coordinators() {
        let temp = tempfile::tempdir().unwrap();
        let mut folder = RunFolder::open(temp.path(), "job").unwrap();
        let run = |step, generation, loss| Metric {
            loss,
            state: StateId {
                run_gen: Generation(generation),
                ..metric(step).state
            },
            ..metric(step)
        };
        for (step, loss) in [(1, 1.0), (2, f64::NAN), (3, 1.0), (4, f64::INFINITY)] {
            folder.append_metric(run(step, 1, loss));
        }
        let counts = |folder: &RunFolder| [1, 2, 3, 4, 5].map(|step| folder.nan_steps_before(Step(step)));
        assert_eq!(counts(&folder), [0, 0, 1, 1, 2]);
        drop(folder);
        let mut successor = RunFolder::open(temp.path(), "job").unwrap();
        assert_eq!(counts(&successor), [0, 0, 1, 1, 2]);
        // A step without targets has no loss that could be finite.
        successor.append_metric(Metric {
            no_targets: true,
            ..run(5, 1, f64::NAN)
        });
        assert_eq!(successor.nan_steps_before(Step(6)), 2);
        // From step 2 on the steps are run again, and succeed.
        successor.append_metric(run(2, 2, 1.0));
        assert_eq!(counts(&successor), [0; 5]);
        drop(successor);
        assert_eq!(counts(&RunFolder::open(temp.path(), "job").unwrap()), [0; 5]);
    }

    #[test]
    fn workers_of_earlier_coordinators_are_known_by_name() {
        let temp = tempfile::tempdir().unwrap();
        let mut folder = RunFolder::open(temp.path(), "job").unwrap();
        assert!(folder.worker_names().is_empty());
        for (id, name) in [(3, "w0"), (1, "w1")] {
            let (worker, name) = (WorkerId(id), name.to_owned());
            let address = String::new();
            let joined = Event::WorkerJoined {
                worker,
                name,
                address,
            };
            folder.append_event(LoggedEvent::Protocol(joined), None);
            folder.append_event(LoggedEvent::Protocol(Event::TookOver { term: 2 }), None);
        }
        drop(folder);
        let folder = RunFolder::open(temp.path(), "job").unwrap();
        let names = [(1, "w1"), (3, "w0")].map(|(id, name)| (WorkerId(id), name.to_owned()));
        assert_eq!(folder.worker_names(), &BTreeMap::from(names));
    }

    #[test]
    fn only_the_newest_plans_are_kept() {
        let temp = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(temp.path(), "job").unwrap();
        let plans = folder.files().plans_path();
        std::fs::write(plans.join("notes.json"), "{}").unwrap();
        for generation in [1, 2, 9, 1_000_000, 10, 1_000_001] {
            folder.keep_plan(Generation(generation), "{}", 3).unwrap();
        }
        let left = std::fs::read_dir(plans).unwrap();
        let mut left: Vec<_> = left.map(|file| file.unwrap().file_name()).collect();
        left.sort_unstable();
        assert_eq!(
            left,
            ["g000010.json", "g1000000.json", "g1000001.json", "notes.json"]
        );
    }

    #[test]
    fn the_step_that_was_measured_last_is_the_one_that_is_read() {
        let temp = tempfile::tempdir().unwrap();
        let mut folder = RunFolder::open(temp.path(), "job").unwrap();
        let files = folder.files().clone();
        assert_eq!(files.measured_step().unwrap(), None);
        let step = |generation| MeasuredStep {
            generation: Generation(generation),
            step: Step(9),
            workers: BTreeMap::new(),
        };
        folder.write_measured_step(&step(1));
        folder.write_measured_step(&step(2));
        assert_eq!(files.measured_step().unwrap(), Some(step(2)));
        std::fs::write(files.measured_step_path(), "{").unwrap();
        let error = files.measured_step().unwrap_err().to_string();
        assert!(error.contains("measured-step.json, line 1: "), "{error}");
    }

    #[test]
    fn a_line_that_is_no_entry_is_told_by_its_file_and_number() {
        let temp = tempfile::tempdir().unwrap();
        let mut folder = RunFolder::open(temp.path(), "job").unwrap();
        folder.append_event(LoggedEvent::Protocol(Event::TookOver { term: 2 }), None);
        let files = folder.files().clone();
        let events = files.events().unwrap();
        assert_eq!(
            events[0].event,
            LoggedEvent::Protocol(Event::TookOver { term: 2 })
        );
        let text = std::fs::read_to_string(files.events_path()).unwrap();
        std::fs::write(files.events_path(), format!("{text}nonsense\n")).unwrap();
        let error = files.events().unwrap_err().to_string();
        assert!(error.contains("events.jsonl, line 2: "), "{error}");
    }

    #[test]
    fn torn_character_ends_a_log_line() {
        let temp = tempfile::tempdir().unwrap();
        let mut folder = RunFolder::open(temp.path(), "job").unwrap();
        folder.append_event(LoggedEvent::Protocol(Event::TookOver { term: 2 }), None);
        let files = folder.files().clone();
        let whole = std::fs::read(files.events_path()).unwrap();
        let half = &"{\"why\": \"é".as_bytes()[..10];
        std::fs::write(files.events_path(), [&whole[..], half].concat()).unwrap();
        assert_eq!(files.events().unwrap().len(), 1);
        std::fs::write(files.events_path(), [&whole[..], half, b"\n"].concat()).unwrap();
        let error = files.events().unwrap_err().to_string();
        assert!(error.contains("events.jsonl, line 2: "), "{error}");
    }

    #[test]
    fn the_token_is_readable_by_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(temp.path(), "job").unwrap();
        let contact = Contact {
            address: "a:1".into(),
            token: "t".into(),
            certificate: Some("c".into()),
            pid: 1,
        };
        folder.write_contact(&contact).unwrap();
        let path = folder.files().contact_path();
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(folder.files().contact().unwrap(), contact);
    }
}
