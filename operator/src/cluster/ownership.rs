//! Which objects belong to a job: those that the job controls, by uid. Any other object with the name of one of them is left alone. Pure.

use crate::decide::{JobPart, ObservedJob};
use crate::error::Error;
use kube::api::ObjectMeta;

/// Whether the job controls this object. Another job of the same name has another uid.
#[must_use]
pub fn is_of(metadata: &ObjectMeta, job: &ObservedJob) -> bool {
    let owners = metadata.owner_references.iter().flatten();
    owners
        .filter(|owner| owner.controller == Some(true))
        .any(|owner| owner.uid == job.uid)
}

/// Refuses an object that the job does not control.
///
/// # Errors
/// Somebody else has taken the name.
pub(super) fn verify(kind: &str, metadata: &ObjectMeta, job: &ObservedJob) -> Result<(), Error> {
    if is_of(metadata, job) {
        return Ok(());
    }
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true)).map_or_else(
        || "which no controller owns".to_owned(),
        |owner| format!("which {} {} (uid {}) owns", owner.kind, owner.name, owner.uid),
    );
    Err(Error::Refused {
        part: JobPart::Names,
        message: format!(
            "the job (uid {}) needs the name of {kind} {}, {owner}",
            job.uid,
            metadata.name.as_deref().unwrap_or_default()
        ),
    })
}
