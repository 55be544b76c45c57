//! `spec.checkpoint` and `spec.integrity`: where and how often state is saved, and how often it is compared.

use super::check::Check;
use crate::job::Checkpoint;
use crate::limits;
use crate::manifest::{CheckpointSpec, IntegritySpec};

pub(super) fn checkpoint(check: &mut Check, written: CheckpointSpec) -> Checkpoint {
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
    Checkpoint {
        uri: check.text(&at("uri"), written.uri, "a folder or the URI of a bucket"),
        interval_steps,
        interval_seconds,
        keep: check.within(&at("keep"), written.keep.unwrap_or(3), limits::KEEP),
        upload_bytes_per_second,
    }
}

pub(super) fn compare_every_steps(check: &mut Check, written: Option<IntegritySpec>) -> Option<u64> {
    let steps = written?.compare_every_steps?;
    Some(check.within("spec.integrity.compareEverySteps", steps, limits::COUNT))
}
