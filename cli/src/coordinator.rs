//! `varuna coordinator`: a coordinator without workers of its own, and what it shares with `varuna run`.

use crate::access::Security;
use crate::exports::Exports;
use crate::failure::Failure;
use crate::io::show_line;
use crate::job::{self, JobFile};
use crate::progress::Progress;
use crate::signals::{Interrupts, StopRequest};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc::Sender;
use varuna_api::Job;
use varuna_coordinator::{Control, Options, Outcome, ScaleRequest, Timing, serve};
use varuna_plan::Costs;
use varuna_run_folder::LockedFolder;
use varuna_wire::process_host;

/// Run a coordinator for workers that are started elsewhere.
///
/// The first Ctrl-C stops the run in order, and the second one ends the coordinator at once. SIGTERM and a closed terminal stop the run in
/// order.
///
/// Start a worker on this machine with `varuna-worker --coordinator ADDRESS`. A worker on another machine also needs VARUNA_TOKEN,
/// VARUNA_CERTIFICATE (the text of certificate.pem in the run folder) and `--advertise HOST`, the host under which other workers reach it.
/// See docs/guides/several-machines.md.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The job file.
    #[arg(long)]
    job: PathBuf,
    /// Address on which to listen, host:port. An IPv6 address stands in brackets. Port 0 is any free port.
    #[arg(long, default_value = "127.0.0.1:7070")]
    bind: String,
    /// The run folder: a new or an empty one, or that of an earlier run. If it has the record of an earlier coordinator, this coordinator takes
    /// over its run.
    #[arg(long)]
    run_dir: PathBuf,
    /// Plan with this profile, which was measured for the model on the workers' devices (see varuna profile).
    #[arg(long)]
    profile: Option<PathBuf>,
    /// Token of the run. Workers and commands must present it.
    #[arg(long, env = "VARUNA_TOKEN", default_value = "", hide_env_values = true)]
    token: String,
    #[command(flatten)]
    exports: Exports,
    #[command(flatten)]
    security: Security,
}

/// Where a coordinator listens, and who may connect.
pub(crate) struct Endpoint<'a> {
    /// `host:port`.
    pub(crate) bind: String,
    /// Token of the run.
    pub(crate) token: String,
    /// What is asked beyond the token.
    pub(crate) security: &'a Security,
}

/// The workers that the coordinator's process starts and stops itself.
pub(crate) struct LocalWorkers {
    /// How many are started with the run.
    pub(crate) workers: usize,
    /// Takes requests for another number.
    pub(crate) scale: Sender<ScaleRequest>,
}

/// The costs of a profile, which must be of the job's model.
pub(crate) fn measured(profile: Option<&Path>, job: &Job) -> Result<Option<Costs>, Failure> {
    let Some(path) = profile else { return Ok(None) };
    let profile = crate::costs::read_profile(path, None)?;
    let costs = varuna_api::measured_costs(&profile, job);
    costs
        .map(Some)
        .map_err(|why| Failure::Input(format!("{}: {why}", path.display())))
}

/// Starts a coordinator on a run folder.
pub(crate) async fn start(
    file: JobFile,
    folder: &Path,
    endpoint: Endpoint<'_>,
    data_fingerprint: String,
    costs: Option<Costs>,
    local_workers: Option<LocalWorkers>,
) -> Result<Control, Failure> {
    let Endpoint {
        bind,
        token,
        security,
    } = endpoint;
    security.check(&bind, &token)?;
    // The folder's lock comes first: a second run in the folder must not claim the checkpoint location. The job is written to it only when
    // neither the job's location nor the certificate refuses the run.
    let locked = LockedFolder::lock(folder, &file.text)?;
    let ready = async {
        let identity = security.identity(folder)?;
        let checkpoints = job::checkpoints(&file.job, &data_fingerprint, folder).await?;
        Ok::<_, Failure>((identity, checkpoints))
    };
    let (identity, checkpoints) = match ready.await {
        Ok(ready) => ready,
        Err(failure) => {
            locked.give_up();
            return Err(failure);
        }
    };
    let run = locked.open()?;
    let JobFile { job, text, steps } = file;
    let timing = Timing::default();
    let allow_state_loss = job.lifecycle.allow_state_loss;
    let options = Options {
        job,
        steps,
        // A run folder belongs to one text of a job file, as it was when its run began.
        run: varuna_api::run_identity("", &text),
        job_text: text,
        data_fingerprint,
        bind,
        token,
        identity,
        host: local_workers.as_ref().map(|_| process_host()),
        expected_workers: local_workers.as_ref().map(|w| w.workers),
        allow_state_loss,
        timing,
        checkpoints,
        costs,
        scale: local_workers.map(|w| w.scale),
    };
    Ok(serve(options, run).await?)
}

/// A runtime for the commands that need one.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Failure::Internal(format!("cannot start: {e}")))
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    varuna_open_files::raise();
    let file = job::of_run(job::read(&arguments.job)?, &arguments.run_dir)?;
    let layout = file.job.layout();
    let steps = file.steps;
    // Perhaps only the workers have the data. If the fingerprint is known here, workers compare theirs with it.
    let fingerprint = job::check_data(&file.job).unwrap_or_default();
    let costs = measured(arguments.profile.as_deref(), &file.job)?;
    let name = file.job.name.clone();
    let outcome = runtime()?.block_on(async {
        let exports = arguments.exports.prepare().await?;
        let endpoint = Endpoint {
            bind: arguments.bind.clone(),
            token: arguments.token.clone(),
            security: &arguments.security,
        };
        let mut control = start(file, &arguments.run_dir, endpoint, fingerprint, costs, None).await?;
        // Whoever reads the line may stop the run at once.
        let mut interrupts = Interrupts::listen()?;
        show_line(&format!("coordinator at {}", control.address));
        let exports = exports.start(&name, &arguments.run_dir, control.view.clone());
        let mut progress = Progress::new(steps);
        loop {
            tokio::select! {
                outcome = &mut control.outcome => {
                    progress.end();
                    exports.end(&mut interrupts).await;
                    return outcome.map_err(|e| Failure::Internal(e.to_string()))?.map_err(Failure::from);
                }
                Ok(()) = control.view.changed() => progress.show(&control.view.borrow_and_update().clone()),
                asked = interrupts.next() => match asked {
                    StopRequest::Graceful => {
                        // One that waits already is enough.
                        let _ = control.save_and_stop.try_send(());
                    }
                    StopRequest::Immediate => {
                        progress.end();
                        return Ok(Outcome::Stopped);
                    }
                },
            }
        }
    })?;
    Failure::of_outcome(&outcome, &layout)
}
