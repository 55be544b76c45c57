//! The coordinators that run in this process, one for each job.
//!
//! A coordinator's word reaches the controller as a wish to look at the job: at once where the plan or the mode changed, now
//! and then where only steps went by.

use crate::context::{Context, JobRef, lock, resource};
use crate::credentials::credentials;
use crate::decide::objects::{metadata, record_name};
use crate::decide::{Credentials, Ending, JobSeen, Refused, RunSeen, Wish};
use crate::metrics::{JobKey, Metrics, Recoveries};
use crate::observe;
use crate::reconcile::Error;
use crate::record::ClusterStore;
use kube::Api;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Instrument as _;
use varuna_api::parse_job;
use varuna_checkpoint::{Claim, Store};
use varuna_coordinator::{
    Checkpointing, Control, CoordinatorError, Event, Known, Options, Outcome, RunFolder, RunMode, Timing,
    View, serve_with,
};
use varuna_plan::Layout;

/// The status follows steps at most so often: a write for each step would be too many.
const STEPS: Duration = Duration::from_secs(15);

/// A run without checkpoints is given up only after its workers were out of reach for so long: a network or a node that fails comes
/// back. Workers that are known to have ended are not waited for.
const LOST: Duration = Duration::from_secs(600);

/// The record is read so often to see a newer coordinator: rarely, since the Lease ends this process first, and the next write would
/// find out. More often would cost every job at rest requests.
const WATCH: Duration = Duration::from_secs(300);

/// Sentences for people; at most [`STORIES_MAX`].
type Stories = Arc<Mutex<Vec<String>>>;
/// A job that is not looked at for long loses the rest.
const STORIES_MAX: usize = 64;

/// One coordinator.
struct Run {
    /// The job's object: another object of the same name is another job.
    uid: String,
    port: u16,
    view: watch::Receiver<View>,
    /// Number of the last diary entry that was told.
    told: u64,
    /// Recoveries and changes that are over and were not told yet.
    stories: Stories,
    stop: Sender<()>,
    save: Sender<()>,
    /// A checkpoint was ordered before the run is suspended.
    saving: bool,
    known: Sender<Known>,
    ended: Arc<Mutex<Option<Ending>>>,
    /// Ends the coordinator when dropped.
    _alive: Alive,
}

/// Aborts a task when dropped.
struct Alive(tokio::task::AbortHandle);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// All coordinators of this process.
#[derive(Default)]
pub struct Runs {
    runs: Mutex<BTreeMap<(String, String), Run>>,
    /// By the job's identity.
    credentials: Mutex<BTreeMap<String, Credentials>>,
}

fn key(job: &JobSeen) -> (String, String) {
    (job.namespace.clone(), job.name.clone())
}

impl Runs {
    pub(crate) fn credentials(&self, uid: &str) -> Option<Credentials> {
        lock(&self.credentials).get(uid).cloned()
    }

    pub(crate) fn keep_credentials(&self, uid: &str, credentials: &Credentials) {
        lock(&self.credentials).insert(uid.to_owned(), credentials.clone());
    }

    /// What a job's coordinator tells, if it runs here.
    #[must_use]
    pub fn seen(&self, job: &JobSeen, address: &str) -> Option<RunSeen> {
        let runs = lock(&self.runs);
        let run = runs.get(&key(job)).filter(|r| r.uid == job.uid)?;
        let view = run.view.borrow().clone();
        Some(RunSeen {
            address: Some((address.to_owned(), run.port)),
            ended: lock(&run.ended).clone(),
            ..observe::run(&view)
        })
    }

    /// What was not told yet, by reason; it is from now on.
    #[must_use]
    pub fn diary(&self, job: &JobSeen) -> Vec<(&'static str, String)> {
        let mut runs = lock(&self.runs);
        let Some(run) = runs.get_mut(&key(job)).filter(|r| r.uid == job.uid) else {
            return vec![];
        };
        let view = run.view.borrow();
        let new: Vec<_> = view
            .diary
            .iter()
            .filter(|(number, _)| *number > run.told)
            .cloned()
            .collect();
        drop(view);
        run.told = new.last().map_or(run.told, |(number, _)| *number);
        let stories = std::mem::take(&mut *lock(&run.stories));
        let lines = new.into_iter().map(|(_, text)| ("Run", text));
        lines
            .chain(stories.into_iter().map(|text| ("Resumed", text)))
            .collect()
    }

    /// Tells a job's coordinator what the cluster knows of its workers.
    pub fn tell(&self, job: &JobSeen, known: &[Known]) {
        let runs = lock(&self.runs);
        let Some(run) = runs.get(&key(job)).filter(|r| r.uid == job.uid) else {
            return;
        };
        for known in known {
            // Full: it is told at the next look.
            let _ = run.known.try_send(known.clone());
        }
    }

    /// Ends the coordinators of jobs that are no more.
    pub fn retain(&self, exists: impl Fn(&str, &str) -> bool) {
        lock(&self.runs).retain(|(namespace, name), _| exists(namespace, name));
    }

    /// Orders one checkpoint each time that one is wished for after it was not.
    fn save(&self, job: &JobSeen, wished: bool) {
        if let Some(run) = lock(&self.runs).get_mut(&key(job)) {
            if wished && !run.saving {
                // Full: one is ordered already.
                let _ = run.save.try_send(());
            }
            run.saving = wished;
        }
    }

    fn end(&self, job: &JobSeen) {
        lock(&self.runs).remove(&key(job));
    }
}

/// Starts, stops or ends a job's coordinator.
///
/// # Errors
/// It cannot be started.
pub async fn carry_out(context: &Arc<Context>, job: &JobSeen, spec: &Value, wish: Wish) -> Result<(), Error> {
    let seen = context.runs.seen(job, &context.place.address);
    match (wish, seen) {
        (Wish::Gone, None) => {}
        (Wish::Gone, Some(_)) => context.runs.end(job),
        (Wish::Stop, _) => {
            let stop = lock(&context.runs.runs).get(&key(job)).map(|r| r.stop.clone());
            if let Some(stop) = stop {
                // Full: it was asked before. Closed: it has ended.
                let _ = stop.try_send(());
            }
        }
        (Wish::Run | Wish::Save, Some(run)) if run.ended.is_none() => {
            context.runs.save(job, wish == Wish::Save);
        }
        (Wish::Run | Wish::Save, _) => {
            context.runs.end(job);
            start(context, job, spec).await?;
        }
    }
    Ok(())
}

async fn start(context: &Arc<Context>, seen: &JobSeen, spec: &Value) -> Result<(), Error> {
    let text = observe::run_document(&seen.name, &seen.namespace, spec).to_string();
    let failed = |e: &dyn std::fmt::Display| Error::coordinator(e);
    let job = parse_job(&text).map_err(|e| failed(&e))?;
    let folder = context.place.folder.join(format!("{}-{}", seen.name, seen.uid));
    let folder = RunFolder::open(&folder, &text).map_err(|e| failed(&e))?;
    let store =
        Store::of_job(&job, "").map_err(|e| Error::coordinator(&format!("spec.checkpoint.uri: {e}")))?;
    // Of no process: another leader of the same job takes over.
    let claim = Claim {
        run: format!("{}/{} {}", seen.namespace, seen.name, seen.uid),
        machine: String::new(),
        process: 0,
        started: 0,
    };
    let Credentials { token, identity } = credentials(context, seen).await?;
    let layout = job.model.layout();
    let keep = job.checkpoint.as_ref().map_or(0, |c| c.keep as usize);
    let options = Options {
        job,
        job_text: text,
        data_fingerprint: String::new(),
        bind: format!("{}:0", context.place.bind),
        token,
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
    };
    let name = record_name(&seen.name);
    let secrets = Api::namespaced(context.client.clone(), &seen.namespace);
    let record = ClusterStore::new(
        secrets,
        name.clone(),
        metadata(seen, &name),
        tokio::runtime::Handle::current(),
    );
    let control = serve_with(options, folder, Box::new(record))
        .instrument(tracing::info_span!(
            "run",
            job = seen.name,
            namespace = seen.namespace
        ))
        .await
        .map_err(|e| failed(&e))?;
    tracing::info!(job = seen.name, namespace = seen.namespace, address = %control.address, "coordinator started");
    follow(context, seen, control, layout);
    Ok(())
}

/// Keeps the coordinator, and tells the controller of what changes.
fn follow(context: &Arc<Context>, job: &JobSeen, control: Control, layout: Layout) {
    let reference = JobRef::new_with(&job.name, resource()).within(&job.namespace);
    let Control {
        address,
        view,
        stop,
        save,
        known,
        outcome,
        ..
    } = control;
    let ended = Arc::new(Mutex::new(None));
    let (tell, wake) = (Arc::clone(&ended), context.wake.clone());
    let alive = Alive(outcome.abort_handle());
    let (watched, shared, seen) = (view.clone(), Arc::clone(context), job.clone());
    let (measured, name, metrics) = (view.clone(), key(job), Arc::clone(&context.health.metrics));
    let stories = Stories::default();
    let tells = Arc::clone(&stories);
    tokio::spawn(async move {
        let result = tokio::select! {
            result = outcome => result,
            () = pass_on(watched, reference.clone(), wake.clone()) => return,
            () = measure(measured, name, metrics, tells) => return,
        };
        let ending = match result {
            // It was dropped: the job is gone, or another one has taken its name.
            Err(error) if error.is_cancelled() => return,
            Err(error) => Ending::Broken(error.to_string()),
            Ok(Err(CoordinatorError::CheckpointsTaken { run })) => Ending::Taken(run),
            Ok(Err(error)) => Ending::Broken(error.to_string()),
            Ok(Ok(Outcome::Done)) => Ending::Done,
            Ok(Ok(Outcome::Stopped)) => Ending::Stopped,
            Ok(Ok(Outcome::StateLost { units })) => Ending::StateLost(layout.name(&units)),
            Ok(Ok(Outcome::Deposed)) => Ending::Broken("another coordinator has taken over".into()),
        };
        tracing::info!(job = %reference, ?ending, "coordinator ended");
        if let Ending::Broken(words) = &ending {
            shared.setbacks.hit(&seen, Refused::Coordinator, words);
        }
        *lock(&tell) = Some(ending);
        let _ = wake.send(reference).await;
    });
    let run = Run {
        uid: job.uid.clone(),
        port: address.port(),
        view,
        told: 0,
        stories,
        stop,
        save,
        saving: false,
        known,
        ended,
        _alive: alive,
    };
    lock(&context.runs.runs).insert(key(job), run);
}

/// Measures what the coordinator tells. Never ends while it lives.
async fn measure(mut view: watch::Receiver<View>, job: JobKey, metrics: Arc<Metrics>, stories: Stories) {
    let mut watch = Recoveries::default();
    let (mut heard, mut lost) = (0, 0);
    while view.changed().await.is_ok() {
        let view = view.borrow_and_update();
        metrics.jobs.saw(&job, &view, metrics.jobs.now());
        let known = heard;
        for (number, at, event) in view.happened.iter().filter(|(n, _, _)| *n > known) {
            heard = *number;
            for measured in watch.hear(*at, event) {
                metrics.recovered(&measured);
                if let Some(story) = measured.sentence(event, lost) {
                    lost = 0;
                    let mut stories = lock(&stories);
                    stories.push(story);
                    stories.truncate(STORIES_MAX);
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
    // The outcome says the rest.
    std::future::pending().await
}

/// Never ends while the coordinator lives, unless nobody listens any more.
async fn pass_on(mut view: watch::Receiver<View>, job: JobRef, wake: Sender<JobRef>) {
    let mut told: Option<(RunMode, i64, i64, i64)> = None;
    let mut next = Instant::now();
    loop {
        if view.changed().await.is_err() {
            // The outcome says the rest.
            return std::future::pending().await;
        }
        let seen = observe::run(&view.borrow_and_update().clone());
        let now = (seen.mode, seen.generation, seen.members, seen.attached);
        if told.as_ref() == Some(&now) && Instant::now() < next {
            continue;
        }
        told = Some(now);
        next = Instant::now() + STEPS;
        if wake.send(job.clone()).await.is_err() {
            return;
        }
    }
}
