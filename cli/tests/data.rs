//! The messages of `varuna data build`.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Builds a dataset in a folder. Returns the exit code and the text on standard error.
fn built(folder: &Path, output: &str, more: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_varuna"))
        .args([
            "data",
            "build",
            "--tokenizer",
            "byte",
            "--overwrite",
            "-o",
            output,
        ])
        .args(more)
        .current_dir(folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

#[test]
fn lines_that_were_left_out_are_counted_and_the_first_is_named() {
    let temp = TempDir::new().unwrap();
    let lines = "{\"text\": \"one\"}\n{\"loss\": NaN, \"text\": \"two\"}\nthree\n{\"text\": \"four\"}\n";
    std::fs::write(temp.path().join("a.jsonl"), lines).unwrap();
    let (code, said) = built(temp.path(), "data", &["a.jsonl", "--skip-malformed", "2"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("no JSON were left out: 2; the first of them: cannot read a.jsonl: line: 2: "),
        "{said}"
    );
    let (code, said) = built(temp.path(), "data", &["a.jsonl", "--skip-malformed", "1"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("a.jsonl: line: 3: ") && said.contains("1 lines"),
        "{said}"
    );
    let (code, said) = built(temp.path(), "data", &["a.jsonl"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("a.jsonl: line: 2: ") && said.contains("--skip-malformed N"),
        "{said}"
    );
}

#[test]
fn an_interrupted_build_removes_its_files() {
    let temp = TempDir::new().unwrap();
    // Takes no room on the disk, and longer than any test to read.
    let text = std::fs::File::create(temp.path().join("a.txt")).unwrap();
    text.set_len(1 << 38).unwrap();
    let mut build = Command::new(env!("CARGO_BIN_EXE_varuna"))
        .args(["data", "build", "--tokenizer", "byte", "-o", "data", "a.txt"])
        .current_dir(temp.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let partial = temp.path().join("data.bin.partial");
    let length = || std::fs::metadata(&partial).map_or(0, |file| file.len());
    let start = Instant::now();
    while length() == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is written");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill(Pid::from_raw(i32::try_from(build.id()).unwrap()), Signal::SIGINT).unwrap();
    assert_eq!(build.wait().unwrap().code(), Some(130));
    let left: Vec<_> = std::fs::read_dir(temp.path())
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    assert_eq!(left, ["a.txt"]);
}

#[test]
fn a_dataset_without_any_token_is_an_error() {
    let temp = TempDir::new().unwrap();
    std::fs::write(temp.path().join("a.txt"), "").unwrap();
    let (code, said) = built(temp.path(), "data", &["a.txt"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("cannot build data: 0 tokens"), "{said}");
    assert!(!temp.path().join("data.idx").exists());
}

#[test]
fn a_dataset_is_not_built_in_a_folder_with_the_name_of_a_bucket() {
    let temp = TempDir::new().unwrap();
    std::fs::write(temp.path().join("a.txt"), "one").unwrap();
    let (code, said) = built(temp.path(), "s3://bucket/web", &["a.txt"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("output: s3://bucket/web — a path of this machine"),
        "{said}"
    );
    assert!(!temp.path().join("s3:").exists());
}
