//! Tests of the code itself: the dependencies of the core, the length of files, and forbidden words.

mod cycles;
mod glossary;
mod links;
mod source;
mod structs;
mod test_names;
mod versions;

use source::root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Maximum number of lines of code in a source file, without its tests.
const LINES: usize = 400;
/// Maximum number of lines of a file, with its tests.
const LINES_MAX: usize = 800;
/// Files that exceed the limit, with their length. This list may only shrink.
const LONG: &[(&str, usize)] = &[];

/// The crates of the pure core.
const CORE: &[&str] = &[
    "varuna-model",
    "varuna-plan",
    "varuna-protocol",
    "varuna-api",
    "varuna-sim",
];
/// Crates that depend on a runtime, a network, a cluster or libtorch.
const SHELLS: &[&str] = &[
    "tokio",
    "tonic",
    "tch",
    "torch-sys",
    "cudarc",
    "kube-client",
    "object_store",
    "mio",
    "hyper",
    "rand",
];
/// Maximum number of visible entries in the root folder.
const TOP_LEVEL: usize = 27;
/// The only crates that may link libtorch.
const ENGINE: &[&str] = &["varuna-worker", "varuna-torch"];

/// Folders of the crates that call libraries written in C or C++, and of the crate that replaces such libraries in tests.
const UNSAFE: &[&str] = &["worker/torch/", "worker/cuda/", "tests/fake-nccl/"];
/// The only crates that may depend on the bindings of CUDA and NCCL: those that call them, and the stand-in.
const CUDA: &[&str] = &["varuna-cuda", "varuna-torch", "varuna-fake-nccl", "varuna-worker"];

/// Every text file of the repository, with its path from the root.
fn files() -> Vec<(String, String)> {
    let mut found = Vec::new();
    walk(&root(), &mut found);
    let root = root();
    let name = |p: &Path| {
        p.strip_prefix(&root)
            .expect("below the root")
            .display()
            .to_string()
    };
    let mut files: Vec<_> = found
        .iter()
        .filter_map(|p| Some((name(p), fs::read_to_string(p).ok()?)))
        .collect();
    files.sort();
    assert!(files.len() > 50, "only {} files found", files.len());
    files
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let built = name.starts_with("target")
            || ["runs", "dist", ".git", ".cache", ".idea", ".vscode"].contains(&&*name);
        if path.is_symlink() || built {
            continue;
        }
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// For each package of the workspace, the packages that it needs to run, including itself.
fn needs() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root())
        .output()
        .expect("cargo starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let names: BTreeMap<String, String> = list(&metadata["packages"])
        .iter()
        .map(|p| (text(&p["id"]), text(&p["name"])))
        .collect();
    // Only dependencies of the built code count, not those of tests or build scripts.
    let plain = |dep: &serde_json::Value| list(&dep["dep_kinds"]).iter().any(|k| k["kind"].is_null());
    let edges: BTreeMap<String, Vec<String>> = list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|n| {
            let to = list(&n["deps"])
                .iter()
                .filter(|d| plain(d))
                .map(|d| text(&d["pkg"]))
                .collect();
            (text(&n["id"]), to)
        })
        .collect();
    let members = list(&metadata["workspace_members"]);
    members
        .iter()
        .map(|m| (names[&text(m)].clone(), reach(&text(m), &edges, &names)))
        .collect()
}

fn reach(
    from: &str,
    edges: &BTreeMap<String, Vec<String>>,
    names: &BTreeMap<String, String>,
) -> BTreeSet<String> {
    let (mut seen, mut next) = (BTreeSet::from([from.to_owned()]), vec![from.to_owned()]);
    while let Some(id) = next.pop() {
        for to in &edges[&id] {
            if seen.insert(to.clone()) {
                next.push(to.clone());
            }
        }
    }
    seen.iter().map(|id| names[id].clone()).collect()
}

#[test]
fn core_has_no_runtime_network_cluster_or_libtorch() {
    let needs = needs();
    for name in CORE {
        let reached = &needs[*name];
        assert!(reached.len() > 3, "{name} reaches only {reached:?}");
        let bad: Vec<_> = SHELLS.iter().filter(|s| reached.contains(**s)).collect();
        assert!(
            bad.is_empty(),
            "{name} depends on {bad:?}: the core decides, shells act"
        );
    }
}

#[test]
fn nothing_but_the_worker_links_libtorch() {
    let needs = needs();
    assert!(needs["varuna-worker"].contains("torch-sys"));
    for (name, reached) in &needs {
        let links = reached.contains("torch-sys");
        assert!(!links || ENGINE.contains(&name.as_str()), "{name} links libtorch");
    }
}

#[test]
fn only_one_crate_reaches_cuda_and_no_program_the_stand_in() {
    let needs = needs();
    assert!(needs["varuna-cuda"].contains("cudarc"));
    for (name, reached) in &needs {
        let calls = reached.contains("cudarc");
        assert!(!calls || CUDA.contains(&name.as_str()), "{name} reaches CUDA");
        let stands_in = reached.contains("varuna-fake-nccl");
        assert_eq!(stands_in, name == "varuna-fake-nccl", "{name}");
    }
}

#[test]
fn nothing_is_built_on_the_code_that_reproduces_other_systems() {
    for (name, reached) in &needs() {
        let reproduces = reached.contains("varuna-published");
        assert_eq!(reproduces, name == "varuna-published", "{name}");
    }
}

#[test]
fn unsafe_code_is_allowed_around_c_libraries_alone() {
    // The words are split, so that this file does not contain them.
    let permits = ["allow(unsafe", "expect(unsafe"].map(|p| format!("{p}_code"));
    let mut seen = 0;
    for (name, text) in files().iter().filter(|(name, _)| name.ends_with(".rs")) {
        let permitted = permits.iter().any(|p| text.contains(p));
        seen += usize::from(permitted);
        assert!(
            !permitted || UNSAFE.iter().any(|of| name.starts_with(of)),
            "{name} permits unsafe code"
        );
    }
    assert!(seen > 0, "no file permits unsafe code: the test sees nothing");
}

/// The line at which the module of tests at the end of a file begins, if there is one.
fn lines_before_tests(text: &str) -> Option<usize> {
    let lines: Vec<&str> = text.lines().collect();
    lines
        .windows(2)
        .position(|w| w[0] == "#[cfg(test)]" && w[1].starts_with("mod ") && w[1].ends_with('{'))
}

#[test]
fn files_stay_short() {
    let mut wrong = Vec::new();
    let allowed: BTreeMap<&str, usize> = LONG.iter().copied().collect();
    for (name, text) in files().iter().filter(|(name, _)| name.ends_with(".rs")) {
        let all = text.lines().count();
        let test_file = name.contains("/tests/") || name.ends_with("/tests.rs");
        let code = if test_file {
            0
        } else {
            lines_before_tests(text).unwrap_or(all)
        };
        if all > LINES_MAX {
            wrong.push(format!("{name}: {all} lines, {LINES_MAX} at most: split it"));
        }
        match allowed.get(name.as_str()) {
            None if code > LINES => {
                wrong.push(format!("{name}: {code} lines of code, {LINES} at most: split it"))
            }
            Some(ceiling) if code > *ceiling => {
                wrong.push(format!("{name}: grew from {ceiling} to {code} lines"))
            }
            Some(ceiling) if code < *ceiling => {
                wrong.push(format!(
                    "{name}: shrank from {ceiling} to {code} lines: lower or remove it in LONG"
                ));
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn no_file_names_a_machine_or_leaves_work_undone() {
    // The words are split, so that this file does not contain them.
    let forbidden = [
        ["/wo", "rk/"],
        ["/ro", "ot/"],
        ["/ho", "me/"],
        ["TO", "DO"],
        ["FIX", "ME"],
        ["XX", "X:"],
        ["dbg", "!("],
    ]
    .map(|parts| parts.concat());
    let mut wrong = Vec::new();
    for (name, text) in files() {
        for (i, line) in text.lines().enumerate() {
            if let Some(word) = forbidden.iter().find(|w| line.contains(w.as_str())) {
                wrong.push(format!("{name}:{}: {word}", i + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_crate_takes_the_workspaces_lints() {
    for (name, text) in files()
        .iter()
        .filter(|(name, _)| name.ends_with("Cargo.toml") && name != "Cargo.toml")
    {
        assert!(
            text.contains("[lints]\nworkspace = true"),
            "{name} has no [lints] workspace = true"
        );
    }
}

#[test]
fn the_top_level_stays_small() {
    let entries = fs::read_dir(root()).expect("a readable root");
    let names = entries.map(|e| {
        e.expect("a readable entry")
            .file_name()
            .to_string_lossy()
            .into_owned()
    });
    let built = |name: &String| {
        name.starts_with("target") || name == "runs" || name == "dist" || name.starts_with('.')
    };
    let visible: BTreeSet<String> = names.filter(|name| !built(name)).collect();
    assert!(visible.contains("README.md"), "{visible:?}");
    assert!(
        visible.len() <= TOP_LEVEL,
        "{} entries, {TOP_LEVEL} at most: {visible:?}",
        visible.len()
    );
}
