//! The disk of the run folder: one of its own that can be filled, and an fsync that can be made to fail.

use anyhow::{Context, Result, bail, ensure};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Size of the disk of the run folder.
const SIZE: &str = "size=96m";
/// A library that makes fsync fail.
const FAILING_FSYNC: &str = include_str!("../failing_fsync.c");

/// A file system of its own in memory; unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// Whether this process may mount one.
    #[must_use]
    pub fn possible() -> bool {
        nix::unistd::geteuid().is_root()
    }

    /// Mounts it at a folder.
    ///
    /// # Errors
    /// The system refuses.
    pub fn mount(folder: &Path) -> Result<SmallDisk> {
        let mut command = Command::new("mount");
        run(command
            .args(["-t", "tmpfs", "-o", SIZE, "varuna-chaos"])
            .arg(folder))?;
        Ok(SmallDisk {
            folder: folder.to_owned(),
        })
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }

    /// Fills it to its last byte.
    ///
    /// # Errors
    /// It cannot be written for another reason than that it is full.
    pub fn fill(&self) -> Result<()> {
        let path = self.filler();
        let mut file =
            std::fs::File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        for size in [1 << 20, 1 << 12, 1] {
            let piece = vec![0; size];
            loop {
                match file.write(&piece) {
                    Ok(n) if n > 0 => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Ok(_) => break,
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => bail!("cannot fill {}: {error}", path.display()),
                }
            }
        }
        Ok(())
    }

    /// Makes room again.
    pub fn free(&self) {
        // It is there once the disk was filled.
        let _ = std::fs::remove_file(self.filler());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A program that still has a file open keeps the disk until its end.
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}

/// A coordinator's fsync that fails while a file exists.
#[derive(Debug)]
pub struct FsyncSwitch {
    library: PathBuf,
    switch: PathBuf,
}

impl FsyncSwitch {
    /// Builds the library in a folder. None: there is no C compiler.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn build(folder: &Path) -> Result<Option<FsyncSwitch>> {
        let source = folder.join("failing_fsync.c");
        std::fs::write(&source, FAILING_FSYNC)
            .with_context(|| format!("cannot write {}", source.display()))?;
        let library = folder.join("failing_fsync.so");
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(&source);
        Ok(run(&mut compiler).ok().map(|()| FsyncSwitch {
            library,
            switch: folder.join("fsync-fails"),
        }))
    }

    /// What the coordinator's environment needs.
    pub fn prepare(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("VARUNA_CHAOS_FSYNC", &self.switch);
    }

    /// From now on fsync fails, or works again.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn fail(&self, fails: bool) -> Result<()> {
        if fails {
            std::fs::write(&self.switch, "").context("cannot make fsync fail")
        } else {
            match std::fs::remove_file(&self.switch) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error).context("cannot mend fsync"),
                _ => Ok(()),
            }
        }
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", why.trim());
    Ok(())
}
