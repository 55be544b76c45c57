//! A file of lines, or of records, that is only appended to.

use serde::Serialize;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Maximum number of lines that wait while the disk is full: some megabytes, or hours of a run's steps. Beyond that the oldest are dropped.
const WAITING_MAX: usize = 16_384;

/// An open log. Lines that cannot be written wait, so that none is missing once the disk has room again.
pub(crate) struct Log {
    file: File,
    waiting: VecDeque<Vec<u8>>,
}

impl Log {
    /// Opens a log for appending. It removes half a line that a killed coordinator may have left, which would spoil the next line.
    pub(crate) fn open(path: &Path) -> std::io::Result<Log> {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .append(true)
            .open(path)?;
        let mut end = file.metadata()?.len();
        let mut byte = [0];
        while end > 0 {
            file.seek(SeekFrom::Start(end - 1))?;
            file.read_exact(&mut byte)?;
            if byte == *b"\n" {
                break;
            }
            end -= 1;
        }
        file.set_len(end)?;
        Ok(Log {
            file,
            waiting: VecDeque::new(),
        })
    }

    /// Creates a log that does not exist yet.
    pub(crate) fn create(path: &Path) -> std::io::Result<Log> {
        Ok(Log {
            file: OpenOptions::new().create_new(true).append(true).open(path)?,
            waiting: VecDeque::new(),
        })
    }

    /// Whether something is not written yet.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Adds a line after the waiting ones, and writes what can be written.
    pub(crate) fn append(&mut self, entry: &impl Serialize) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        self.append_bytes(line)
    }

    /// The same with bytes that are no line.
    pub(crate) fn append_bytes(&mut self, bytes: Vec<u8>) -> std::io::Result<()> {
        self.waiting.push_back(bytes);
        if self.waiting.len() > WAITING_MAX {
            self.waiting.pop_front();
        }
        self.write_waiting()
    }

    /// Writes the lines that wait, as far as that is possible.
    pub(crate) fn write_waiting(&mut self) -> std::io::Result<()> {
        self.write_waiting_by(|file, line| file.write_all(line))
    }

    fn write_waiting_by(
        &mut self,
        mut write: impl FnMut(&mut File, &[u8]) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        while let Some(line) = self.waiting.front() {
            let end = self.file.metadata()?.len();
            // In one write, so that a reader or a crash sees at most one incomplete line.
            if let Err(error) = write(&mut self.file, line) {
                // A full disk may accept the beginning of a line, and the next line would be appended to it.
                self.file.set_len(end)?;
                return Err(error);
            }
            self.waiting.pop_front();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    #[test]
    fn unwritten_lines_are_written_once_there_is_room() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("log");
        let mut log = Log::open(&path).unwrap();
        log.append(&1).unwrap();
        log.waiting.extend(["2\n", "3\n"].map(Into::into));
        let full = log.write_waiting_by(|file, line| {
            file.write_all(&line[..1])?;
            Err(Error::from(ErrorKind::StorageFull))
        });
        assert_eq!(full.unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n");
        log.append(&4).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n2\n3\n4\n");
    }

    #[test]
    fn no_more_lines_wait_than_the_bound() {
        let temp = tempfile::tempdir().unwrap();
        let mut log = Log::open(&temp.path().join("log")).unwrap();
        log.waiting = (0..WAITING_MAX).map(|i| format!("{i}\n").into()).collect();
        log.append(&0).unwrap();
        assert!(log.waiting.is_empty());
        let written = std::fs::read_to_string(temp.path().join("log")).unwrap();
        assert_eq!(written.lines().count(), WAITING_MAX);
        assert!(written.starts_with("1\n"), "the oldest was given up");
    }
}
