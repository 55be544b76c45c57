//! Says how a job is: one write of its status where that changed, then Events.

use crate::apply::MANAGER;
use crate::context::Context;
use crate::decide::{Desired, JobSeen, Note};
use crate::reconcile::Error;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType};
use serde_json::json;
use varuna_api::manifest::{API_VERSION, KIND};

/// An Event's note may have so many bytes.
const NOTE_MAX: usize = 1000;

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

/// Writes one Event.
pub async fn event(context: &Context, job: &JobSeen, note: &Note) {
    let about = ObjectReference {
        api_version: Some(API_VERSION.into()),
        kind: Some(KIND.into()),
        name: Some(job.name.clone()),
        namespace: Some(job.namespace.clone()),
        uid: Some(job.uid.clone()),
        ..ObjectReference::default()
    };
    let end = (0..=NOTE_MAX.min(note.text.len()))
        .rev()
        .find(|i| note.text.is_char_boundary(*i))
        .unwrap_or(0);
    let event = Event {
        type_: if note.warning {
            EventType::Warning
        } else {
            EventType::Normal
        },
        reason: note.reason.into(),
        note: Some(note.text[..end].to_owned()),
        action: note.reason.into(),
        secondary: None,
    };
    tracing::info!(
        job = job.name,
        namespace = job.namespace,
        reason = note.reason,
        "{}",
        note.text
    );
    if let Err(error) = context.recorder.publish(&event, &about).await {
        tracing::warn!(%error, job = job.name, "an Event is lost");
    }
}
