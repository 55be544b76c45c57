//! The disk of the run folder: a separate file system that can be filled, and an fsync that can be made to fail.

use anyhow::{Context, Result, bail, ensure};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Size of the disk of the run folder.
const SIZE: &str = "size=96m";
/// A library that makes fsync fail.
const FAILING_FSYNC: &str = include_str!("../failing_fsync.c");

/// A file system in memory, which is unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// Whether this process may mount a file system.
    #[must_use]
    pub fn possible() -> bool {
        nix::unistd::geteuid().is_root()
    }

    /// Mounts a small disk at a folder.
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

    /// Fills the disk completely.
    ///
    /// # Errors
    /// A write fails for another reason than a full disk.
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

    /// Frees the space again.
    pub fn free(&self) {
        // The file exists only if the disk was filled.
        let _ = std::fs::remove_file(self.filler());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The file system remains until the last program has closed its files.
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}

/// A switch that makes every fsync of the coordinator fail.
#[derive(Debug)]
pub struct FsyncSwitch {
    library: PathBuf,
    switch: PathBuf,
}

impl FsyncSwitch {
    /// Builds the library in a folder. None if there is no C compiler.
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

    /// Adds the environment variables that the coordinator needs.
    pub fn prepare(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("VARUNA_CHAOS_FSYNC", &self.switch);
    }

    /// Makes fsync fail from now on, or work again.
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
