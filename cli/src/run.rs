//! `varuna run`: a coordinator in this process, workers as children.

mod names;
mod supervisor;

use crate::access::{Security, loopback, token};
use crate::children::{Children, Credentials, worker_program};
use crate::coordinator::{Endpoint, LocalWorkers, measured, runtime, start};
use crate::exports::Exports;
use crate::failure::Failure;
use crate::io::{new_folder, show_line, warn};
use crate::job;
use crate::progress::Progress;
use crate::restarts::Restarts;
use names::Names;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use supervisor::Run;
use tokio::sync::mpsc::channel;
use varuna_api::Job;
use varuna_machine::{Gpus, Machine};
use varuna_run_folder::RunFiles;

/// Train a job on this machine, with a coordinator and worker processes.
///
/// The first Ctrl-C stops the run in order, after one more checkpoint if the job has a place for it, and the second one ends it at once. SIGTERM and a closed terminal stop it in order. A run that
/// has lost all its workers waits five minutes for new ones (varuna scale). Then it ends with exit code 1, and --run-dir continues it.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The job file, the same YAML file as for a cluster.
    job: PathBuf,
    /// Number of worker processes to start.
    #[arg(long, short = 'n', default_value_t = 2)]
    workers: usize,
    /// Maximum number of restarts of workers that end with an error, for the whole run. The delay before a restart is one second and
    /// doubles with each restart, up to a minute. It is one second again after a worker that ran for five minutes.
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_restarts: usize,
    /// The run folder: a new or an empty one, or that of an earlier run [default: runs/NAME-TIME]. If a run has begun there, it continues. The
    /// job file may then have more steps.
    #[arg(long)]
    run_dir: Option<PathBuf>,
    /// Plan with this profile, which was measured for the model on this machine (see varuna profile).
    #[arg(long)]
    profile: Option<PathBuf>,
    /// Address on which to listen for workers, host:port. An IPv6 address stands in brackets. Port 0 is any free port [default: any free
    /// port of 127.0.0.1, or of ::1 on a machine without IPv4].
    #[arg(long)]
    bind: Option<String>,
    /// The worker program [default: varuna-worker in the folder of this program].
    #[arg(long, env = "VARUNA_WORKER")]
    worker_binary: Option<PathBuf>,
    #[command(flatten)]
    exports: Exports,
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
    arguments.check_workers(&file.job)?;
    let costs = measured(arguments.profile.as_deref(), &file.job)?;
    let program = worker_program(arguments.worker_binary.as_deref())?;
    let name = file.job.name.clone();
    let layout = file.job.layout();
    let gpus = Gpus::of_machine(file.job.workers.device);
    let machine = Machine::at_start(gpus, arguments.workers);
    let token = token()?;
    let outcome = runtime()?.block_on(async {
        let exports = arguments.exports.prepare().await?;
        let folder = arguments.folder(&name)?;
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
        .await
        .inspect_err(|_| arguments.remove_own(&folder))?;
        show_line(&format!("run folder {}", folder.display()));
        let exports = exports.start(&name, &folder, control.view.clone());
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
        let names = Names {
            job: arguments.job.display().to_string(),
            folder: folder.display().to_string(),
        };
        let restarts = Restarts::new(arguments.max_restarts);
        let run = Run::new(control, children, Progress::new(steps), restarts, names);
        run.supervise(arguments.workers, requests, exports).await
    })?;
    Failure::of_outcome(&outcome, &layout)
}

impl Arguments {
    /// Refuses a run without workers, and warns of one that cannot begin with so few.
    fn check_workers(&self, job: &Job) -> Result<(), Failure> {
        let least = job.elasticity.min_workers.max(job.pipeline.min_depth) as usize;
        if self.workers == 0 {
            return Err(Failure::Input("--workers: 0 — at least 1".into()));
        }
        if self.workers < least {
            warn(&format!(
                "varuna: the job needs at least {least} workers; training waits until more join"
            ));
        }
        Ok(())
    }

    /// The run folder; a new one where the user names none.
    fn folder(&self, job: &str) -> Result<PathBuf, Failure> {
        if let Some(named) = &self.run_dir {
            return Ok(named.clone());
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        new_folder(Path::new("runs"), &format!("{job}-{}", since.as_secs()))
    }

    /// A run that has not begun leaves no folder of its own. Nobody else has a folder that the user did not name.
    fn remove_own(&self, folder: &Path) {
        if self.run_dir.is_none() && !RunFiles::new(folder).has_begun() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}
