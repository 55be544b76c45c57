//! The processes of a run. They all end when the program that started them ends.

use crate::disk::FsyncSwitch;
use crate::proxy::{ForwardTarget, Links, forward};
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use varuna_plan::WorkerId;
use varuna_run_folder::RunFiles;

/// A worker's log contains its id within this many bytes.
const LOG_START: u64 = 4 << 10;

/// The locations of the programs and of a run's files.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Folder of `varuna` and `varuna-worker`.
    pub programs: PathBuf,
    /// The job file.
    pub job: PathBuf,
    /// The run folder.
    pub run: PathBuf,
    /// Folder of the logs of all processes.
    pub logs: PathBuf,
}

impl Paths {
    /// The log of the worker with this name.
    #[must_use]
    pub fn worker_log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }

    /// A command that ends with this process. It must be started on the main thread, because the kernel ends it together with the thread
    /// that started it.
    fn tied(&self, program: &str, log: &Path) -> Result<Command> {
        let file = File::options().create(true).append(true).open(log);
        let file = file.with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(self.programs.join("varuna"));
        command
            .args(["with-parent", &std::process::id().to_string()])
            .arg(self.programs.join(program))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file);
        Ok(command)
    }
}

/// A loopback address that only this process uses, so that connections of others do not take its ports.
#[must_use]
pub fn own_address(block: u8) -> String {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    format!("127.{block}.{high}.{}", low.max(1))
}

/// Sends a signal. Nothing happens if the process has ended.
pub fn signal(child: &Child, signal: Signal) {
    if let Ok(id) = i32::try_from(child.id()) {
        let _ = kill(Pid::from_raw(id), signal);
    }
}

/// A worker, and the forwarders in front of it.
#[derive(Debug)]
pub struct Worker {
    /// Number of the worker: 7 for `w7`. It is never used again.
    pub number: u32,
    /// The process.
    pub child: Child,
    /// Id of the worker, once its log has it.
    pub id: Option<WorkerId>,
    log: PathBuf,
    forwarders: [JoinHandle<()>; 2],
}

impl Worker {
    /// The name of the worker with this number.
    #[must_use]
    pub fn name(number: u32) -> String {
        format!("w{number}")
    }

    /// Starts a worker behind forwarders of its own.
    ///
    /// # Errors
    /// No address is free, or the program does not start.
    pub async fn start(
        paths: &Paths,
        links: &Arc<Links>,
        number: u32,
        coordinator: SocketAddr,
    ) -> Result<Worker> {
        let listen = async |context| TcpListener::bind((own_address(91), 0)).await.context(context);
        let uplink = listen("cannot listen before the coordinator").await?;
        let peers = listen("cannot listen before a worker").await?;
        // A worker gives its peers the host of --advertise with its own port. So the forwarder and the worker use the same port.
        let bind: SocketAddr = format!("{}:{}", own_address(92), peers.local_addr()?.port()).parse()?;
        let address = uplink.local_addr()?.to_string();
        let log = paths.worker_log(&Worker::name(number));
        let child = paths
            .tied("varuna-worker", &log)?
            .args(["--coordinator", &address, "--name", &Worker::name(number)])
            .args(["--bind", &bind.to_string(), "--advertise", &own_address(91)])
            .env("VARUNA_LOG", "info,varuna_worker=debug")
            .spawn()
            .context("cannot start varuna-worker")?;
        let start = |target, listener, to| tokio::spawn(forward(Arc::clone(links), listener, target, to));
        Ok(Worker {
            number,
            child,
            id: None,
            log,
            forwarders: [
                start(ForwardTarget::Coordinator(number), uplink, coordinator),
                start(ForwardTarget::Worker(number), peers, bind),
            ],
        })
    }

    /// The worker's id, from its log.
    pub fn read_id(&self) -> Option<WorkerId> {
        let mut text = String::new();
        File::open(&self.log)
            .ok()?
            .take(LOG_START)
            .read_to_string(&mut text)
            .ok()?;
        let after = text.split("attached worker=").nth(1)?;
        after.get(..16)?.parse().ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for forwarder in &self.forwarders {
            forwarder.abort();
        }
    }
}

/// Starts a coordinator on the run folder.
///
/// # Errors
/// The program does not start.
pub fn coordinator(paths: &Paths, bind: &str, fsync: Option<&FsyncSwitch>) -> Result<Child> {
    let mut command = paths.tied("varuna", &paths.logs.join("coordinator.log"))?;
    command
        .args(["coordinator", "--bind", bind, "--job"])
        .arg(&paths.job);
    command.arg("--run-dir").arg(&paths.run);
    if let Some(fsync) = fsync {
        fsync.prepare(&mut command);
    }
    command.spawn().context("cannot start varuna coordinator")
}

/// The address of this run folder's coordinator, once the folder has it.
#[must_use]
pub fn coordinator_address(run: &Path) -> Option<SocketAddr> {
    RunFiles::new(run).contact().ok()?.address.parse().ok()
}
