//! Replacing a file as a whole.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Who may read a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Every user of the machine.
    Everyone,
    /// Only the file's owner: the file holds secrets.
    OwnerOnly,
}

impl Access {
    /// The permission bits of the file.
    #[must_use]
    pub fn mode(self) -> u32 {
        match self {
            Access::Everyone => 0o644,
            Access::OwnerOnly => 0o600,
        }
    }
}

/// Which crashes a replaced file survives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// A crash of the process. After a crash of the machine the file may be the old one.
    Cached,
    /// A crash of the machine: file and folder are flushed to the disk.
    Synced,
}

/// Replaces a file in one step: readers see the old content or the new one, never a part.
///
/// The new content is first written to `NAME.partial` in the same folder. That name is fixed, so that a process that is
/// killed again and again leaves one such file and not many; writers of one file must therefore exclude each other.
///
/// # Errors
/// The file system refuses. The file is then unchanged.
pub fn replace_file(path: &Path, text: &str, access: Access, durability: Durability) -> std::io::Result<()> {
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let partial: OsString = [name, ".partial".as_ref()].into_iter().collect();
    // A partial file that a crash left behind may have other permissions, and permissions are set only when a file is created.
    match std::fs::remove_file(folder.join(&partial)) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = tempfile::Builder::new()
        .prefix(&partial)
        .suffix("")
        .rand_bytes(0)
        .permissions(Permissions::from_mode(access.mode()))
        .tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    if durability == Durability::Synced {
        file.as_file().sync_all()?;
    }
    file.persist(path).map_err(|failed| failed.error)?;
    if durability == Durability::Synced {
        // Without this the rename could be lost.
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_file_has_new_content_and_permissions() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        for (text, access) in [("one", Access::Everyone), ("two", Access::OwnerOnly)] {
            // As a crash may leave it.
            std::fs::write(temp.path().join("file.partial"), "half").unwrap();
            replace_file(&path, text, access, Durability::Synced).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, access.mode());
            assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_file_that_cannot_be_replaced_stays_as_it_was() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("folder");
        std::fs::create_dir_all(path.join("inner")).unwrap();
        assert!(replace_file(&path, "text", Access::Everyone, Durability::Cached).is_err());
        assert!(path.join("inner").is_dir());
        assert!(!temp.path().join("folder.partial").exists());
    }
}
