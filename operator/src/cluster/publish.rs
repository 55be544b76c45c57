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
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use varuna_api::crd::Status;
use varuna_api::manifest::{API_VERSION, KIND};

mod publications;

use publications::{Publications, Work};

/// Jobs that are published at the same time: few, because pods and orders use the same API server.
const CONCURRENCY: usize = 4;
/// A write that takes longer has failed.
const DEADLINE: Duration = Duration::from_secs(10);

/// What is read of the answer to a write, which is the whole job.
#[derive(Deserialize)]
struct Written {
    #[serde(default, with = "WithoutManagedFields")]
    metadata: ObjectMeta,
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
        self.publications.lock().status(uid, version)
    }

    /// The watch has shown a job's object.
    pub fn shown(&self, job: &JobObject) {
        let uid = job.meta().uid.as_deref().unwrap_or_default();
        let version = resource_version(job.meta());
        self.publications.lock().shown(uid, version);
    }

    /// Publishes a report in a while. Returns what it says that is new.
    pub fn report(&self, job: &ObservedJob, report: &Report) -> News {
        let news = news(&job.status, &report.status);
        if news > News::Nothing {
            let now = Instant::now();
            self.publications.lock().report(now, job, &report.status);
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
        let is_new = self.publications.lock().note(Instant::now(), job, note);
        if !is_new {
            return;
        }
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
            if next.is_none() && writes.is_empty() && self.publications.lock().is_last() {
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

    /// The version of the object with that status; none where the job is gone. A conflict is an error like any other, and is tried again: a webhook or a
    /// burst of other writes may be the reason. If it is that another job has the name by now, this one is soon forgotten ([`Publisher::retain`]).
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
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Forgets sentences that are old enough to be recorded again.
    pub fn forget_old(&self) {
        self.recorder.forget_old();
    }

    /// Forgets deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.publications.lock().retain(&exists);
        self.recorder.retain(exists);
    }
}

#[cfg(test)]
mod tests;
