//! The one persisted record, and its compare-and-swap.

use std::fs::File;
use std::io::Write;
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

/// The record as a file. The run folder's lock keeps other coordinators out, so that reading and replacing need no lock of
/// their own; a rename makes the change whole or absent.
pub struct FileStore {
    path: PathBuf,
}

impl FileStore {
    /// The record in this file.
    #[must_use]
    pub fn new(path: PathBuf) -> FileStore {
        FileStore { path }
    }
}

/// Replaces a file in one step: it is whole, or as it was.
///
/// # Errors
/// The file system refuses.
pub fn replace(path: &Path, text: &str, durable: bool) -> std::io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let mut file = File::create(&partial)?;
    file.write_all(text.as_bytes())?;
    if durable {
        file.sync_data()?;
    }
    drop(file);
    std::fs::rename(&partial, path)
}

impl RecordStore for FileStore {
    fn read(&mut self) -> Result<Record, StoreError> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Record::default()),
            Err(source) => return Err(StoreError::Io { action: "read", path: self.path.clone(), source }),
        };
        serde_json::from_str(&text)
            .map_err(|e| StoreError::Malformed { path: self.path.clone(), why: e.to_string() })
    }

    fn compare_and_swap(&mut self, expect: u64, record: &Record) -> Result<bool, StoreError> {
        if self.read()?.version != expect {
            return Ok(false);
        }
        let text = serde_json::to_string_pretty(record)
            .map_err(|e| StoreError::Malformed { path: self.path.clone(), why: e.to_string() })?;
        let io = |source| StoreError::Io { action: "write", path: self.path.clone(), source };
        replace(&self.path, &text, true).map_err(io)?;
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
        let first = Record { version: 1, term: 1, ..Record::default() };
        assert!(a.compare_and_swap(0, &first).unwrap());
        assert!(!b.compare_and_swap(0, &Record { version: 1, term: 9, ..Record::default() }).unwrap());
        assert_eq!(b.read().unwrap(), first);
        assert!(b.compare_and_swap(1, &Record { version: 2, term: 2, ..Record::default() }).unwrap());
        assert_eq!(a.read().unwrap().term, 2);
        std::fs::write(&path, "{").unwrap();
        let error = a.read().unwrap_err().to_string();
        assert!(error.contains("record.json") && error.contains("not a coordinator's record"), "{error}");
    }
}
