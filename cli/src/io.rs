//! Files that the user names, standard output and standard error.

use crate::failure::Failure;
use serde::Serialize;
use std::fs::Permissions;
use std::io::{Error, ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Why printing to standard output failed: the first reason. A command ends with it, see [`check_printed`].
static PRINT_ERROR: OnceLock<Error> = OnceLock::new();

/// The text of a file.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|e| Failure::Input(format!("cannot read {}: {e}", path.display())))
}

/// Creates or replaces a file as a whole: where that fails, as on a full disk, an existing file stays as it was. A link, or what is no file (a
/// pipe, `/dev/stdout`), is written to.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Failure> {
    let written = match std::fs::symlink_metadata(path) {
        Ok(there) if !there.is_file() => std::fs::write(path, content),
        there => replace(
            path,
            content.as_ref(),
            there.ok().map(|there| there.permissions()),
        ),
    };
    written.map_err(|e| Failure::Input(format!("cannot write {}: {e}", path.display())))
}

/// Writes a temporary file in the same folder, and renames it. It gets the permissions of the file that it replaces.
fn replace(path: &Path, content: &[u8], as_before: Option<Permissions>) -> std::io::Result<()> {
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut prefix = name.to_owned();
    prefix.push(".partial-");
    let mut file = tempfile::Builder::new()
        .prefix(&prefix)
        // Of a new file the user's mask takes its part.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(content)?;
    if let Some(permissions) = as_before {
        file.as_file().set_permissions(permissions)?;
    }
    file.persist(path).map_err(|failed| failed.error)?;
    Ok(())
}

/// Makes a new folder in another one, with this name or with a number behind it: two commands at the same time have one each.
pub(crate) fn new_folder(parent: &Path, name: &str) -> Result<PathBuf, Failure> {
    let failed =
        |path: &Path, error: &Error| Failure::Input(format!("cannot make {}: {error}", path.display()));
    std::fs::create_dir_all(parent).map_err(|e| failed(parent, &e))?;
    let mut number = 1_u32;
    loop {
        let folder = parent.join(match number {
            1 => name.to_owned(),
            number => format!("{name}-{number}"),
        });
        match std::fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(failed(&folder, &error)),
        }
    }
}

/// Prints text. A closed pipe (`| head`) is not an error; anything else fails the command at its end, since half an output with exit code 0
/// would pass for a whole one.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if let Err(error) = printed
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = PRINT_ERROR.set(error);
    }
}

/// Whether standard output has taken all that was printed.
pub(crate) fn check_printed() -> Result<(), Failure> {
    match PRINT_ERROR.get() {
        None => Ok(()),
        Some(error) => Err(Failure::Internal(format!(
            "cannot write to standard output: {error}"
        ))),
    }
}

/// Prints a line that shows progress. If it cannot be printed, the run still continues, and its result stays the same.
pub(crate) fn show_line(text: &str) {
    let _ = std::io::stdout().write_all(format!("{text}\n").as_bytes());
}

/// Prints a line to standard error. The line is lost if it cannot be written.
pub(crate) fn warn(text: &str) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Prints text and a newline.
pub(crate) fn print_line(text: &str) {
    print(&format!("{text}\n"));
}

/// JSON for people: indented.
pub(crate) fn to_json(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map_err(|e| Failure::Internal(e.to_string()))
}

/// Prints indented JSON and a newline.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&(to_json(value)? + "\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let temp = tempfile::tempdir().unwrap();
        let (path, second) = (temp.path().join("page.html"), temp.path().join("second"));
        write(&path, "old").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        // Another name of the old file keeps its content unless that is overwritten in place.
        std::fs::hard_link(&path, &second).unwrap();
        write(&path, "new").unwrap();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!((read(&path), read(&second)), ("new".into(), "old".into()));
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        // What a link names is written to, as is a device.
        let link = temp.path().join("link");
        std::os::unix::fs::symlink(&second, &link).unwrap();
        write(&link, "through").unwrap();
        assert_eq!(read(&second), "through");
        write(Path::new("/dev/null"), "nothing").unwrap();
        assert!(write(Path::new("/dev/full"), "too much").is_err());
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 3);
    }

    #[test]
    fn commands_that_want_a_folder_of_the_same_name_have_one_each() {
        let temp = tempfile::tempdir().unwrap();
        let runs = temp.path().join("runs");
        for name in ["tiny-7", "tiny-7-2", "tiny-7-3"] {
            let made = new_folder(&runs, "tiny-7").unwrap();
            assert_eq!(made, runs.join(name));
            assert!(made.is_dir());
        }
        std::fs::write(temp.path().join("file"), "").unwrap();
        let why = new_folder(&temp.path().join("file"), "tiny-7").unwrap_err();
        assert!(why.to_string().contains("cannot make "), "{why}");
    }
}
