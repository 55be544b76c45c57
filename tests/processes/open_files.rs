//! Programs that have a connection for each worker or peer raise the soft limit of open files with which they were started.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use varuna_fixtures::{JobFile, prepare, program};

/// Starts a program with a soft limit of 64 open files and a higher hard limit, in a process group with all of its child processes.
fn start_with_few(name: &str, arguments: &[&str]) -> Child {
    Command::new("sh")
        .args(["-c", "ulimit -S -n 64 && exec \"$0\" \"$@\""])
        .arg(program(name))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap()
}

/// Whether the process has started this program: before, it was a shell with limits of its own.
fn is(child: &Child, name: &str) -> bool {
    let runs = std::fs::read_link(format!("/proc/{}/exe", child.id()));
    runs.is_ok_and(|runs| runs == program(name).canonicalize().unwrap())
}

/// The soft and the hard limit of open files of a process; none once it has ended.
fn limits(child: &Child) -> Option<(u64, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    let mut numbers = line
        .split_whitespace()
        .map(|number| number.parse().unwrap_or(u64::MAX));
    Some((numbers.next()?, numbers.next()?))
}

#[test]
fn programs_raise_their_limit_of_open_files() {
    let temp = TempDir::new().unwrap();
    let job = prepare(temp.path(), &JobFile::default());
    let job = job.to_str().unwrap();
    let folder = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    let (run, alone) = (folder("run"), folder("alone"));
    let programs: [(&str, &[&str]); 4] = [
        ("varuna", &["run", job, "--workers", "1", "--run-dir", &run]),
        (
            "varuna",
            &[
                "coordinator",
                "--job",
                job,
                "--run-dir",
                &alone,
                "--bind",
                "127.0.0.1:0",
            ],
        ),
        ("varuna-worker", &["--coordinator", "127.0.0.1:9"]),
        ("varuna-launcher", &["--device", "cpu", "--", "sleep", "1000"]),
    ];
    for (name, arguments) in programs {
        let mut child = start_with_few(name, arguments);
        let until = Instant::now() + Duration::from_secs(60);
        let (raised, found) = loop {
            let (runs, found) = (is(&child, name), limits(&child));
            let raised = runs && found.is_some_and(|(own, most)| own == most && most > 64);
            if raised || found.is_none() || Instant::now() >= until {
                break (raised, found);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        // The child processes of a launcher do not end with it.
        killpg(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGKILL).unwrap();
        child.wait().unwrap();
        assert!(raised, "{name} {arguments:?}: {found:?}");
    }
}
