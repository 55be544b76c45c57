//! Publishes a report: one write of the job's status where that changed, then its Events.

use super::apply::MANAGER;
use super::event_recorder::EventRecorder;
use crate::decide::{EventNote, ObservedJob, Report};
use crate::error::Error;
use crate::resource::resource;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use varuna_api::manifest::{API_VERSION, KIND};

/// Publishes a report.
///
/// # Errors
/// The status cannot be written. Events that cannot be written are lost.
pub async fn publish(
    client: &Client,
    recorder: &EventRecorder,
    job: &ObservedJob,
    report: &Report,
) -> Result<(), Error> {
    if report.status != job.status {
        let status = json!({
            "apiVersion": API_VERSION, "kind": KIND, "metadata": { "name": job.name },
            "status": serde_json::to_value(&report.status).map_err(kube::Error::SerdeError)?,
        });
        // Server-side apply removes the fields that are left out; another manager than that of the objects, as each owns its own.
        let params = PatchParams::apply(&format!("{MANAGER}-status")).force();
        let jobs: Api<DynamicObject> = Api::namespaced_with(client.clone(), &job.namespace, &resource());
        jobs.patch_status(&job.name, &params, &Patch::Apply(&status))
            .await?;
    }
    for note in &report.events {
        publish_event(recorder, job, note).await;
    }
    Ok(())
}

/// Writes one sentence as an Event and into the log.
pub async fn publish_event(recorder: &EventRecorder, job: &ObservedJob, note: &EventNote) {
    if !recorder.record(job, note).await {
        return;
    }
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
