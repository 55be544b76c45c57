//! Copies the run folder's event files to the checkpoint store, if the run folder is lost with the process. It runs in the background:
//! neither the driver nor training waits for it, and a failing store only loses event files.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Display;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use varuna_checkpoint::{CheckpointError, Location};

/// Interval at which files that have grown are copied: often enough to watch a run, and rarely enough that the last file, of some
/// megabytes, costs little compared with checkpoints.
const INTERVAL: Duration = Duration::from_secs(60);
/// How long one round of copies may take.
const TIMEOUT: Duration = Duration::from_secs(45);
/// How long the present and the last copies may delay the end of the process: the right to write to the location is released after them.
const LAST_TIMEOUT: Duration = Duration::from_secs(10);

/// The handle to the task.
pub(crate) struct EventUpload {
    end: Arc<Notify>,
    task: JoinHandle<()>,
}

impl EventUpload {
    /// Copies the files of `folder` into the folder of `run` at the location.
    pub(crate) fn start(folder: PathBuf, location: Location, run: String) -> EventUpload {
        let end = Arc::new(Notify::new());
        let copies = Copies::new(folder, location, run);
        let task = tokio::spawn(copies.run(Arc::clone(&end)));
        EventUpload { end, task }
    }

    /// Copies the rest, as far as the store accepts it in time.
    pub(crate) async fn end(mut self) {
        self.end.notify_one();
        if tokio::time::timeout(LAST_TIMEOUT, &mut self.task).await.is_err() {
            tracing::warn!(
                seconds = LAST_TIMEOUT.as_secs(),
                "the last event files for TensorBoard were not copied to the checkpoint store in time"
            );
        }
    }
}

impl Drop for EventUpload {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Copies {
    folder: PathBuf,
    location: Location,
    run: String,
    /// Number of bytes of each file that the store has.
    copied: BTreeMap<OsString, u64>,
    /// Files that cannot be read at present, which the log already says.
    left_out: BTreeSet<PathBuf>,
}

impl Copies {
    fn new(folder: PathBuf, location: Location, run: String) -> Copies {
        Copies {
            folder,
            location,
            run,
            copied: BTreeMap::new(),
            left_out: BTreeSet::new(),
        }
    }

    async fn run(mut self, end: Arc<Notify>) {
        let mut is_failing = false;
        loop {
            let ended = tokio::time::timeout(INTERVAL, end.notified()).await.is_ok();
            let why = match tokio::time::timeout(TIMEOUT, self.copy()).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("no answer within {} s", TIMEOUT.as_secs())),
            };
            if let Some(why) = why.as_ref().filter(|_| !is_failing) {
                tracing::warn!(
                    why,
                    "event files for TensorBoard cannot be copied to the checkpoint store"
                );
            }
            is_failing = why.is_some();
            if ended {
                return;
            }
        }
    }

    /// Copies all files that have grown, in the order of their names. One that cannot be read is left out: the others are copied all the same.
    async fn copy(&mut self) -> Result<(), CheckpointError> {
        for (name, bytes) in self.sizes() {
            if self.copied.get(&name).is_some_and(|copied| *copied >= bytes) {
                continue;
            }
            let path = self.folder.join(&name);
            let Some(text) = name.to_str() else {
                self.leave_out(path, &"the name is not UTF-8");
                continue;
            };
            let content = match tokio::fs::read(&path).await {
                Ok(content) => content,
                Err(error) => {
                    self.leave_out(path, &error);
                    continue;
                }
            };
            self.left_out.remove(&path);
            let length = content.len() as u64;
            self.location.put_event_file(&self.run, text, content).await?;
            self.copied.insert(name, length);
        }
        Ok(())
    }

    /// The files and their lengths, by name. There is no folder before the first step.
    fn sizes(&mut self) -> BTreeMap<OsString, u64> {
        let files = match std::fs::read_dir(&self.folder) {
            Ok(files) => files,
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    self.leave_out(self.folder.clone(), &error);
                }
                return BTreeMap::new();
            }
        };
        let (mut sizes, mut is_complete) = (BTreeMap::new(), true);
        for file in files {
            match file.map(|file| (file.file_name(), file.metadata())) {
                Ok((name, Ok(metadata))) => {
                    sizes.insert(name, metadata.len());
                }
                Ok((name, Err(error))) => self.leave_out(self.folder.join(name), &error),
                Err(error) => {
                    is_complete = false;
                    self.leave_out(self.folder.clone(), &error);
                }
            }
        }
        if is_complete {
            self.left_out.remove(&self.folder);
        }
        sizes
    }

    /// Notes that a file, or the rest of the folder, is not copied. It is said once, until it can be read again.
    fn leave_out(&mut self, path: PathBuf, why: &dyn Display) {
        if !self.left_out.contains(&path) {
            tracing::warn!(
                path = %path.display(),
                %why,
                "this event file for TensorBoard cannot be read, and is not copied to the checkpoint store"
            );
            self.left_out.insert(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use varuna_checkpoint::Location;

    fn open(temp: &tempfile::TempDir) -> Location {
        Location::open(temp.path().join("store").to_str().unwrap()).unwrap()
    }

    #[tokio::test]
    async fn what_is_there_at_the_end_is_copied_under_the_name_of_the_run() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("events");
        let upload = EventUpload::start(folder.clone(), open(&temp), "job-1".into());
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("a"), "one").unwrap();
        upload.end().await;
        let copy = temp.path().join("store/tensorboard/job-1/a");
        assert_eq!(std::fs::read_to_string(copy).unwrap(), "one");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_does_not_answer_keeps_the_end_for_a_while_only() {
        let began = tokio::time::Instant::now();
        let upload = EventUpload {
            end: Arc::default(),
            task: tokio::spawn(std::future::pending()),
        };
        upload.end().await;
        assert_eq!(began.elapsed().as_secs(), LAST_TIMEOUT.as_secs());
    }

    #[tokio::test]
    async fn a_file_is_copied_again_where_it_has_grown_and_no_other() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("events");
        std::fs::create_dir(&folder).unwrap();
        let mut copies = Copies::new(folder.clone(), open(&temp), "r".into());
        for name in ["a", "b"] {
            std::fs::write(folder.join(name), "one").unwrap();
        }
        copies.copy().await.unwrap();
        let store = temp.path().join("store/tensorboard/r");
        // The copies are changed, so that the test sees whether they are written again.
        for name in ["a", "b"] {
            std::fs::write(store.join(name), "changed").unwrap();
        }
        std::fs::write(folder.join("b"), "one two").unwrap();
        copies.copy().await.unwrap();
        let read = |name| std::fs::read_to_string(store.join(name)).unwrap();
        assert_eq!([read("a"), read("b")], ["changed", "one two"]);
    }

    /// What is logged.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Log {
        /// Begins to note what this thread logs, until the guard is dropped.
        fn start() -> (Log, tracing::subscriber::DefaultGuard) {
            let log = Log::default();
            let writer = log.clone();
            let logs = tracing_subscriber::fmt().with_ansi(false);
            let logs = logs.with_writer(move || writer.clone()).finish();
            (log, tracing::subscriber::set_default(logs))
        }

        /// The warnings that have this text.
        fn warnings(&self, with: &str) -> Vec<String> {
            let text = String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned();
            let lines = text
                .lines()
                .filter(|line| line.contains(with) && line.contains("WARN"));
            lines.map(str::to_owned).collect()
        }
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_listed_again_is_said_again() {
        let (log, _here) = Log::start();
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("events");
        let mut copies = Copies::new(folder.clone(), open(&temp), "r".into());
        for said in [1, 2] {
            // Also who may read everything cannot list a file.
            std::fs::write(&folder, "no folder").unwrap();
            for _ in 0..2 {
                copies.copy().await.unwrap();
                let lines = log.warnings(&folder.display().to_string());
                assert_eq!(lines.len(), said, "{lines:?}");
            }
            std::fs::remove_file(&folder).unwrap();
            std::fs::create_dir(&folder).unwrap();
            copies.copy().await.unwrap();
            std::fs::remove_dir(&folder).unwrap();
        }
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_read_is_left_out_and_said_once() {
        let (log, _here) = Log::start();
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("events");
        // Also who may read everything cannot read a folder as a file.
        std::fs::create_dir_all(folder.join("a")).unwrap();
        std::fs::write(folder.join("b"), "one").unwrap();
        let mut copies = Copies::new(folder.clone(), open(&temp), "r".into());
        let said = || log.warnings(&folder.join("a").display().to_string());
        for _ in 0..3 {
            copies.copy().await.unwrap();
            let lines = said();
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(lines[0].contains("directory"), "no reason: {lines:?}");
        }
        let copy = temp.path().join("store/tensorboard/r/b");
        assert_eq!(std::fs::read_to_string(copy).unwrap(), "one");
        // It can be read meanwhile; what follows is another failure.
        std::fs::remove_dir(folder.join("a")).unwrap();
        std::fs::write(folder.join("a"), "two").unwrap();
        copies.copy().await.unwrap();
        std::fs::remove_file(folder.join("a")).unwrap();
        std::fs::create_dir(folder.join("a")).unwrap();
        copies.copied.clear();
        copies.copy().await.unwrap();
        assert_eq!(said().len(), 2);
    }
}
