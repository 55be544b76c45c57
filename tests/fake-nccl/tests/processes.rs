//! Ranks as processes that are killed, hang or fail in the middle of a sum.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests; what fails here fails the test"
)]

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const REVOKED: &str = "error: the communicator was revoked";
const HANGS: &str = "error: an operation was not done by its deadline";

/// A process for one rank.
struct Rank {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Rank {
    fn start(folder: &tempfile::TempDir, fault: Option<&str>) -> Rank {
        let library = std::env::current_exe()
            .unwrap()
            .with_file_name("libvaruna_fake_nccl.so");
        let mut command = Command::new(env!("CARGO_BIN_EXE_varuna-fake-nccl-rank"));
        command.arg(library).env("VARUNA_FAKE_NCCL_FOLDER", folder.path());
        if let Some(fault) = fault {
            command.env("VARUNA_FAKE_NCCL_FAULT", fault);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Rank {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        }
    }

    /// Sends a command.
    fn send_command(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The answer to the oldest command that was not answered yet.
    fn read_answer(&mut self) -> String {
        self.output.next().unwrap().unwrap()
    }

    fn ask(&mut self, line: &str) -> String {
        self.send_command(line);
        self.read_answer()
    }

    /// Kills the process with SIGKILL.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts one process for each fault; none means no fault.
fn start(folder: &tempfile::TempDir, faults: &[Option<&str>]) -> Vec<Rank> {
    faults.iter().map(|fault| Rank::start(folder, *fault)).collect()
}

/// Creates a communicator of all processes.
fn join(ranks: &mut [Rank], name: &str) {
    let (id, count) = (ranks[0].ask("id"), ranks.len());
    for (i, rank) in ranks.iter_mut().enumerate() {
        rank.send_command(&format!("init {name} {id} {count} {i} 20000"));
    }
    assert!(ranks.iter_mut().all(|r| r.read_answer() == "ok"));
}

/// Sends the same command to all processes and compares their answers.
fn all(ranks: &mut [Rank], line: &str, expected: &str) {
    ranks.iter_mut().for_each(|r| r.send_command(line));
    let answers: Vec<String> = ranks.iter_mut().map(Rank::read_answer).collect();
    assert!(answers.iter().all(|a| a == expected), "{line}: {answers:?}");
}

#[test]
fn survivors_of_a_kill_make_a_new_communicator() {
    let folder = tempfile::tempdir().unwrap();
    // The third process hangs in its second sum, so that the others are in the middle of theirs when it is killed.
    let mut ranks = start(&folder, &[None, None, Some("hang:2")]);
    join(&mut ranks, "old");
    all(&mut ranks, "sum first old 1", "ok");
    all(&mut ranks, "wait first 20000", "ok");
    all(&mut ranks, "sum second old 2", "ok");
    ranks.pop().unwrap().kill();
    // As with NCCL, they get no notice: they hang until they are fenced.
    all(&mut ranks, "wait second 200", HANGS);
    all(&mut ranks, "revoke old", "ok");
    all(&mut ranks, "wait second 20000", REVOKED);
    all(&mut ranks, "done first", "true");
    all(&mut ranks, "get first", "3");
    all(&mut ranks, "sum third old 1", REVOKED);
    join(&mut ranks, "new");
    all(&mut ranks, "sum third new 5", "ok");
    all(&mut ranks, "wait third 20000", "ok");
    all(&mut ranks, "get third", "10");
    all(&mut ranks, "drop old", "ok");
    all(&mut ranks, "idle 20000", "true");
}

#[test]
fn a_failure_that_nccl_reports_ends_the_sum_and_names_itself() {
    let folder = tempfile::tempdir().unwrap();
    let mut ranks = start(&folder, &[None, Some("error:1")]);
    join(&mut ranks, "all");
    all(&mut ranks, "sum a all 1", "ok");
    let why = ranks[1].ask("wait a 20000");
    let expected =
        "error: in the background: remote process exited or there was a network error (error 6 of NCCL)";
    assert!(why.starts_with(expected), "{why}");
    assert_eq!(ranks[0].ask("wait a 200"), HANGS);
    all(&mut ranks, "revoke all", "ok");
    assert_eq!(ranks[0].ask("done a"), REVOKED);
    all(&mut ranks, "drop all", "ok");
    all(&mut ranks, "idle 20000", "true");
}

#[test]
fn a_slow_sum_is_waited_for_and_counts_when_it_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let mut ranks = start(&folder, &[None, Some("slow:600")]);
    join(&mut ranks, "all");
    all(&mut ranks, "sum a all 1.5", "ok");
    assert_eq!(ranks[0].ask("wait a 50"), HANGS);
    all(&mut ranks, "wait a 20000", "ok");
    all(&mut ranks, "get a", "3");
}

#[test]
fn a_process_that_cannot_free_a_communicator_ends_itself() {
    let folder = tempfile::tempdir().unwrap();
    let mut ranks = start(&folder, &[None, Some("stuck-destroy")]);
    join(&mut ranks, "all");
    all(&mut ranks, "revoke all", "ok");
    all(&mut ranks, "drop all", "ok");
    assert_eq!(ranks[0].ask("overdue 300"), "ok");
    ranks[1].send_command("overdue 300");
    assert_eq!(ranks[1].child.wait().unwrap().code(), Some(3));
}

#[test]
fn process_killed_at_setup_lets_others_time_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut ranks = start(&folder, &[None, None]);
    let id = ranks[0].ask("id");
    ranks.pop().unwrap().kill();
    let why = ranks[0].ask(&format!("init all {id} 2 0 200"));
    assert_eq!(
        why,
        "error: the initialization of a communicator was not done by its deadline"
    );
    all(&mut ranks, "idle 20000", "true");
}
