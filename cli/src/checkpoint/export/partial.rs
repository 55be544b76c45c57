//! The folder of an export that is not complete: half an export would pass for a whole one, also after a signal.

use crate::failure::Failure;
use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// A file that marks a folder as one that an export has made: only such a folder is replaced, since a user may have one of this name.
const MARK: &str = ".varuna-export";

/// `FOLDER.partial`. It is removed when this is dropped, unless it was renamed.
pub(super) struct Partial {
    pub(super) path: PathBuf,
    /// Locks the folder against another export.
    _lock: File,
}

impl Partial {
    /// Creates the folder of an export to `folder`, in place of one that an earlier export has left.
    pub(super) fn create(folder: &Path) -> Result<Partial, Failure> {
        let path = name_of(folder)?;
        let failed = |what: &str, error: &std::io::Error| {
            Failure::Input(format!("cannot {what} {}: {error}", path.display()))
        };
        if path.exists() {
            let _left = lock(&path)?;
            if path.join(MARK).exists() {
                std::fs::remove_dir_all(&path).map_err(|e| failed("replace", &e))?;
            } else {
                // An empty one may be of an export that was killed before it made the mark.
                std::fs::remove_dir(&path).map_err(|e| {
                    Failure::Input(format!(
                        "{} exists already, and no export has made it ({e}): rename or remove it, or choose another folder than {}",
                        path.display(),
                        folder.display()
                    ))
                })?;
            }
        }
        std::fs::create_dir_all(&path).map_err(|e| failed("create", &e))?;
        let partial = Partial {
            _lock: lock(&path)?,
            path: path.clone(),
        };
        File::create(partial.path.join(MARK)).map_err(|e| failed("write to", &e))?;
        Ok(partial)
    }

    /// Gives the folder, which is complete, its final name.
    pub(super) fn rename(self, folder: &Path) -> Result<(), Failure> {
        std::fs::rename(&self.path, folder).map_err(|e| {
            let (from, to) = (self.path.display(), folder.display());
            Failure::Input(format!("cannot rename {from} to {to}: {e}"))
        })?;
        // The export is complete, with this file or without it.
        let _ = std::fs::remove_file(folder.join(MARK));
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After a rename there is none.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn name_of(folder: &Path) -> Result<PathBuf, Failure> {
    // A slash behind the name is not a part of it.
    let name = folder.file_name().map(|name| {
        let mut name: OsString = name.to_owned();
        name.push(".partial");
        folder.with_file_name(name)
    });
    name.ok_or_else(|| {
        let folder = folder.display();
        Failure::Input(format!(
            "{folder} is not the name of a folder that can be created"
        ))
    })
}

/// Locks a folder until the file is closed. A file system without locks cannot say whether another export writes there.
fn lock(path: &Path) -> Result<File, Failure> {
    let file =
        File::open(path).map_err(|e| Failure::Input(format!("cannot open {}: {e}", path.display())))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Failure::Busy(format!(
            "another export writes {} now; wait for that one to end, or choose another folder",
            path.display()
        ))),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_has_its_name_only_when_it_is_complete() {
        let temp = tempfile::tempdir().unwrap();
        // As a user may write it.
        let folder = temp.path().join("out/");
        let left = temp.path().join("out.partial");
        // As a killed export leaves it.
        std::fs::create_dir(&left).unwrap();
        std::fs::write(left.join("old"), "").unwrap();
        std::fs::write(left.join(MARK), "").unwrap();
        let partial = Partial::create(&folder).unwrap();
        assert_eq!(partial.path, left);
        assert!(!left.join("old").exists() && !folder.exists());
        assert!(
            matches!(Partial::create(&folder), Err(Failure::Busy(why)) if why.contains("out.partial")),
            "two exports would mix"
        );
        std::fs::write(left.join("new"), "").unwrap();
        partial.rename(&folder).unwrap();
        assert!(folder.join("new").exists() && !folder.join(MARK).exists() && !left.exists());
        // One that fails leaves nothing.
        let other = temp.path().join("other");
        drop(Partial::create(&other).unwrap());
        assert!(!other.exists() && !temp.path().join("other.partial").exists());
    }

    #[test]
    fn a_folder_of_the_users_is_not_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let own = temp.path().join("out.partial");
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join("mine"), "").unwrap();
        let refused = Partial::create(&temp.path().join("out")).err();
        assert!(
            matches!(&refused, Some(Failure::Input(why)) if why.contains("out.partial exists already")),
            "{refused:?}"
        );
        assert!(own.join("mine").exists());
        std::fs::remove_file(own.join("mine")).unwrap();
        let empty = Partial::create(&temp.path().join("out"));
        assert!(empty.is_ok(), "an export was killed before it made its mark");
    }
}
