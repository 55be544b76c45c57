//! The processes of one run, the faults that are applied to them, and the life of each worker.

use crate::disk::{FsyncSwitch, SmallDisk};
use crate::judge::{Life, Problem};
use crate::processes::{Paths, Worker, coordinator, coordinator_address, own_address};
use crate::proxy::Links;
use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};
use varuna_run_folder::now_ms;

mod faults;

/// Time after which a coordinator that ended by itself is started again, as a supervisor would do.
const RESTART: Duration = Duration::from_millis(300);
/// Maximum time until a started program publishes its address.
const START: Duration = Duration::from_secs(60);
/// Time after the end of a fault of the disk or the store in which a coordinator may still end because of it.
const AFTERMATH: Duration = Duration::from_secs(10);

/// Workers are released at most this long before the coordinator ends.
const RELEASE: Duration = Duration::from_secs(10);

/// What to undo when a fault ends.
#[derive(Debug)]
enum Ending {
    Replace(usize),
    StartCoordinator,
    Continue(u32),
    ContinueCoordinator,
    Leave,
    Mend(Vec<u32>),
    FreeDisk,
    MendFsync,
    MendStore,
    GiveMemory(u32),
    Nothing,
}

/// The parts of a world.
#[derive(Debug)]
pub struct Parts {
    /// The locations of programs and files.
    pub paths: Paths,
    /// Folder for checkpoints.
    pub store: PathBuf,
    /// The disk of the run folder, if it is a separate one.
    pub disk: Option<SmallDisk>,
    /// The switch of the coordinator's fsync.
    pub fsync: Option<FsyncSwitch>,
    /// Number of workers without faults.
    pub workers: usize,
}

/// The processes of one run.
#[derive(Debug)]
pub struct World {
    parts: Parts,
    links: Arc<Links>,
    address: Option<SocketAddr>,
    coordinator: Option<Child>,
    /// Whether the coordinator is away because of a fault.
    coordinator_away: bool,
    restart_at: Option<Instant>,
    disk_fault: Option<Instant>,
    store_fault: Option<Instant>,
    workers: Vec<Worker>,
    target: usize,
    /// Number of workers that have not been replaced yet.
    missing: usize,
    started: u32,
    endings: BTreeMap<usize, Ending>,
    /// The life of each worker, by its number.
    pub lives: BTreeMap<u32, Life>,
    /// Violations that were observed.
    pub problems: Vec<Problem>,
    /// Workers that ended successfully without a notice, with the time. They were released if the job ends at that time.
    released: Vec<(Instant, Problem)>,
    /// Number of processes killed with SIGKILL: workers, coordinators.
    pub kills: [u64; 2],
    /// The coordinator's exit code at the end of the job.
    pub exit: Option<i32>,
}

impl World {
    /// Starts the coordinator and the workers.
    ///
    /// # Errors
    /// The processes do not start.
    pub async fn start(parts: Parts) -> Result<World> {
        let bind = format!("{}:0", own_address(93));
        let child = coordinator(&parts.paths, &bind, parts.fsync.as_ref())?;
        let mut world = World {
            target: parts.workers,
            links: Arc::default(),
            address: None,
            coordinator: Some(child),
            coordinator_away: false,
            restart_at: None,
            disk_fault: None,
            store_fault: None,
            workers: Vec::new(),
            missing: 0,
            started: 0,
            endings: BTreeMap::new(),
            lives: BTreeMap::new(),
            problems: Vec::new(),
            released: Vec::new(),
            kills: [0, 0],
            exit: None,
            parts,
        };
        let begin = Instant::now();
        while world.address.is_none() {
            if begin.elapsed() > START {
                bail!("the coordinator does not say its address");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            world.address = coordinator_address(&world.parts.paths.run);
        }
        world.supervise().await?;
        Ok(world)
    }

    /// Notices which processes have ended, and starts those that are missing.
    ///
    /// # Errors
    /// A program cannot be started.
    pub async fn supervise(&mut self) -> Result<()> {
        self.reap();
        self.restart_coordinator_if_due()?;
        for worker in &mut self.workers {
            if worker.id.is_none() {
                worker.id = worker.read_id();
                if let Some(id) = worker.id {
                    self.links.name(id, worker.number);
                    if let Some(life) = self.lives.get_mut(&worker.number) {
                        life.worker = Some(id);
                    }
                }
            }
        }
        while self.exit.is_none() && self.workers.len() + self.missing < self.target {
            let address = self.address.context("no address of the coordinator")?;
            let number = self.started;
            self.started += 1;
            let worker = Worker::start(&self.parts.paths, &self.links, number, address).await?;
            self.workers.push(worker);
            self.lives
                .insert(number, Life::begun(Worker::name(number), now_ms()));
        }
        Ok(())
    }

    /// All violations, once the run has ended.
    pub fn all_problems(&self) -> impl Iterator<Item = Problem> + '_ {
        let released = self.released.iter().map(|(_, problem)| problem);
        self.problems.iter().chain(released).cloned()
    }

    /// Number of workers that have not ended.
    #[must_use]
    pub fn alive(&self) -> usize {
        self.workers.len()
    }

    fn reap(&mut self) {
        let done = self.exit.is_some();
        let (lives, problems, released) = (&mut self.lives, &mut self.problems, &mut self.released);
        self.workers.retain_mut(|worker| {
            let Ok(Some(status)) = worker.child.try_wait() else {
                return true;
            };
            let problem = Problem::WorkerEnded {
                name: Worker::name(worker.number),
                status: status.to_string(),
            };
            if let Some(life) = lives.get_mut(&worker.number) {
                life.ended_ms.get_or_insert(now_ms());
                // A process that gets SIGTERM before it handles the signal ends at once.
                let noticed = status.success() || status.signal() == Some(Signal::SIGTERM as i32);
                // A worker without memory may end in any way.
                let expected = life.killed || life.starved || life.noticed && noticed;
                match status.success() {
                    // This is no violation if the job ends now.
                    true if !expected && !done => released.push((Instant::now(), problem)),
                    false if !expected => problems.push(problem),
                    _ => {}
                }
            }
            false
        });
    }

    fn restart_coordinator_if_due(&mut self) -> Result<()> {
        let ended = self
            .coordinator
            .as_mut()
            .and_then(|c| c.try_wait().ok().flatten());
        if let Some(status) = ended {
            self.coordinator = None;
            if !self.coordinator_away {
                if status.success() {
                    self.exit = Some(0);
                    self.released.retain(|(at, _)| at.elapsed() > RELEASE);
                    return Ok(());
                }
                let faults = [self.disk_fault, self.store_fault];
                let by_disk = faults.into_iter().flatten().any(|at| at.elapsed() < AFTERMATH);
                if !by_disk {
                    let status = status.to_string();
                    self.problems.push(Problem::CoordinatorEnded { status });
                }
                self.restart_at = Some(Instant::now() + RESTART);
            }
        }
        if self.restart_at.is_some_and(|at| at <= Instant::now()) {
            self.start_coordinator()?;
        }
        let now = Instant::now();
        for ending in self.endings.values() {
            match ending {
                Ending::FreeDisk | Ending::MendFsync => self.disk_fault = Some(now),
                Ending::MendStore => self.store_fault = Some(now),
                _ => {}
            }
        }
        Ok(())
    }

    fn start_coordinator(&mut self) -> Result<()> {
        self.restart_at = None;
        let address = self.address.context("no address of the coordinator")?.to_string();
        self.coordinator = Some(coordinator(
            &self.parts.paths,
            &address,
            self.parts.fsync.as_ref(),
        )?);
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(child) = &mut self.coordinator {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
