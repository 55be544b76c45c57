//! A checkpoint location that is a local folder. In a bucket, which has no folders, deleting a checkpoint's objects is enough. On a disk
//! its folder would stay, with whatever an interrupted upload had written.

use crate::CheckpointError;
use crate::listed::Listed;
use crate::location::Location;
use crate::name::{folder_name, parse_folder};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use varuna_plan::StateId;

/// Whether a file is an unfinished upload of `object_store`, which is named with the final name, `#` and a number. Its listings omit these.
fn is_unfinished(name: &str) -> bool {
    let number = name.rsplit_once('#').map(|(_, number)| number);
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Removes a folder that holds only unfinished files. A missing folder counts as removed, and one that holds other files stays.
fn remove(folder: &Path) -> io::Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?.collect::<io::Result<Vec<_>>>()?,
    };
    if !entries
        .iter()
        .all(|e| e.file_name().to_str().is_some_and(is_unfinished))
    {
        return Ok(());
    }
    for entry in entries {
        match std::fs::remove_file(entry.path()) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    match std::fs::remove_dir(folder) {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

impl Location {
    /// Removes the folders of deleted checkpoints, if this location is a folder: those that a listing did not show, of states before
    /// `newest`. A newer one may be about to be written.
    ///
    /// # Errors
    /// The disk fails.
    pub(crate) fn remove_empty_folders(
        &self,
        listed: &[Listed],
        newest: StateId,
    ) -> Result<(), CheckpointError> {
        let Some(root) = self.folder()? else {
            return Ok(());
        };
        let entries = std::fs::read_dir(&root).map_err(disk)?;
        for entry in entries {
            let name = entry.map_err(disk)?.file_name();
            let Some(id) = name.to_str().and_then(parse_folder) else {
                continue;
            };
            if id < newest && !listed.iter().any(|l| l.id == id) {
                remove(&root.join(name)).map_err(disk)?;
            }
        }
        Ok(())
    }

    /// Removes the folder of a checkpoint whose files were deleted, if this location is a folder.
    ///
    /// # Errors
    /// The disk fails.
    pub(crate) fn remove_empty_folder(&self, id: StateId) -> Result<(), CheckpointError> {
        match self.folder()? {
            Some(root) => remove(&root.join(folder_name(id))).map_err(disk),
            None => Ok(()),
        }
    }

    /// Makes files or folders survive a power failure, if the store is this machine's disk. Other stores have done so when they answer. A
    /// missing file was deleted by someone who did not need it.
    pub(crate) async fn sync(&self, paths: Vec<object_store::path::Path>) -> Result<(), CheckpointError> {
        let Some(local) = &self.disk else {
            return Ok(());
        };
        let paths = paths.iter().map(|path| local.path_to_filesystem(path));
        let paths: Vec<PathBuf> = paths.collect::<Result<_, _>>()?;
        let sync = move || paths.iter().try_for_each(|path| sync_one(path));
        let synced = tokio::task::spawn_blocking(sync).await;
        synced
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
            .map_err(disk)
    }

    /// Whether this location is a folder of this machine: the processor writes what is stored.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        self.disk.is_some()
    }

    /// The folder of this location, if it is one.
    fn folder(&self) -> Result<Option<PathBuf>, CheckpointError> {
        let path = |disk: &std::sync::Arc<object_store::local::LocalFileSystem>| {
            disk.path_to_filesystem(self.root())
        };
        Ok(self.disk.as_ref().map(path).transpose()?)
    }
}

fn sync_one(path: &Path) -> io::Result<()> {
    match File::open(path) {
        Ok(file) => file.sync_all(),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn disk(error: io::Error) -> CheckpointError {
    CheckpointError::Store(object_store::Error::Generic {
        store: "local folder",
        source: Box::new(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_files_are_known_by_their_names() {
        for name in ["segment-000.safetensors#1", "manifest.json#12"] {
            assert!(is_unfinished(name), "{name}");
        }
        for name in ["segment-000.safetensors", "a#", "a#b", "a#1b", "#"] {
            assert!(!is_unfinished(name), "{name}");
        }
    }

    #[test]
    fn a_folder_goes_unless_it_holds_more_than_unfinished_files() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("one");
        assert!(remove(&folder).is_ok(), "it is not there");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("segment-000.safetensors#1"), "half").unwrap();
        std::fs::write(folder.join("notes"), "mine").unwrap();
        remove(&folder).unwrap();
        assert_eq!(
            std::fs::read_dir(&folder).unwrap().count(),
            2,
            "somebody else's file keeps all"
        );
        std::fs::remove_file(folder.join("notes")).unwrap();
        remove(&folder).unwrap();
        assert!(!folder.exists());
    }
}
