//! The queue of a job. It is a label, as with all kinds of jobs that Kueue manages.

use super::check::{Check, quoted};
use crate::manifest::{Metadata, PRIORITY_CLASS_LABEL, QUEUE_LABEL, Spec};

/// The name of the job's queue. A queue may take its quota back at any time, so the job must save checkpoints or allow the loss of its state.
pub(super) fn queue(check: &mut Check, metadata: &Metadata, spec: &Spec) -> Option<String> {
    let name = metadata.labels.as_ref()?.get(QUEUE_LABEL)?;
    let path = format!("metadata.labels.{QUEUE_LABEL}");
    let keeps_state = spec.checkpoint.is_some() || spec.allow_state_loss == Some(true);
    if !keeps_state {
        let allowed = "a queue only with spec.checkpoint, or with spec.allowStateLoss true: it may take its quota back at any time, and then the \
                       workers end";
        check.0.push(&path, quoted(name), allowed);
    }
    Some(check.label(&path, Some(name.clone())))
}

/// The name of the job's priority class in its queue.
pub(super) fn workload_priority_class(check: &mut Check, metadata: &Metadata) -> Option<String> {
    let name = metadata.labels.as_ref()?.get(PRIORITY_CLASS_LABEL)?;
    let path = format!("metadata.labels.{PRIORITY_CLASS_LABEL}");
    Some(check.dotted_name(&path, name.clone()))
}
