//! The inputs in the repository: `corpus/<target>/<name>`. Names of seeds begin with `valid-`. Each other input once found a defect, and is
//! named after it.

use crate::Target;
use std::io;
use std::path::PathBuf;

/// Prefix of the names of seeds.
pub const VALID: &str = "valid-";

/// An input with its name.
pub type Named = (String, Vec<u8>);

/// Folder of a target's inputs.
#[must_use]
pub fn folder(target: &Target) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus")).join(target.name)
}

/// All inputs of a target, by name.
///
/// # Errors
/// The files cannot be read.
pub fn read(target: &Target) -> io::Result<Vec<Named>> {
    let mut inputs = Vec::new();
    for entry in std::fs::read_dir(folder(target))? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        inputs.push((name, std::fs::read(&path)?));
    }
    inputs.sort();
    Ok(inputs)
}

/// Writes a target's seeds.
///
/// # Errors
/// The files cannot be written.
pub fn write_seeds(target: &Target) -> io::Result<()> {
    let folder = folder(target);
    std::fs::create_dir_all(&folder)?;
    for (name, input) in (target.seeds)() {
        std::fs::write(folder.join(format!("{VALID}{name}")), input)?;
    }
    Ok(())
}
