//! Where the coordinator's record is persisted, by compare-and-swap.

use crate::record_format;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use varuna_protocol::Record;
use varuna_run_folder::{Access, Durability, replace_file};

/// Why the record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A remote store refused or did not answer.
    #[error("cannot {action} the record {name}: {why}")]
    Remote {
        /// The action that failed.
        action: &'static str,
        /// The record.
        name: String,
        /// The store's error.
        why: String,
    },
    /// The file holds something else.
    #[error("{} is not a coordinator's record: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Description of the error.
        why: String,
    },
}

/// Where the record is kept: a file, or for the operator an object of the cluster.
pub trait RecordStore: Send {
    /// The present record; an empty one if there is none yet.
    ///
    /// # Errors
    /// The record cannot be read.
    fn read(&mut self) -> Result<Record, StoreError>;
    /// Replaces the record if its present version is `expect`. False if the version is another.
    ///
    /// # Errors
    /// The record cannot be written. It is then either the old or the new one, and the caller reads it again.
    fn compare_and_swap(&mut self, expect: u64, record: &Record) -> Result<bool, StoreError>;
}

/// The record as a text file, which has no limit on its length and which people can read. Only its owner can read it; nobody else writes
/// it. Writers exclude each other with a lock file in the same folder, even if they do not share a run folder's lock.
pub struct FileStore {
    path: PathBuf,
}

impl FileStore {
    /// The record in this file.
    #[must_use]
    pub fn new(path: PathBuf) -> FileStore {
        FileStore { path }
    }

    fn lock(&self) -> Result<File, StoreError> {
        let path = self.path.with_extension("lock");
        let lock = || {
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(Access::OwnerOnly.mode())
                .open(&path)?;
            file.lock()?;
            Ok(file)
        };
        lock().map_err(|source| StoreError::Io {
            action: "lock",
            path: path.clone(),
            source,
        })
    }
}

impl RecordStore for FileStore {
    fn read(&mut self) -> Result<Record, StoreError> {
        let stored = match std::fs::read(&self.path) {
            Ok(stored) => stored,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Record::default()),
            Err(source) => {
                return Err(StoreError::Io {
                    action: "read",
                    path: self.path.clone(),
                    source,
                });
            }
        };
        record_format::decode(&stored).map_err(|e| StoreError::Malformed {
            path: self.path.clone(),
            why: e.to_string(),
        })
    }

    fn compare_and_swap(&mut self, expect: u64, record: &Record) -> Result<bool, StoreError> {
        // Freed when this returns.
        let _lock = self.lock()?;
        if self.read()?.version != expect {
            return Ok(false);
        }
        let text = serde_json::to_string_pretty(record).map_err(|e| StoreError::Malformed {
            path: self.path.clone(),
            why: e.to_string(),
        })?;
        let io = |source| StoreError::Io {
            action: "write",
            path: self.path.clone(),
            source,
        };
        replace_file(&self.path, &text, Access::OwnerOnly, Durability::Synced).map_err(io)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_writer_who_knows_the_present_version_wins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        let (mut a, mut b) = (FileStore::new(path.clone()), FileStore::new(path.clone()));
        assert_eq!(a.read().unwrap(), Record::default());
        let first = Record {
            version: 1,
            term: 1,
            ..Record::default()
        };
        assert!(a.compare_and_swap(0, &first).unwrap());
        assert!(
            !b.compare_and_swap(
                0,
                &Record {
                    version: 1,
                    term: 9,
                    ..Record::default()
                }
            )
            .unwrap()
        );
        assert_eq!(b.read().unwrap(), first);
        assert!(
            b.compare_and_swap(
                1,
                &Record {
                    version: 2,
                    term: 2,
                    ..Record::default()
                }
            )
            .unwrap()
        );
        assert_eq!(a.read().unwrap().term, 2);
        std::fs::write(&path, "{").unwrap();
        let error = a.read().unwrap_err().to_string();
        assert!(
            error.contains("record.json") && error.contains("not a coordinator's record"),
            "{error}"
        );
    }

    #[test]
    fn of_many_writers_at_once_exactly_one_takes_each_version() {
        const WRITERS: u64 = 4;
        const VERSIONS: u64 = 20;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        let compete = |term: u64| {
            let mut store = FileStore::new(path.clone());
            let mut won = vec![];
            loop {
                let expect = store.read().unwrap().version;
                if expect >= VERSIONS {
                    return won;
                }
                let record = Record {
                    version: expect + 1,
                    term,
                    ..Record::default()
                };
                if store.compare_and_swap(expect, &record).unwrap() {
                    won.push(expect + 1);
                }
            }
        };
        let mut won: Vec<u64> = std::thread::scope(|scope| {
            let compete = &compete;
            let writers: Vec<_> = (1..=WRITERS)
                .map(|term| scope.spawn(move || compete(term)))
                .collect();
            writers.into_iter().flat_map(|w| w.join().unwrap()).collect()
        });
        won.sort_unstable();
        assert_eq!(won, (1..=VERSIONS).collect::<Vec<_>>());
    }

    #[test]
    fn the_record_is_readable_by_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        // As a crash of an older build may leave it.
        std::fs::write(folder.path().join("record.json.partial"), "half").unwrap();
        let mut store = FileStore::new(path.clone());
        assert!(
            store
                .compare_and_swap(
                    0,
                    &Record {
                        version: 1,
                        ..Record::default()
                    }
                )
                .unwrap()
        );
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }

    proptest::proptest! {
        // Each write is flushed to the disk, which is slow.
        #![proptest_config(proptest::test_runner::Config::with_cases(24))]
        #[test]
        fn record_replaces_only_the_named_version(expects in proptest::collection::vec(0u64..6, 1..30)) {
            let folder = tempfile::tempdir().unwrap();
            let mut store = FileStore::new(folder.path().join("record.json"));
            let mut present = Record::default();
            for (term, expect) in (1..).zip(expects) {
                let record = Record { version: expect + 1, term, ..Record::default() };
                let taken = store.compare_and_swap(expect, &record).unwrap();
                proptest::prop_assert_eq!(taken, expect == present.version);
                if taken {
                    present = record;
                }
                proptest::prop_assert_eq!(&store.read().unwrap(), &present);
            }
        }
    }
}
