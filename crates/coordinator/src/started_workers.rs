//! The workers that this process has started itself, in the run folder, and which of those of an earlier process have ended.
//!
//! A run that is continued in its folder would wait half a minute for the workers of the process before, although these end with it. Only what is
//! certain counts: a process was seen as a child of the process that ran the coordinator, and no process with its id and its start time is left
//! on this machine.

use crate::inbox::Inbound;
use crate::location_lease::{machine, process_has_ended, started_as_child};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use varuna_run_folder::{Access, Durability, RunFiles, WorkerProcess, WorkerProcesses, replace_file};
use varuna_wire::Hello;

/// How many processes the file has. The record names the workers of two plans.
const PROCESSES_MAX: usize = 8192;
/// How often the processes of the earlier run are looked for. They are killed with it, which takes a moment.
const INTERVAL: Duration = Duration::from_millis(200);
/// How often at most. By then a recovery has not waited for them any more.
const LOOKS_MAX: u32 = 300;

/// The processes that this one has started.
pub(crate) struct StartedWorkers {
    /// The name of this host, as workers give it.
    host: String,
    path: PathBuf,
    known: WorkerProcesses,
}

impl StartedWorkers {
    /// Reads which processes an earlier run in this folder has started, whose lock this process has. None where processes cannot be told apart.
    pub(crate) fn open(host: String, files: &RunFiles) -> Option<StartedWorkers> {
        let machine = machine()?;
        let earlier = files.worker_processes().ok();
        // After a reboot and in another container the ids say nothing.
        let earlier = earlier.filter(|earlier| earlier.machine == machine);
        Some(StartedWorkers {
            host,
            path: files.worker_processes_path(),
            known: earlier.unwrap_or_else(|| WorkerProcesses {
                machine,
                processes: Vec::new(),
            }),
        })
    }

    /// Begins to look for the earlier processes, and reports those that have ended.
    pub(crate) fn watch_earlier(&self, inbound: &Sender<Inbound>) {
        if !self.known.processes.is_empty() {
            tokio::spawn(report_ended(self.known.clone(), inbound.clone()));
        }
    }

    /// A worker has attached. It is noted if it is a child of this process.
    pub(crate) fn note(&mut self, hello: &Hello) {
        if hello.host != self.host || !is_on_loopback(&hello.address) {
            return;
        }
        let Some(started) = started_as_child(hello.pid) else {
            return;
        };
        let process = WorkerProcess {
            worker: hello.worker,
            process: hello.pid,
            started,
        };
        if self.known.processes.contains(&process) {
            return;
        }
        self.known.processes.push(process);
        let surplus = self.known.processes.len().saturating_sub(PROCESSES_MAX);
        self.known.processes.drain(..surplus);
        let written = serde_json::to_string(&self.known)
            .map_err(std::io::Error::from)
            .and_then(|text| replace_file(&self.path, &text, Access::OwnerOnly, Durability::Cached));
        if let Err(error) = written {
            // It only makes a later start faster.
            tracing::debug!(%error, path = %self.path.display(), "the processes of workers are not written");
        }
    }
}

/// Whether this is an address of this machine alone. Another machine may have the same host name, and the same process id.
fn is_on_loopback(address: &str) -> bool {
    address
        .parse::<SocketAddr>()
        .is_ok_and(|address| address.ip().is_loopback())
}

async fn report_ended(earlier: WorkerProcesses, inbound: Sender<Inbound>) {
    let mut left = earlier.processes;
    for _ in 0..LOOKS_MAX {
        let has_ended = |p: &WorkerProcess| process_has_ended(&earlier.machine, p.process, p.started);
        let (ended, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(has_ended);
        for process in ended {
            if inbound.send(Inbound::WorkerEnded(process.worker)).await.is_err() {
                return;
            }
        }
        if rest.is_empty() {
            return;
        }
        left = rest;
        tokio::time::sleep(INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};
    use tokio::sync::mpsc::channel;
    use varuna_plan::WorkerId;

    fn child() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    fn hello(worker: u64, pid: u32) -> Hello {
        Hello {
            worker: WorkerId(worker),
            name: "w".into(),
            address: "127.0.0.1:4000".into(),
            node: "n".into(),
            host: "here".into(),
            pid,
            hardware: None,
            workers_on_gpu: 0,
            memory_bytes: None,
            copies_bytes: None,
            scores: None,
            device: String::new(),
            speed: 1.0,
            run: String::new(),
        }
    }

    /// The earlier workers that are known by the next process.
    fn known(files: &RunFiles) -> Vec<u64> {
        let local = StartedWorkers::open("here".into(), files).unwrap();
        local.known.processes.iter().map(|p| p.worker.0).collect()
    }

    #[tokio::test]
    async fn ended_children_of_the_process_before_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let files = RunFiles::new(folder.path());
        let (mut ends, mut lives) = (child(), child());
        let mut local = StartedWorkers::open("here".into(), &files).unwrap();
        local.note(&hello(1, ends.id()));
        local.note(&hello(2, lives.id()));
        assert_eq!(known(&files), [1, 2]);
        ends.kill().unwrap();
        ends.wait().unwrap();
        let (inbound, mut inbox) = channel(4);
        let next = StartedWorkers::open("here".into(), &files).unwrap();
        next.watch_earlier(&inbound);
        drop(inbound);
        let first = inbox.recv().await;
        assert!(matches!(first, Some(Inbound::WorkerEnded(WorkerId(1)))));
        assert!(inbox.try_recv().is_err(), "the other one still runs");
        lives.kill().unwrap();
        lives.wait().unwrap();
        let second = inbox.recv().await;
        assert!(matches!(second, Some(Inbound::WorkerEnded(WorkerId(2)))));
    }

    #[test]
    fn only_children_on_this_machine_are_noted() {
        let folder = tempfile::tempdir().unwrap();
        let files = RunFiles::new(folder.path());
        let mut mine = child();
        let mut local = StartedWorkers::open("here".into(), &files).unwrap();
        let elsewhere = Hello {
            host: "there".into(),
            ..hello(1, mine.id())
        };
        let reached = Hello {
            address: "10.0.0.7:4000".into(),
            ..hello(2, mine.id())
        };
        // The first process is nobody's child here.
        for hello in [elsewhere, reached, hello(3, 1)] {
            local.note(&hello);
        }
        assert!(known(&files).is_empty());
        local.note(&hello(4, mine.id()));
        assert_eq!(known(&files), [4]);
        let other = WorkerProcesses {
            machine: "another boot".into(),
            ..local.known.clone()
        };
        std::fs::write(
            files.worker_processes_path(),
            serde_json::to_string(&other).unwrap(),
        )
        .unwrap();
        assert!(known(&files).is_empty(), "its process ids say nothing here");
        mine.kill().unwrap();
        mine.wait().unwrap();
    }
}
