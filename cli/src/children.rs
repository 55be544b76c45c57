//! Worker processes of a run on this machine.
//!
//! No worker outlives the run, however the run ends: a worker is started through this program's hidden command `with-parent`,
//! which asks the kernel to kill it when the run's process ends (even by kill -9), and then executes the worker.

use crate::failure::Failure;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};
use varuna_machine::{GivenGpu, Machine, gpus};
use varuna_wire::address::loopback_beside;

/// How much of the end of a log is searched for its last line: a log may be larger than the memory.
const LOG_END_BYTES: u64 = 64 << 10;

/// What a worker needs to reach the coordinator.
pub(crate) struct Credentials {
    /// `host:port`.
    pub(crate) coordinator: String,
    /// The run's token.
    pub(crate) token: String,
    /// The certificate (PEM) that the coordinator shows; empty: none.
    pub(crate) certificate: String,
}

/// The children of `varuna run`, in the order of their start.
pub(crate) struct Children {
    /// Path of this program.
    own: PathBuf,
    program: PathBuf,
    credentials: Credentials,
    logs: PathBuf,
    machine: Machine,
    /// Number of the next worker, which is its name: those of earlier starts in this run folder have lower ones.
    started: usize,
    running: Vec<Running>,
}

struct Running {
    name: String,
    process: u32,
    /// Index of its GPU, or of its place.
    gpu: Option<usize>,
    began: Instant,
    /// Whether the worker was told to end.
    leaving: bool,
    child: Child,
}

/// A worker process that has ended.
pub(crate) struct Ended {
    pub(crate) name: String,
    pub(crate) process: u32,
    pub(crate) status: std::io::Result<std::process::ExitStatus>,
    /// Whether the worker was told to end.
    pub(crate) told: bool,
    /// How long the process ran.
    pub(crate) ran: Duration,
}

/// Starts a worker program that ends with the process that started it.
#[derive(clap::Args)]
pub(crate) struct WithParent {
    /// Process id of the run.
    parent: i32,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<std::ffi::OsString>,
}

/// Executes the worker in this process; returns only where that fails.
pub(crate) fn with_parent(arguments: &WithParent) -> Result<(), Failure> {
    set_pdeathsig(Signal::SIGKILL)
        .map_err(|e| Failure::Internal(format!("cannot tie a worker to its run: {e}")))?;
    // The run may have ended before the kernel was asked.
    if getppid() != Pid::from_raw(arguments.parent) {
        return Err(Failure::Internal(
            "the run that started this worker has ended".into(),
        ));
    }
    let (program, rest) = arguments.command.split_first().ok_or(Failure::Stopped)?;
    let error = std::process::Command::new(program).args(rest).exec();
    Err(Failure::Internal(format!(
        "cannot start {}: {error}",
        program.display()
    )))
}

/// Path of `varuna-worker`: as named by the user, or in the folder of this program.
pub(crate) fn worker_program(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let own = own_program()?;
    let path = named.map_or_else(|| own.with_file_name("varuna-worker"), Path::to_owned);
    if path.is_file() {
        // A name without a folder would be looked for in PATH when it is executed.
        std::path::absolute(&path).map_err(|e| Failure::Input(format!("{}: {e}", path.display())))
    } else {
        Err(Failure::Input(format!(
            "{} is not there: name the worker with --worker-binary",
            path.display()
        )))
    }
}

/// A command that starts this worker program, which ends with this process.
pub(crate) fn with_this_process(program: &Path) -> Result<std::process::Command, Failure> {
    let mut command = std::process::Command::new(own_program()?);
    command
        .args(["with-parent", &std::process::id().to_string()])
        .arg(program);
    Ok(command)
}

fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| Failure::Internal(format!("cannot find this program: {e}")))
}

impl Children {
    pub(crate) fn new(
        program: PathBuf,
        credentials: Credentials,
        logs: PathBuf,
        machine: Machine,
    ) -> Result<Children, Failure> {
        let own = own_program()?;
        Ok(Children {
            own,
            program,
            credentials,
            started: first_number(&logs),
            logs,
            machine,
            running: Vec::new(),
        })
    }

    /// Starts one more worker. To be called on the main thread, because the kernel takes the end of the thread that started a
    /// child for the end of its parent.
    pub(crate) fn start(&mut self) -> Result<(), Failure> {
        let name = format!("w{}", self.started);
        let log = self.logs.join(format!("{name}.log"));
        let open = || File::options().create(true).append(true).open(&log);
        let files = open().and_then(|file| Ok((file.try_clone()?, file)));
        let (out, err) = files.map_err(|e| Failure::Input(format!("cannot write {}: {e}", log.display())))?;
        // Its peers are on this machine too, also where the coordinator listens beyond it.
        let bind = SocketAddr::new(loopback_beside(&self.credentials.coordinator), 0).to_string();
        let mut command = Command::new(&self.own);
        command
            .args(["with-parent", &std::process::id().to_string()])
            .arg(&self.program)
            .args(["--coordinator", &self.credentials.coordinator, "--name", &name])
            .args(["--bind", &bind])
            .env("VARUNA_TOKEN", &self.credentials.token)
            .env("VARUNA_CERTIFICATE", &self.credentials.certificate)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            // Ctrl-C at the terminal must reach only the run, which then stops its workers in an orderly way.
            .process_group(0)
            .kill_on_drop(true);
        let places: Vec<Option<usize>> = self.running.iter().map(|r| r.gpu).collect();
        let given = self.machine.give(&places);
        command.args(given.arguments());
        if let Some(name) = given.shown() {
            command.env(gpus::VISIBLE, name);
        }
        // Whoever asks for more workers than there are GPUs wants them to share.
        if matches!(given.gpu, Some(GivenGpu::Place { .. })) {
            command.arg("--share-gpus");
        }
        let gpu = given.index();
        let child = command
            .spawn()
            .map_err(|e| Failure::Input(format!("cannot start {}: {e}", self.program.display())))?;
        self.started += 1;
        let process = child.id().unwrap_or(0);
        self.running.push(Running {
            name,
            process,
            gpu,
            began: Instant::now(),
            leaving: false,
            child,
        });
        Ok(())
    }

    /// Number of running workers.
    pub(crate) fn count(&self) -> usize {
        self.running.len()
    }

    /// How many are running that were not told to end.
    pub(crate) fn staying(&self) -> usize {
        self.running.iter().filter(|r| !r.leaving).count()
    }

    /// The last line of a worker's log, and where the log is.
    pub(crate) fn last_log_line(&self, name: &str) -> String {
        let log = self.logs.join(format!("{name}.log"));
        // A library may have printed anything.
        let bytes = end_of(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let line = last_line(&text).unwrap_or("nothing");
        format!("{line} ({})", log.display())
    }

    /// Tells the newest worker to end that was not told so before; false where that cannot be.
    pub(crate) fn drain_newest(&mut self) -> bool {
        let newest = self.running.iter_mut().rev().find(|r| !r.leaving);
        let Some(worker) = newest else { return false };
        let pid = worker.child.id().and_then(|id| i32::try_from(id).ok());
        worker.leaving = pid.is_some_and(|pid| kill(Pid::from_raw(pid), Signal::SIGTERM).is_ok());
        worker.leaving
    }

    /// Waits until one has ended; for ever where none is running.
    pub(crate) async fn ended(&mut self) -> Ended {
        if self.running.is_empty() {
            std::future::pending::<()>().await;
        }
        let waits = self.running.iter_mut().map(|r| Box::pin(r.child.wait()));
        let (status, index, _) = futures::future::select_all(waits).await;
        let worker = self.running.remove(index);
        Ended {
            name: worker.name,
            process: worker.process,
            status,
            told: worker.leaving,
            ran: worker.began.elapsed(),
        }
    }

    /// Kills all that are still running and waits for their end.
    pub(crate) async fn kill_all(&mut self) {
        for Running { child, .. } in &mut self.running {
            // An error means that it has ended already.
            let _ = child.kill().await;
        }
        self.running.clear();
    }
}

/// The last line of a log that says something. Behind the message of a panic may be a backtrace, and the hint how to get one.
fn last_line(log: &str) -> Option<&str> {
    let (mut last, mut in_backtrace) = (None, false);
    for line in log.lines().filter(|line| !line.trim().is_empty()) {
        let is_hint = line.starts_with("note: ") && line.contains("RUST_BACKTRACE");
        in_backtrace = line.eq_ignore_ascii_case("stack backtrace:") || in_backtrace && is_frame(line);
        if !in_backtrace && !is_hint {
            last = Some(line);
        }
    }
    last
}

/// Whether a line of a backtrace is a frame (`  12: _start`) or its place (`at src/main.rs:3:5`).
fn is_frame(line: &str) -> bool {
    let line = line.trim_start();
    let number = line.split_once(": ").map(|(number, _)| number);
    line.starts_with("at ") || number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// The number above those of all workers that have a log in this folder.
fn first_number(logs: &Path) -> usize {
    let entries = std::fs::read_dir(logs).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix('w')?.strip_suffix(".log")?.parse().ok();
    let numbers = entries.filter_map(|entry| number(entry.file_name().to_str()?));
    numbers.max().map_or(0, |last: usize| last.saturating_add(1))
}

/// The last [`LOG_END_BYTES`] of a file.
fn end_of(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_END_BYTES)))?;
    let mut end = Vec::new();
    file.take(LOG_END_BYTES).read_to_end(&mut end)?;
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn the_last_line_of_a_log_is_none_of_a_backtrace() {
        let why = "varuna-worker: --device: no CUDA here";
        assert_eq!(last_line(&format!("INFO attached\n{why}\n\n")), Some(why));
        let frames = "   0: rust_begin_unwind\n             at /rustc/library/std/src/panicking.rs:697:5\n  12: _start\n";
        let hint = "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace";
        let details =
            "note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.";
        for behind in [
            hint.to_owned(),
            format!("stack backtrace:\n{frames}{details}"),
            format!("\nStack backtrace:\n{frames}"),
        ] {
            let log = format!("thread 'main' panicked at src/main.rs:3:5:\nindex out of bounds\n{behind}\n");
            assert_eq!(last_line(&log), Some("index out of bounds"), "{log}");
        }
        // Outside a backtrace it is a line like any other.
        assert_eq!(last_line("a\n  12: b\n"), Some("  12: b"));
        assert_eq!(last_line("stack backtrace:\n   0: main\nafter\n"), Some("after"));
        assert_eq!(last_line(" \n"), None);
    }

    #[test]
    fn workers_of_a_later_start_have_new_names() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(first_number(&temp.path().join("none")), 0);
        assert_eq!(first_number(temp.path()), 0);
        for name in ["w0.log", "w9.log", "w10.log", "w99.txt", "other.log", "w.log"] {
            std::fs::write(temp.path().join(name), "").unwrap();
        }
        assert_eq!(first_number(temp.path()), 11);
    }

    #[test]
    fn only_the_end_of_a_long_log_is_read() {
        let temp = tempfile::tempdir().unwrap();
        let log = temp.path().join("w0.log");
        assert!(end_of(&log).is_err(), "there is none");
        std::fs::write(&log, "short\n").unwrap();
        assert_eq!(end_of(&log).unwrap(), b"short\n");
        // What lies between takes no room on the disk.
        let file = File::options().write(true).open(&log).unwrap();
        file.write_all_at(b"\nlast\n", 1 << 32).unwrap();
        let end = end_of(&log).unwrap();
        assert_eq!(end.len() as u64, LOG_END_BYTES);
        assert!(end.ends_with(b"\nlast\n"));
    }
}
