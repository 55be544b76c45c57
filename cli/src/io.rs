//! Files that the user names, and standard output.

use crate::failure::Failure;
use serde::Serialize;
use std::io::Write as _;
use std::path::Path;

/// The text of a file.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|e| Failure::Input(format!("cannot read {}: {e}", path.display())))
}

/// Creates or replaces a file.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Failure> {
    std::fs::write(path, content).map_err(|e| Failure::Input(format!("cannot write {}: {e}", path.display())))
}

/// Prints text. A closed pipe (`| head`) is not an error.
pub(crate) fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
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
