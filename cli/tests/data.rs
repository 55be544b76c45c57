//! The messages of `varuna data build`.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::process::{Child, Command, Stdio};
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

/// A build that takes longer than any test.
struct LongBuild {
    folder: TempDir,
    process: Child,
}

impl LongBuild {
    /// Starts it, through another program if one is named.
    fn start(through: Option<&str>) -> LongBuild {
        let folder = TempDir::new().unwrap();
        // Takes no room on the disk.
        let text = std::fs::File::create(folder.path().join("a.txt")).unwrap();
        text.set_len(1 << 38).unwrap();
        let varuna = env!("CARGO_BIN_EXE_varuna");
        let mut command = Command::new(through.unwrap_or(varuna));
        command.args(through.map(|_| varuna));
        let process = command
            .args(["data", "build", "--tokenizer", "byte", "-o", "data", "a.txt"])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        LongBuild { folder, process }
    }

    /// Bytes of tokens that are written.
    fn written(&self) -> u64 {
        let partial = self.folder.path().join("data.bin.partial");
        std::fs::metadata(partial).map_or(0, |file| file.len())
    }

    fn wait_for_more_than(&mut self, bytes: u64) {
        let start = Instant::now();
        while self.written() <= bytes {
            assert_eq!(self.process.try_wait().unwrap(), None);
            assert!(start.elapsed() < Duration::from_secs(60), "nothing is written");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.process.id()).unwrap()), signal).unwrap();
    }
}

impl Drop for LongBuild {
    fn drop(&mut self) {
        // One that a failed test leaves would fill the disk. It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn an_interrupted_build_removes_its_files() {
    let mut build = LongBuild::start(None);
    build.wait_for_more_than(0);
    build.signal(Signal::SIGINT);
    assert_eq!(build.process.wait().unwrap().code(), Some(130));
    let left: Vec<_> = std::fs::read_dir(build.folder.path())
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    assert_eq!(left, ["a.txt"]);
}

#[test]
fn a_build_under_nohup_outlives_its_terminal() {
    let mut build = LongBuild::start(Some("nohup"));
    build.wait_for_more_than(0);
    build.signal(Signal::SIGHUP);
    // A build that obeys ends with the batch that it writes, which is a thirtieth of this.
    build.wait_for_more_than(build.written() + (64 << 20));
    build.signal(Signal::SIGINT);
    assert_eq!(build.process.wait().unwrap().code(), Some(130));
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
