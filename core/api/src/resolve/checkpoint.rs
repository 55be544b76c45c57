//! `spec.checkpoint` and `spec.integrity`: where and how often state is saved, and how often it is compared.

use super::check::{Check, quoted};
use crate::job::{Checkpoint, CheckpointSource};
use crate::limits;
use crate::manifest::{CheckpointSourceSpec, CheckpointSpec, IntegritySpec};

/// What a location of checkpoints is.
const LOCATION: &str = "a folder or the URI of a bucket";

pub(super) fn checkpoint(check: &mut Check, written: CheckpointSpec, job: &str) -> Checkpoint {
    let at = |field: &str| format!("spec.checkpoint.{field}");
    if written.interval_steps.is_none() && written.interval_seconds.is_none() {
        let allowed = "a number of steps here, or of seconds in intervalSeconds";
        check.0.push(&at("intervalSteps"), "missing", allowed);
    }
    let mut count =
        |field: &str, value: Option<u64>| value.map(|v| check.within(&at(field), v, limits::COUNT));
    let interval_steps = count("intervalSteps", written.interval_steps);
    let interval_seconds = count("intervalSeconds", written.interval_seconds);
    let upload = written.upload_per_second.as_ref();
    let upload_bytes_per_second = check.bytes(&at("uploadPerSecond"), upload);
    let uri = check.place(&at("uri"), written.uri, LOCATION);
    Checkpoint {
        from: written.from.map(|from| source(check, from, (&uri, job))),
        uri,
        interval_steps,
        interval_seconds,
        adaptive: written.adaptive.unwrap_or_else(Checkpoint::adaptive_by_default),
        keep: check.within(&at("keep"), written.keep.unwrap_or(3), limits::KEEP),
        upload_bytes_per_second,
    }
}

/// The job of this name, with checkpoints at `uri`, cannot begin with its own.
fn source(check: &mut Check, written: CheckpointSourceSpec, (uri, job): (&str, &str)) -> CheckpointSource {
    let at = |field: &str| format!("spec.checkpoint.from.{field}");
    let source = CheckpointSource {
        job: check.label(&at("job"), written.job),
        uri: match written.uri {
            Some(uri) => check.place(&at("uri"), Some(uri), LOCATION),
            None => uri.to_owned(),
        },
        step: written
            .step
            .map(|step| check.within(&at("step"), step, limits::COUNT_OR_NONE)),
        weights_only: written.weights_only.unwrap_or(false),
    };
    if source.job == job && is_same_place(&source.uri, uri) {
        let allowed =
            "another job, or one in another place: a job goes on from its own checkpoints by itself";
        check.0.push(&at("job"), quoted(job), allowed);
    }
    source
}

/// Whether two texts name the same place for certain, however often they write a slash or name the same folder once more. Two paths may
/// be the same place otherwise too, as through a link, which only the machine knows.
fn is_same_place(one: &str, other: &str) -> bool {
    let parts = |uri: &str| -> Vec<String> {
        let path = uri.strip_prefix("file://").unwrap_or(uri);
        // What begins with a slash is another place than what does not.
        let first = path.starts_with('/').then_some("/");
        let rest = path.split('/').filter(|part| !matches!(*part, "" | "."));
        first.into_iter().chain(rest).map(str::to_owned).collect()
    };
    parts(one) == parts(other)
}

pub(super) fn compare_every_steps(check: &mut Check, written: Option<IntegritySpec>) -> Option<u64> {
    let steps = written?.compare_every_steps?;
    Some(check.within("spec.integrity.compareEverySteps", steps, limits::COUNT))
}
