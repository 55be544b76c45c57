//! The images that are loaded into a cluster made by the tests.

use anyhow::{Context as _, Result, ensure};
use std::path::PathBuf;
use varuna_cluster_tests::root;

/// The tag of this checkout's images, which is its version.
///
/// # Errors
/// There is no Cargo.toml, or it has no version.
pub(crate) fn tag() -> Result<String> {
    let text = std::fs::read_to_string(root().join("Cargo.toml"))?;
    let line = text.lines().find_map(|l| l.strip_prefix("version = "));
    Ok(line
        .context("a version in Cargo.toml")?
        .trim_matches('"')
        .to_owned())
}

/// The image of workers that contains the tests' dataset.
pub(crate) fn worker_image(tag: &str) -> String {
    format!("localhost/varuna-worker-text:{tag}")
}

/// Folder with images of this build, which `images/build.sh --text` makes.
pub(crate) const IMAGES: &str = ".cache/images";
/// Folder with images of a build with a newer protocol version, which `images/next.sh` makes.
pub(crate) const NEXT_IMAGES: &str = ".cache/images/next";

/// The archives in one of these folders.
///
/// # Errors
/// One is missing.
pub(crate) fn images(folder: &str) -> Result<Vec<PathBuf>> {
    let names = [
        "pause",
        "varuna-operator",
        "varuna-coordinator",
        "varuna-worker-text",
    ];
    let paths: Vec<_> = names
        .iter()
        .map(|n| root().join(format!("{folder}/{n}.tar")))
        .collect();
    for path in &paths {
        ensure!(
            path.exists(),
            "{} is missing: run images/build.sh --text, or images/next.sh for those of the next build",
            path.display()
        );
    }
    Ok(paths)
}
