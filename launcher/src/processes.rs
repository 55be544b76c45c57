//! The worker processes of a pod.

use crate::report::Reports;
use crate::restarts::{Action, Restarts};
use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use varuna_machine::{Machine, gpus};

/// How long the coordinator may take to be told of the last ends.
const FAREWELL: Duration = Duration::from_secs(2);
/// Exit code where a program cannot be started, as of a shell.
const CANNOT_START: i32 = 127;

/// A worker that runs.
struct Running {
    place: usize,
    /// Index of its GPU, or of its place among the workers.
    gpu: Option<usize>,
}

/// The processes of a pod, by their ids.
pub struct Processes {
    command: Vec<OsString>,
    machine: Machine,
    /// Only one worker has the machine for itself: it is told nothing about shares.
    shared: bool,
    running: BTreeMap<i32, Running>,
    reports: Reports,
}

impl Processes {
    /// No process yet. `command`: a worker's program with its arguments.
    #[must_use]
    pub fn new(command: Vec<OsString>, machine: Machine, workers: usize, reports: Reports) -> Processes {
        Processes {
            command,
            machine,
            shared: workers > 1,
            running: BTreeMap::new(),
            reports,
        }
    }

    /// Runs so many workers until all have ended for good; returns the pod's exit code. `kill_after`: how long the others may take to end once one
    /// has failed too often.
    ///
    /// # Errors
    /// Signals cannot be waited for.
    pub async fn run(mut self, workers: usize, kill_after: Duration) -> Result<i32> {
        let listen = |kind| signal(kind).context("cannot wait for signals");
        let mut terminate = listen(SignalKind::terminate())?;
        let mut interrupt = listen(SignalKind::interrupt())?;
        let mut children = listen(SignalKind::child())?;
        let began = Instant::now();
        let mut restarts = Restarts::new(workers, kill_after);
        let code = loop {
            self.act(restarts.overdue(began.elapsed()));
            for place in restarts.due(began.elapsed()) {
                if let Err(error) = self.start(place) {
                    tracing::error!(place, error = format!("{error:#}"), "a worker cannot be started");
                    let action = restarts.ended(began.elapsed(), place, CANNOT_START);
                    self.act(action);
                }
            }
            if let Some(code) = restarts.outcome() {
                break code;
            }
            let next = restarts
                .next()
                .map(|at| tokio::time::Instant::from_std(began + at));
            tokio::select! {
                _ = terminate.recv() => self.act(restarts.stop()),
                _ = interrupt.recv() => self.act(restarts.stop()),
                _ = children.recv() => {
                    for (place, code) in self.collect() {
                        let action = restarts.ended(began.elapsed(), place, code);
                        self.act(action);
                    }
                }
                () = tokio::time::sleep_until(next.unwrap_or_else(tokio::time::Instant::now)), if next.is_some() => {}
            }
        };
        self.reports.finish(FAREWELL).await;
        Ok(code)
    }

    fn start(&mut self, place: usize) -> Result<()> {
        let (program, arguments) = self.command.split_first().context("no program is named")?;
        let mut command = Command::new(program);
        command.args(arguments);
        let mut gpu = None;
        if self.shared {
            let taken: Vec<Option<usize>> = self.running.values().map(|r| r.gpu).collect();
            let given = self.machine.give(&taken);
            command.args(given.arguments());
            if let Some(name) = given.shown() {
                command.env(gpus::VISIBLE, name);
            }
            gpu = given.index();
        }
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", program.to_string_lossy()))?;
        let process = i32::try_from(child.id()).context("a process id")?;
        tracing::info!(place, process, "a worker is started");
        self.running.insert(process, Running { place, gpu });
        Ok(())
    }

    fn act(&self, action: Action) {
        let workers = self.running.len();
        let sent = match action {
            Action::None => return,
            Action::StopAll => {
                tracing::info!(workers, "all workers are told to end");
                Signal::SIGTERM
            }
            Action::KillAll => {
                tracing::warn!(workers, "workers that do not end in time are killed");
                Signal::SIGKILL
            }
        };
        for process in self.running.keys() {
            // If it has ended, its end is collected next.
            let _ = kill(Pid::from_raw(*process), sent);
        }
    }

    /// The places and exit codes of workers that have ended. Also of orphans, which the kernel gives to the first process of a container.
    fn collect(&mut self) -> Vec<(usize, i32)> {
        let mut ended = Vec::new();
        loop {
            let (process, code) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(process, code)) => (process, code),
                Ok(WaitStatus::Signaled(process, signal, _)) => (process, 128 + signal as i32),
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return ended,
                // A process that is traced, or a call that was interrupted.
                Ok(_) | Err(_) => continue,
            };
            let Some(worker) = self.running.remove(&process.as_raw()) else {
                continue;
            };
            tracing::info!(
                place = worker.place,
                process = process.as_raw(),
                code,
                "a worker has ended"
            );
            self.reports.ended(process.as_raw().unsigned_abs());
            ended.push((worker.place, code));
        }
    }
}
