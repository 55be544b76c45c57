//! The one persisted record, and its compare-and-swap.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use varuna_protocol::Record;

/// Why the record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
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
    /// A store that is no file refused or did not answer.
    #[error("cannot {action} the record {name}: {why}")]
    Remote {
        /// What was attempted.
        action: &'static str,
        /// On what.
        name: String,
        /// Why not.
        why: String,
    },
    /// The file holds something else.
    #[error("{} is not a coordinator's record: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// Where the record lives: a file here, an object of the cluster for the operator.
pub trait RecordStore: Send {
    /// The present record; the empty one where there is none yet.
    ///
    /// # Errors
    /// It cannot be read.
    fn read(&mut self) -> Result<Record, StoreError>;
    /// Puts `record` in place if the present version is `expect`. False where it is another.
    ///
    /// # Errors
    /// It cannot be written; the present one is then as it was, or the new one (the caller reads again).
    fn compare_and_swap(&mut self, expect: u64, record: &Record) -> Result<bool, StoreError>;
}

/// Readable by everybody.
pub(crate) const PUBLIC: u32 = 0o644;
/// Holds secrets: readable by its owner alone.
pub(crate) const PRIVATE: u32 = 0o600;

/// The record as a file, readable by its owner alone because plans in it hold their secrets. Writers exclude each other by a
/// lock file beside it, also where they do not share a run folder's lock; a rename makes the change whole or absent.
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
                .mode(PRIVATE)
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

/// How sure a replaced file must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Durability {
    /// It may be as it was after a crash of the machine.
    Cached,
    /// It is what it was replaced with, whatever happens.
    Synced,
}

/// Replaces a file in one step: it is whole, or as it was.
///
/// # Errors
/// The file system refuses.
pub(crate) fn replace(path: &Path, text: &str, mode: u32, durability: Durability) -> std::io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    // What a crash left behind may have other permissions: the mode counts only for a file that is made.
    match std::fs::remove_file(&partial) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(mode)
        .open(&partial)?;
    file.write_all(text.as_bytes())?;
    if durability == Durability::Synced {
        file.sync_all()?;
    }
    std::fs::rename(&partial, path)?;
    if durability == Durability::Synced {
        // Else the rename itself could be forgotten.
        let folder = path
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

impl RecordStore for FileStore {
    fn read(&mut self) -> Result<Record, StoreError> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Record::default()),
            Err(source) => {
                return Err(StoreError::Io {
                    action: "read",
                    path: self.path.clone(),
                    source,
                });
            }
        };
        serde_json::from_str(&text).map_err(|e| StoreError::Malformed {
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
        replace(&self.path, &text, PRIVATE, Durability::Synced).map_err(io)?;
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
        // As a crash of an older build may have left it.
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
        // Each write is flushed to the disk.
        #![proptest_config(proptest::test_runner::Config::with_cases(24))]
        #[test]
        fn a_record_takes_the_place_of_the_version_it_names_and_of_no_other(expects in proptest::collection::vec(0u64..6, 1..30)) {
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
