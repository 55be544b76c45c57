//! The files of a published folder, read in ranges: a whole model takes more memory than an import should.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A file of the folder, wherever it is stored.
pub trait Content {
    /// Length of the content, in bytes.
    fn length(&self) -> u64;

    /// Fills `out` with the bytes from `start` on.
    ///
    /// # Errors
    /// The content cannot be read, or is too short.
    fn read_into(&self, start: u64, out: &mut [u8]) -> io::Result<()>;

    /// Where it is stored, if that is a file of this machine.
    fn path(&self) -> Option<&Path> {
        None
    }
}

impl Content for &[u8] {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read_into(&self, start: u64, out: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        let found = self.get(start..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A file of this machine.
#[derive(Debug)]
pub struct LocalFile {
    path: PathBuf,
    file: File,
    length: u64,
}

impl LocalFile {
    /// Opens a file.
    ///
    /// # Errors
    /// The file cannot be opened; the error names it.
    pub fn open(path: &Path) -> io::Result<LocalFile> {
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (length, file) = opened.map_err(|e| cannot_read(path, &e))?;
        Ok(LocalFile {
            path: path.to_owned(),
            file,
            length,
        })
    }
}

impl Content for LocalFile {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_into(&self, start: u64, out: &mut [u8]) -> io::Result<()> {
        let read = self.file.read_exact_at(out, start);
        read.map_err(|e| cannot_read(&self.path, &e))
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }
}

fn cannot_read(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()))
}
