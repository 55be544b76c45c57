//! Worker processes of a run on this machine.

use crate::failure::Failure;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::{Child, Command};

/// The children of `varuna run`, in the order of their start.
pub(crate) struct Children {
    program: PathBuf,
    coordinator: String,
    token: String,
    logs: PathBuf,
    started: usize,
    running: Vec<(String, Child)>,
}

/// Finds `varuna-worker`: named, or beside this program.
pub(crate) fn worker_program(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(|e| Failure::Internal(format!("cannot find this program: {e}")))?;
    let path = named.map_or_else(|| own.with_file_name("varuna-worker"), Path::to_owned);
    if path.is_file() {
        Ok(path)
    } else {
        Err(Failure::Input(format!("{} is not there: name the worker with --worker-binary", path.display())))
    }
}

impl Children {
    pub(crate) fn new(program: PathBuf, coordinator: String, token: String, logs: PathBuf) -> Children {
        Children { program, coordinator, token, logs, started: 0, running: Vec::new() }
    }

    /// Starts one more.
    pub(crate) fn start(&mut self) -> Result<(), Failure> {
        let name = format!("w{}", self.started);
        let log = self.logs.join(format!("{name}.log"));
        let open = || File::options().create(true).append(true).open(&log);
        let files = open().and_then(|file| Ok((file.try_clone()?, file)));
        let (out, err) = files.map_err(|e| Failure::Input(format!("cannot write {}: {e}", log.display())))?;
        let mut command = Command::new(&self.program);
        command
            .args(["--coordinator", &self.coordinator, "--name", &name])
            .env("VARUNA_TOKEN", &self.token)
            .env("VARUNA_PARENT", std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            // Ctrl-C at the terminal is for the run, which stops its workers in order.
            .process_group(0)
            .kill_on_drop(true);
        let child = command
            .spawn()
            .map_err(|e| Failure::Input(format!("cannot start {}: {e}", self.program.display())))?;
        self.started += 1;
        self.running.push((name, child));
        Ok(())
    }

    /// How many run.
    pub(crate) fn count(&self) -> usize {
        self.running.len()
    }

    /// Gives notice to the newest one.
    pub(crate) fn drain_newest(&mut self, already: usize) -> Option<String> {
        let at = self.running.len().checked_sub(1 + already)?;
        let (name, child) = &self.running[at];
        let pid = child.id().and_then(|id| i32::try_from(id).ok())?;
        kill(Pid::from_raw(pid), Signal::SIGTERM).ok()?;
        Some(name.clone())
    }

    /// Waits until one has ended; pending for ever where none runs.
    pub(crate) async fn ended(&mut self) -> (String, std::io::Result<std::process::ExitStatus>) {
        if self.running.is_empty() {
            std::future::pending::<()>().await;
        }
        let waits = self.running.iter_mut().map(|(_, child)| Box::pin(child.wait()));
        let (result, index, _) = futures::future::select_all(waits).await;
        let (name, _) = self.running.remove(index);
        (name, result)
    }

    /// Kills what is left and waits for it.
    pub(crate) async fn kill_all(&mut self) {
        for (_, child) in &mut self.running {
            // One that has ended already is as good.
            let _ = child.kill().await;
        }
        self.running.clear();
    }
}
