//! What all of the cluster's objects have in common.

use crate::resource::{JobRef, job_ref};
use kube::api::ObjectMeta;
use varuna_api::manifest::KIND;

/// The version of an object, as the number that it is; none where it is none.
#[must_use]
pub fn resource_version(metadata: &ObjectMeta) -> Option<u64> {
    metadata.resource_version.as_ref()?.parse().ok()
}

/// The uid of an object's controller.
pub(super) fn controller_uid(metadata: &ObjectMeta) -> Option<&str> {
    let mut owners = metadata.owner_references.iter().flatten();
    let controller = owners.find(|o| o.controller == Some(true))?;
    Some(&controller.uid)
}

/// The job that controls an object.
pub(super) fn job_of(metadata: &ObjectMeta) -> Option<JobRef> {
    let owners = metadata.owner_references.iter().flatten();
    let job = owners
        .filter(|o| o.controller == Some(true))
        .find(|o| o.kind == KIND)?;
    Some(job_ref(metadata.namespace.as_deref()?, &job.name))
}
