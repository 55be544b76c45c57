//! Says how a job is: one write of its status where that changed, then Events.

use crate::apply::MANAGER;
use crate::context::Context;
use crate::decide::{Desired, JobSeen, Note};
use crate::reconcile::Error;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use varuna_api::manifest::{API_VERSION, KIND};

/// Publishes.
///
/// # Errors
/// The status cannot be written. Events that cannot be written are lost.
pub async fn publish(context: &Context, job: &JobSeen, desired: &Desired) -> Result<(), Error> {
    if desired.status != job.status {
        let status = json!({
            "apiVersion": API_VERSION, "kind": KIND, "metadata": { "name": job.name },
            "status": serde_json::to_value(&desired.status).unwrap_or_default(),
        });
        // Applied, so that what is no longer said goes; the manager of the objects has no part in it.
        let params = PatchParams::apply(&format!("{MANAGER}-status")).force();
        context
            .jobs(&job.namespace)
            .patch_status(&job.name, &params, &Patch::Apply(&status))
            .await?;
    }
    for note in &desired.notes {
        event(context, job, note).await;
    }
    Ok(())
}

/// Says one sentence: to whoever reads Events, and to whoever reads logs.
pub async fn event(context: &Context, job: &JobSeen, note: &Note) {
    if !context.diary.write(job, note).await {
        return;
    }
    tracing::info!(
        job = job.name,
        namespace = job.namespace,
        generation = job.status.plan.as_ref().map_or(0, |p| p.generation),
        step = job.status.step.unwrap_or(0),
        reason = note.reason,
        "{}",
        note.text
    );
}
