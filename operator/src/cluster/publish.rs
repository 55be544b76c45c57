//! Publishes reports on jobs in a separate task: a job's status if it changed, then its Events. No reconciliation waits for this, and
//! it never delays pods or orders.
//!
//! The latest status wins, with at most one write a second for each job. Each decision builds on the status before it. So until the watch
//! shows what was written, the last reported status is used instead ([`Publisher::status`]).

use super::connection::within;
use super::event_recorder::EventRecorder;
use super::joined_events::joined;
use crate::decide::{EventNote, News, ObservedJob, Report, news};
use crate::error::Error;
use crate::index::resource_version;
use crate::job_object::JobObject;
use crate::object_document::WithoutManagedFields;
use crate::resource::{JobIdentity, MANAGER};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::core::Request;
use kube::{Client, Resource as _};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use varuna_api::JobPhase;
use varuna_api::crd::Status;
use varuna_api::manifest::{API_VERSION, KIND};

/// Changes for which others wait ([`is_awaited`]) are one write if they come within this time.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// All other changes: what follows from a preemption until its replacement trains is reported within this time, and is one write then.
const FIGURES_DEBOUNCE: Duration = Duration::from_secs(8);
/// Sentences within this time are published together: no program acts on them, and a preemption with all its consequences takes about as
/// long.
const EVENTS_DEBOUNCE: Duration = FIGURES_DEBOUNCE;
/// Jobs that are published at the same time: few, because pods and orders use the same API server.
const CONCURRENCY: usize = 4;
/// A write that takes longer has failed.
const DEADLINE: Duration = Duration::from_secs(10);
/// The longest delay after a write that failed; the first is a second.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Sentences of a job that wait to be written; more are dropped.
const EVENTS_MAX: usize = 128;
/// Among them, sentences that stay true for a while. A dropped one is found again; other sentences come only once.
const LASTING_MAX: usize = EVENTS_MAX / 2;
/// How much later than statuses Events are written when the process ends.
const AFTER_STATUSES: Duration = Duration::from_millis(1);

/// What is read of the answer to a write, which is the whole job.
#[derive(Deserialize)]
struct Written {
    #[serde(default, with = "WithoutManagedFields")]
    metadata: ObjectMeta,
}

/// What is published of one job.
#[derive(Debug, Default)]
struct Publication {
    /// The status that was reported last; none where the watch shows it.
    status: Option<Arc<Status>>,
    /// Whether that status is not written yet.
    is_dirty: bool,
    is_being_written: bool,
    /// The version of the object that the last write has made.
    written: Option<u64>,
    /// The newest version of the object that the watch has shown.
    shown: Option<u64>,
    events: Vec<EventNote>,
    /// Time at which the Events are due.
    events_due: Option<Instant>,
    failures: u32,
    /// When it is due, if it is.
    due: Option<Instant>,
}

impl Publication {
    /// The watch has shown this version of the object.
    fn shown(&mut self, version: Option<u64>) {
        self.shown = self.shown.max(version);
        self.forget_if_shown();
    }

    /// Forgets the status once the watch has shown it: there is one for each job, and its object holds it as well.
    fn forget_if_shown(&mut self) {
        let is_shown = self.written.is_some() && self.written <= self.shown;
        if is_shown && !self.is_dirty && !self.is_being_written {
            self.status = None;
        }
    }
}

#[derive(Debug, Default)]
struct Publications {
    jobs: BTreeMap<String, (JobIdentity, Publication)>,
    due: BTreeSet<(Instant, String)>,
    /// Whether nothing more is reported. Then no write waits for later reports.
    is_last: bool,
}

impl Publications {
    fn of(&mut self, job: &ObservedJob) -> &mut Publication {
        let entry = self.jobs.entry(job.uid.clone());
        let new = || (JobIdentity::of(job), Publication::default());
        &mut entry.or_insert_with(new).1
    }

    fn schedule(&mut self, uid: &str, at: Instant) {
        if let Some((_, publication)) = self.jobs.get_mut(uid)
            && publication.due.is_none_or(|due| at < due)
            && !publication.is_being_written
        {
            if let Some(later) = publication.due.replace(at) {
                self.due.remove(&(later, uid.to_owned()));
            }
            self.due.insert((at, uid.to_owned()));
        }
    }

    /// The next one that is due, or when one will be.
    fn take_due(&mut self, now: Instant) -> Result<Work, Option<Instant>> {
        loop {
            let first = self.due.first().map(|(at, _)| *at);
            let Some((_, uid)) = first.filter(|at| *at <= now).and_then(|_| self.due.pop_first()) else {
                return Err(first);
            };
            if let Some((job, publication)) = self.jobs.get_mut(&uid) {
                publication.due = None;
                publication.is_being_written = true;
                // In the end all statuses come first.
                let only_status = self.is_last && publication.is_dirty;
                let says = !only_status && publication.events_due.take_if(|due| *due <= now).is_some();
                return Ok(Work {
                    job: job.clone(),
                    status: publication.status.clone().filter(|_| publication.is_dirty),
                    events: if says {
                        std::mem::take(&mut publication.events)
                    } else {
                        vec![]
                    },
                });
            }
        }
    }

    /// Makes all waiting writes due: no later reports are expected.
    fn flush_on_shutdown(&mut self, now: Instant) {
        self.is_last = true;
        let mut due = vec![];
        for (uid, (_, publication)) in &mut self.jobs {
            if let Some(events_due) = &mut publication.events_due {
                *events_due = now + AFTER_STATUSES;
                due.push((uid.clone(), *events_due));
            }
            if publication.is_dirty {
                due.push((uid.clone(), now));
            }
        }
        for (uid, at) in due {
            self.schedule(&uid, at);
        }
    }

    /// A job's write has ended. It has the new version if it has written a status.
    fn finish(&mut self, now: Instant, work: &Work, result: &kube::Result<Option<u64>>) {
        let uid = &work.job.uid;
        let Some((_, publication)) = self.jobs.get_mut(uid) else {
            return;
        };
        publication.is_being_written = false;
        let delay = match result {
            Ok(version) => {
                publication.failures = 0;
                // Another may have been reported meanwhile.
                if publication.status == work.status {
                    publication.is_dirty = false;
                }
                publication.written = version.or(publication.written);
                if self.is_last { Duration::ZERO } else { DEBOUNCE }
            }
            Err(_) => {
                publication.failures = publication.failures.saturating_add(1);
                RETRY_MAX.min(DEBOUNCE * (1 << publication.failures.min(5)))
            }
        };
        // The watch may have been quicker than the answer.
        publication.forget_if_shown();
        let events_due = publication.events_due;
        if publication.is_dirty {
            self.schedule(uid, now + delay);
        }
        if let Some(due) = events_due {
            self.schedule(uid, due);
        }
    }
}

/// What is written in one go.
struct Work {
    job: JobIdentity,
    status: Option<Arc<Status>>,
    events: Vec<EventNote>,
}

/// Publishes reports.
pub struct Publisher {
    client: Client,
    recorder: EventRecorder,
    publications: Mutex<Publications>,
    wake: Notify,
}

impl Publisher {
    /// A publisher that has published nothing yet.
    #[must_use]
    pub fn new(client: Client, recorder: EventRecorder) -> Publisher {
        Publisher {
            client,
            recorder,
            publications: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// The status to use instead of the one in a job's object of this version, because that is older; none if the object is up to date.
    ///
    /// # Errors
    /// The object is older, and the watch has shown a newer one since it was taken: that one has to be reconciled instead.
    pub fn status(&self, uid: &str, version: Option<u64>) -> Result<Option<Status>, Error> {
        let mut publications = self.publications.lock();
        let Some((_, publication)) = publications.jobs.get_mut(uid) else {
            return Ok(None);
        };
        publication.shown(version);
        if publication.status.is_none() && publication.written > version {
            return Err(Error::Stale);
        }
        Ok(publication.status.as_deref().cloned())
    }

    /// The watch has shown a job's object.
    pub fn shown(&self, job: &JobObject) {
        let uid = job.meta().uid.as_deref().unwrap_or_default();
        let mut publications = self.publications.lock();
        if let Some((_, publication)) = publications.jobs.get_mut(uid) {
            publication.shown(resource_version(job.meta()));
        }
    }

    /// Publishes a report in a while. Returns what it says that is new.
    pub fn report(&self, job: &ObservedJob, report: &Report) -> News {
        let news = news(&job.status, &report.status);
        if news > News::Nothing {
            let mut publications = self.publications.lock();
            let publication = publications.of(job);
            publication.status = Some(Arc::new(report.status.clone()));
            publication.is_dirty = true;
            let delay = if is_awaited(&job.status, &report.status) {
                DEBOUNCE
            } else {
                FIGURES_DEBOUNCE
            };
            publications.schedule(&job.uid, Instant::now() + delay);
            self.wake.notify_one();
        }
        for note in &report.events {
            self.note(job, note);
        }
        news
    }

    /// Publishes one sentence in a while, and logs it.
    pub fn note(&self, job: &ObservedJob, note: &EventNote) {
        if self.recorder.knows(&job.uid, note) {
            return;
        }
        let mut publications = self.publications.lock();
        let publication = publications.of(job);
        let is_known = note.lasting && publication.events.contains(note);
        let most = if note.lasting { LASTING_MAX } else { EVENTS_MAX };
        if is_known || publication.events.len() >= most {
            return;
        }
        publication.events.push(note.clone());
        let due = *publication
            .events_due
            .get_or_insert_with(|| Instant::now() + EVENTS_DEBOUNCE);
        publications.schedule(&job.uid, due);
        drop(publications);
        self.wake.notify_one();
        tracing::info!(
            job = job.name,
            namespace = job.namespace,
            generation = job.status.plan.as_ref().map_or(0, |p| p.generation),
            step = job.status.step.unwrap_or(0),
            reason = note.reason.as_str(),
            "{}",
            note.text
        );
    }

    /// The process ends: nothing more is reported, and what was is written at once.
    pub fn flush_on_shutdown(&self) {
        self.publications.lock().flush_on_shutdown(Instant::now());
        self.wake.notify_one();
    }

    /// Publishes what is due; ends once all is written of a process that ends ([`Publisher::flush_on_shutdown`]).
    pub async fn run(&self) {
        let mut writes = FuturesUnordered::new();
        loop {
            let next = loop {
                if writes.len() >= CONCURRENCY {
                    break None;
                }
                match self.publications.lock().take_due(Instant::now()) {
                    Ok(work) => writes.push(self.publish(work)),
                    Err(next) => break next,
                }
            };
            if next.is_none() && writes.is_empty() && self.publications.lock().is_last {
                return;
            }
            let idle = Instant::now() + Duration::from_secs(3600);
            tokio::select! {
                Some(()) = writes.next(), if !writes.is_empty() => {}
                () = self.wake.notified(), if writes.len() < CONCURRENCY => {}
                () = tokio::time::sleep_until(next.unwrap_or(idle)), if writes.len() < CONCURRENCY => {}
            }
        }
    }

    async fn publish(&self, work: Work) {
        let written = match &work.status {
            Some(status) => self.write(&work.job, status).await.map(Some),
            None => Ok(None),
        };
        if let Err(error) = &written {
            tracing::warn!(%error, job = work.job.name, namespace = work.job.namespace, "the status is not written");
        }
        let version = written.map(Option::flatten);
        // An earlier write may have recorded it in the meantime.
        let uid = &work.job.uid;
        let unrecorded = work.events.iter().filter(|note| !self.recorder.knows(uid, note));
        let unrecorded: Vec<EventNote> = unrecorded.cloned().collect();
        for event in joined(&unrecorded) {
            self.recorder.record(&work.job, &event.note, &event.lasting).await;
        }
        let mut publications = self.publications.lock();
        publications.finish(Instant::now(), &work, &version);
    }

    /// The version of the object with that status; none where the job is gone.
    async fn write(&self, job: &JobIdentity, status: &Status) -> kube::Result<Option<u64>> {
        // With its uid: another job of this name has nothing to do with it.
        let document = json!({
            "apiVersion": API_VERSION, "kind": KIND, "metadata": { "name": job.name, "uid": job.uid },
            "status": serde_json::to_value(status).map_err(kube::Error::SerdeError)?,
        });
        // Server-side apply removes the fields that are left out; another manager than that of the objects, as each owns its own.
        let params = PatchParams::apply(&format!("{MANAGER}-status")).force();
        let jobs = Request::new(JobObject::url_path(&(), Some(&job.namespace)));
        let patch = Patch::Apply(&document);
        let request = jobs.patch_subresource("status", &job.name, &params, &patch);
        let request = request.map_err(kube::Error::BuildRequest)?;
        match within(DEADLINE, self.client.request::<Written>(request)).await {
            Ok(object) => Ok(resource_version(&object.metadata)),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Forgets sentences that are old enough to be recorded again.
    pub fn forget_old(&self) {
        self.recorder.forget_old();
    }

    /// Forgets deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.publications.lock().jobs.retain(|uid, _| exists(uid));
        self.recorder.retain(exists);
    }
}

/// Whether programs wait for this change of a status: another phase. A job may switch between training and recovering several times within
/// a second.
fn is_awaited(before: &Status, after: &Status) -> bool {
    let phase = |status: &Status| match status.phase {
        Some(JobPhase::Recovering) => Some(JobPhase::Training),
        phase => phase,
    };
    phase(before) != phase(after)
}

#[cfg(test)]
mod tests;
