//! `varuna run`: a coordinator in this process, workers as children.

use crate::access::Security;
use crate::children::{Children, Credentials, Ended, worker_program};
use crate::coordinator::{Endpoint, LocalWorkers, measured, runtime, start};
use crate::failure::Failure;
use crate::io::print_line;
use crate::job;
use crate::progress::Progress;
use crate::signals::Interrupts;
use rand::TryRngCore as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{Receiver, channel};
use varuna_coordinator::{Control, Outcome, RunMode, ScaleRequest};
use varuna_machine::{Gpus, Machine};

/// How long workers may take to end after the run.
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// Train a job on this machine, with a coordinator and worker processes.
///
/// The first Ctrl-C stops the run in order, the second ends it at once.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The job file: the same YAML that a cluster takes.
    job: PathBuf,
    /// Number of worker processes to start.
    #[arg(long, short = 'n', default_value_t = 2)]
    workers: usize,
    /// The run folder [default: runs/NAME-TIME]. A run that has begun there goes on; the job file may then have more steps.
    #[arg(long)]
    run_dir: Option<PathBuf>,
    /// Plan with this profile of the model on this machine (see varuna profile).
    #[arg(long)]
    profile: Option<PathBuf>,
    /// Address on which to listen for workers, host:port, an IPv6 address in brackets; port 0 is any free one [default: any free
    /// port of 127.0.0.1, of ::1 on a machine without IPv4].
    #[arg(long)]
    bind: Option<String>,
    /// The worker program [default: varuna-worker in the folder of this program].
    #[arg(long, env = "VARUNA_WORKER")]
    worker_binary: Option<PathBuf>,
    #[command(flatten)]
    security: Security,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    varuna_open_files::raise();
    let mut file = job::read(&arguments.job)?;
    if let Some(folder) = &arguments.run_dir {
        file = job::of_run(file, folder)?;
    }
    job::check_model(&file.job)?;
    let fingerprint = job::check_data(&file.job)?;
    let least = file.job.elasticity.min_workers.max(file.job.pipeline.min_depth) as usize;
    if arguments.workers == 0 {
        return Err(Failure::Input("--workers: 0 — at least 1".into()));
    }
    if arguments.workers < least {
        eprintln!("varuna: the job needs at least {least} workers; training waits until more join");
    }
    let costs = measured(arguments.profile.as_deref(), &file.job)?;
    let program = worker_program(arguments.worker_binary.as_deref())?;
    let folder = arguments
        .run_dir
        .clone()
        .unwrap_or_else(|| default_folder(&file.job.name));
    let layout = file.job.layout();
    let gpus = Gpus::of_machine(file.job.workers.device);
    let machine = Machine::at_start(gpus, arguments.workers);
    let token = token()?;
    let outcome = runtime()?.block_on(async {
        let (scale, requests) = channel(1);
        let steps = file.steps;
        let control = start(
            file,
            &folder,
            Endpoint {
                bind: arguments.bind.clone().unwrap_or_else(loopback),
                token: token.clone(),
                security: &arguments.security,
            },
            fingerprint,
            costs,
            Some(LocalWorkers {
                workers: arguments.workers,
                scale,
            }),
        )
        .await?;
        print_line(&format!("run folder {}", folder.display()));
        let children = Children::new(
            program,
            Credentials {
                coordinator: control.address.to_string(),
                token,
                certificate: arguments
                    .security
                    .identity(&folder)?
                    .map_or(String::new(), |identity| identity.certificate),
            },
            folder.join("workers"),
            machine,
        )?;
        let run = Run {
            control,
            children,
            progress: Progress::new(steps),
            leaving: 0,
        };
        run.supervise(arguments.workers, requests).await
    })?;
    Failure::of_outcome(&outcome, &layout)
}

/// The loopback address that this machine has.
fn loopback() -> String {
    let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let has_v4 = std::net::TcpListener::bind(v4).is_ok();
    let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    if has_v4 { v4 } else { v6 }.to_string()
}

fn default_folder(name: &str) -> PathBuf {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    PathBuf::from("runs").join(format!("{name}-{}", since.as_secs()))
}

/// 128 random bits in hex.
fn token() -> Result<String, Failure> {
    let mut bytes = [0u8; 16];
    rand::rngs::OsRng
        .try_fill_bytes(&mut bytes)
        .map_err(|e| Failure::Internal(format!("no random bytes: {e}")))?;
    Ok(hex::encode(bytes))
}

struct Run {
    control: Control,
    children: Children,
    progress: Progress,
    /// Workers that were told to end and have not ended yet.
    leaving: usize,
}

impl Run {
    async fn supervise(
        mut self,
        workers: usize,
        mut requests: Receiver<ScaleRequest>,
    ) -> Result<Outcome, Failure> {
        let mut signals = Interrupts::listen()?;
        for _ in 0..workers {
            self.children.start()?;
        }
        let mut interrupts = 0;
        let outcome = loop {
            tokio::select! {
                outcome = &mut self.control.outcome => {
                    break outcome.map_err(|e| Failure::Internal(e.to_string()))?.map_err(Failure::from);
                }
                Ok(()) = self.control.view.changed() => {
                    let view = self.control.view.borrow_and_update().clone();
                    self.progress.show(&view);
                }
                Ended { name, process, status } = self.children.ended() => {
                    // An error means that the coordinator has ended.
                    let _ = self.control.process_ended.send(process).await;
                    self.leaving = self.leaving.saturating_sub(1);
                    let how = status.map_or_else(|e| e.to_string(), |s| s.to_string());
                    self.progress.print(&format!("worker {name} has ended: {how}"));
                    if self.never_began() {
                        break Err(Failure::Internal(format!(
                            "all workers ended before the first step; the last log line of {name}: {}",
                            self.children.last_log_line(&name)
                        )));
                    }
                }
                Some(request) = requests.recv() => {
                    let answer = self.scale(request.workers as usize);
                    // An error means that nobody waits for the answer.
                    drop(request.answer.send(answer));
                }
                () = signals.next() => {
                    interrupts += 1;
                    if interrupts > 1 {
                        break Ok(Outcome::Stopped);
                    }
                    self.progress.print("stopping; Ctrl-C again to end at once");
                    let _ = self.control.stop.send(()).await;
                }
            }
        };
        let view = self.control.view.borrow().clone();
        self.progress.show(&view);
        self.progress.end();
        if outcome.is_ok() && interrupts < 2 {
            let leave = async {
                while self.children.count() > 0 {
                    let _ = self.children.ended().await;
                }
            };
            // Those that have not ended by then are killed below.
            let _ = tokio::time::timeout(END_TIMEOUT, leave).await;
        }
        self.children.kill_all().await;
        outcome
    }

    /// No worker is left, none has committed a step, and nobody asked for the end: there is nothing to wait for.
    fn never_began(&self) -> bool {
        let view = self.control.view.borrow();
        let stopping = view
            .snapshot
            .as_ref()
            .is_some_and(|s| matches!(s.run.mode, RunMode::Stopped | RunMode::Ended));
        self.children.count() == 0 && view.metric.is_none() && !stopping
    }

    fn scale(&mut self, wanted: usize) -> Result<String, String> {
        if wanted == 0 {
            return Err("0 workers cannot train; stop the run with Ctrl-C".into());
        }
        let staying = self.children.count() - self.leaving.min(self.children.count());
        for _ in staying..wanted {
            self.children.start().map_err(|e| e.to_string())?;
        }
        for _ in wanted..staying {
            self.children
                .drain_newest(self.leaving)
                .ok_or("a worker could not be told to end")?;
            self.leaving += 1;
        }
        Ok(format!("from {staying} to {wanted} workers"))
    }
}
