//! One job's coordinator: starts it, follows it, and tells it what to do.
//!
//! Its reports reach the controller as requests to reconcile the job: at once where the plan or the mode changed, from time to
//! time where only steps were committed.

use super::report::{observed_run, run_end, urgent_part};
use crate::backoff::Backoff;
use crate::cluster::observe::run_document;
use crate::cluster::record::{ClusterStore, begin_run};
use crate::decide::objects::record_name;
use crate::decide::{Credentials, JobPart, ObservedJob, ObservedRun, RunEnd};
use crate::error::Error;
use crate::metrics::{JobKey, Metrics, Recoveries};
use crate::resource::{JobRef, job_ref};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Instrument as _;
use varuna_api::{Job, Reason, parse_job_of_any_release, run_identity};
use varuna_checkpoint::{Claim, Store};
use varuna_coordinator::{
    Checkpointing, Control, Event, Identity, Options, RunFolder, Timing, View, WorkerNotice, serve_with,
};
use varuna_plan::Layout;

/// The job is reconciled at most this often for steps alone: a write of the status for each step would be too many.
const STEPS_INTERVAL: Duration = Duration::from_secs(15);
/// A run without checkpoints fails only after its workers were unreachable for this time: a network or a node that fails comes
/// back. Workers that are known to have ended are not waited for.
const LOST: Duration = Duration::from_secs(600);
/// The record is read this often to notice a newer coordinator: rarely, since the Lease ends this process first, and the next
/// write would notice it. More often would cost every idle job requests.
const WATCH: Duration = Duration::from_secs(300);
/// Sentences that wait to be recorded as Events; a job that is not reconciled for long loses the rest.
const SENTENCES_MAX: usize = 64;

/// Where the coordinators of this process listen and write.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// IP address at which workers reach this process.
    pub address: String,
    /// IP address on which coordinators listen; the port is any free one.
    pub bind: String,
    /// Folder of the run folders.
    pub folder: PathBuf,
}

/// Everything that the start of a coordinator needs besides its job.
pub struct Launcher {
    /// The API server.
    pub client: Client,
    /// Where coordinators listen and write.
    pub endpoint: Endpoint,
    /// What is measured.
    pub metrics: Arc<Metrics>,
    /// A coordinator that ends with an error is started again after a delay.
    pub backoff: Arc<Backoff>,
    /// Asks for a job to be reconciled.
    pub reconcile: Sender<JobRef>,
}

/// One running coordinator.
pub(super) struct Run {
    /// The job's uid: another object of the same name is another job.
    pub(super) uid: String,
    address: (String, u16),
    view: watch::Receiver<View>,
    /// Number of the last event of the coordinator that was taken.
    taken: u64,
    /// Recoveries and changes that are over and were not taken yet.
    resumed: Arc<Mutex<Vec<String>>>,
    stop: Sender<()>,
    save: Sender<()>,
    /// A checkpoint was ordered before the run is suspended.
    saving: bool,
    notices: Sender<WorkerNotice>,
    ended: Arc<Mutex<Option<RunEnd>>>,
    /// Ends the coordinator when dropped.
    _alive: AbortOnDrop,
}

/// Aborts a task when dropped.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Run {
    pub(super) fn observed(&self) -> ObservedRun {
        observed_run(
            &self.view.borrow(),
            self.address.clone(),
            self.ended.lock().clone(),
        )
    }

    /// Takes the sentences that were not recorded as Events yet.
    pub(super) fn take_sentences(&mut self) -> Vec<(Reason, String)> {
        let view = self.view.borrow();
        let new = view.messages.iter().filter(|(number, _)| *number > self.taken);
        let mut sentences: Vec<_> = new.map(|(_, text)| (Reason::Run, text.clone())).collect();
        self.taken = view
            .messages
            .back()
            .map_or(self.taken, |(number, _)| self.taken.max(*number));
        let resumed = std::mem::take(&mut *self.resumed.lock());
        sentences.extend(resumed.into_iter().map(|text| (Reason::Resumed, text)));
        sentences
    }

    /// Tells the coordinator what the cluster shows about its workers.
    pub(super) fn notify(&self, notices: &[WorkerNotice]) {
        for notice in notices {
            // If the channel is full, the next reconciliation tells it.
            let _ = self.notices.try_send(notice.clone());
        }
    }

    /// Orders a checkpoint each time that `wanted` becomes true.
    pub(super) fn save(&mut self, wanted: bool) {
        if wanted && !self.saving {
            // If the channel is full, one is ordered already.
            let _ = self.save.try_send(());
        }
        self.saving = wanted;
    }

    /// Ends the run in an orderly way.
    pub(super) fn stop(&self) {
        // If the channel is full, it was asked before; if it is closed, it has ended.
        let _ = self.stop.try_send(());
    }
}

impl Launcher {
    /// Starts the coordinator of a job: with its present spec where `takes_spec`, else with the one that its run began with.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) async fn start(
        &self,
        observed: &ObservedJob,
        spec: &Value,
        takes_spec: bool,
        credentials: Credentials,
    ) -> Result<Run, Error> {
        let text = run_document(&observed.name, &observed.namespace, spec).to_string();
        let text = begin_run(&self.client, observed, &text, takes_spec).await?;
        let job = parse_job_of_any_release(&text).map_err(Error::coordinator)?;
        let run = run_identity(&observed.uid, &text);
        let layout = job.model.layout();
        // A folder is of one text: a job that was changed while it was suspended has another.
        let folder = format!("{}-{}-{run}", observed.name, observed.uid);
        let folder =
            RunFolder::open(&self.endpoint.folder.join(folder), &text).map_err(Error::coordinator)?;
        let options = self.options(observed, (job, text, run), credentials)?;
        let record = ClusterStore::new(
            Api::namespaced(self.client.clone(), &observed.namespace),
            record_name(observed),
            observed.uid.clone(),
            tokio::runtime::Handle::current(),
        );
        let (job, namespace) = (&observed.name, &observed.namespace);
        let control = serve_with(options, folder, Box::new(record))
            .instrument(tracing::info_span!("run", job, namespace))
            .await
            .map_err(Error::coordinator)?;
        tracing::info!(job, namespace, address = %control.address, "coordinator started");
        Ok(self.follow(observed, control, layout))
    }

    fn options(
        &self,
        observed: &ObservedJob,
        (job, text, run): (Job, String, String),
        credentials: Credentials,
    ) -> Result<Options, Error> {
        let store = Store::of_job(&job, "");
        let store = store.map_err(|e| Error::coordinator(format!("spec.checkpoint.uri: {e}")))?;
        // Without a process: another leader takes the location over for the same job.
        let claim = Claim {
            run: format!("{}/{} {}", observed.namespace, observed.name, observed.uid),
            machine: String::new(),
            process: 0,
            started: 0,
        };
        let keep = job.checkpoint.as_ref().map_or(0, |c| c.keep as usize);
        let identity: Option<Identity> = credentials.identity;
        Ok(Options {
            job,
            job_text: text,
            run,
            data_fingerprint: String::new(),
            bind: format!("{}:0", self.endpoint.bind),
            token: credentials.token,
            identity,
            host: None,
            expected_workers: None,
            timing: Timing {
                lost: LOST,
                watch: WATCH,
                ..Timing::default()
            },
            checkpoints: store.map(|store| Checkpointing {
                store,
                keep,
                claim,
                ownership: None,
            }),
            costs: None,
            scale: None,
        })
    }

    /// Follows a coordinator until it ends.
    fn follow(&self, job: &ObservedJob, control: Control, layout: Layout) -> Run {
        let reference = job_ref(&job.namespace, &job.name);
        let ended = Arc::new(Mutex::new(None));
        let resumed = Arc::new(Mutex::new(vec![]));
        let run = Run {
            uid: job.uid.clone(),
            address: (self.endpoint.address.clone(), control.address.port()),
            view: control.view.clone(),
            taken: 0,
            resumed: Arc::clone(&resumed),
            stop: control.stop,
            save: control.save,
            saving: false,
            notices: control.notices,
            ended: Arc::clone(&ended),
            _alive: AbortOnDrop(control.outcome.abort_handle()),
        };
        let requests =
            request_reconciliations(control.view.clone(), reference.clone(), self.reconcile.clone());
        let key = (job.namespace.clone(), job.name.clone());
        let measurements = measure(control.view, key, Arc::clone(&self.metrics), resumed);
        let (outcome, reconcile) = (control.outcome, self.reconcile.clone());
        let (backoff, job) = (Arc::clone(&self.backoff), job.clone());
        tokio::spawn(async move {
            let result = tokio::select! {
                result = outcome => result,
                () = requests => return,
                () = measurements => return,
            };
            let end = match result {
                // It was dropped: the job is deleted, or another one has taken its name.
                Err(error) if error.is_cancelled() => return,
                Err(error) => RunEnd::Failed(error.to_string()),
                Ok(result) => run_end(result, &layout),
            };
            tracing::info!(job = %reference, ?end, "coordinator ended");
            if let RunEnd::Failed(message) = &end {
                backoff.failed(&job, JobPart::Coordinator, message);
            }
            *ended.lock() = Some(end);
            let _ = reconcile.send(reference).await;
        });
        run
    }
}

/// Measures what the coordinator reports. Never ends: the coordinator's outcome ends the task.
async fn measure(
    mut view: watch::Receiver<View>,
    job: JobKey,
    metrics: Arc<Metrics>,
    resumed: Arc<Mutex<Vec<String>>>,
) {
    let mut recoveries = Recoveries::default();
    let (mut last_event, mut lost) = (0, 0);
    while view.changed().await.is_ok() {
        let view = view.borrow_and_update();
        metrics.jobs.observe(&job, &view, metrics.jobs.now());
        let known = last_event;
        for (number, at, event) in view.events.iter().filter(|(n, _, _)| *n > known) {
            last_event = *number;
            for measured in recoveries.observe(*at, event) {
                metrics.recovered(&measured);
                if let Some(sentence) = measured.sentence(event, lost) {
                    lost = 0;
                    let mut resumed = resumed.lock();
                    resumed.push(sentence);
                    resumed.truncate(SENTENCES_MAX);
                }
            }
            if let (
                Event::Resumed {
                    base, restored: true, ..
                },
                Some(last),
            ) = (event, &view.metric)
            {
                lost = last.step.0.saturating_sub(base.step.0);
                metrics.jobs.lost(&job, lost, last.step_ms);
            }
        }
    }
    metrics.jobs.run_ended(&job);
    std::future::pending().await
}

/// Asks for reconciliations of the job. Ends only when the controller has: the coordinator's outcome ends the task.
async fn request_reconciliations(mut view: watch::Receiver<View>, job: JobRef, reconcile: Sender<JobRef>) {
    let mut last = None;
    let mut next = Instant::now();
    while view.changed().await.is_ok() {
        let now = Some(urgent_part(&view.borrow_and_update()));
        if last == now && Instant::now() < next {
            continue;
        }
        last = now;
        next = Instant::now() + STEPS_INTERVAL;
        if reconcile.send(job.clone()).await.is_err() {
            return;
        }
    }
    std::future::pending().await
}
