//! Everywhere the same version: the files that users copy name the images and the chart of this release.

use crate::source::root;
use std::fs;

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The version in the workspace's `Cargo.toml`.
fn version() -> String {
    let text = read("Cargo.toml");
    let package = text
        .split_once("[workspace.package]")
        .expect("the workspace's package")
        .1;
    let line = package.lines().find_map(|line| line.strip_prefix("version = "));
    line.expect("a version").trim_matches('"').to_owned()
}

/// The files of a folder whose names have this end.
fn files(folder: &str, end: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).expect("the folder");
    let names = entries
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.filter(|name| name.ends_with(end)).collect();
    names.sort();
    names.into_iter().map(|name| format!("{folder}/{name}")).collect()
}

/// Names of our images in a text, each with its tag.
fn images(text: &str) -> Vec<(String, String)> {
    let words = text.split(|c: char| c.is_whitespace() || "\"'=/,".contains(c));
    let named = words.filter_map(|word| word.split_once(':'));
    named
        .filter(|(name, tag)| name.starts_with("varuna-") && !tag.is_empty())
        .map(|(name, tag)| (name.to_owned(), tag.to_owned()))
        .collect()
}

#[test]
fn version_is_the_same_everywhere() {
    let version = version();
    let chart = read("charts/varuna/Chart.yaml");
    for line in [
        format!("version: {version}"),
        format!("appVersion: \"{version}\""),
    ] {
        assert!(
            chart.lines().any(|l| l == line),
            "charts/varuna/Chart.yaml: no {line}"
        );
    }
    let examples = files("examples/kubernetes", ".yaml");
    let dockerfiles = files("images", ".Dockerfile");
    let built = [
        "varuna-operator",
        "varuna-coordinator",
        "varuna-worker",
        "varuna-worker-cuda",
    ];
    let mut found = 0;
    for file in examples.iter().chain(&dockerfiles) {
        for (name, tag) in images(&read(file)) {
            assert!(
                built.contains(&name.as_str()),
                "{file}: no image is called {name}"
            );
            assert_eq!(tag, version, "{file}: the tag of {name}");
            found += 1;
        }
    }
    assert!(
        found >= examples.len(),
        "{found} images in {} examples",
        examples.len()
    );
}
