//! What a run is doing, as a document for tools; what stores and workers say, brought into shape.

use crate::checkpoints::Known;
use crate::driver::Attached;
use crate::folder::RunFolder;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use varuna_api::Job;
use varuna_checkpoint::folder_name;
use varuna_plan::WorkerId;
use varuna_protocol::coordinator::{Observed, Snapshot};
use varuna_wire::StepMetrics;

/// The content of `status.json`.
pub(crate) fn status_document(
    snapshot: &Snapshot,
    job: &Job,
    folder: &RunFolder,
    streams: &BTreeMap<WorkerId, Attached>,
    checkpoints: &Known,
) -> Value {
    let mut status = serde_json::to_value(snapshot).unwrap_or_default();
    let workers: Vec<Value> = snapshot
        .workers
        .iter()
        .filter(|w| w.up)
        .map(|worker| {
            let mut value = serde_json::to_value(worker).unwrap_or_default();
            if let (Some(fields), Some(stream)) = (value.as_object_mut(), streams.get(&worker.id)) {
                fields.insert("pid".into(), stream.hello.pid.into());
                fields.insert("host".into(), stream.hello.host.clone().into());
                fields.insert("device".into(), stream.hello.device.clone().into());
                fields.insert(
                    "timings".into(),
                    stream.timings.as_ref().map_or(Value::Null, timings),
                );
            }
            value
        })
        .collect();
    if let Some(fields) = status.as_object_mut() {
        fields.insert("job".into(), job.name.clone().into());
        fields.insert("loss".into(), folder.last().map(|m| m.loss).into());
        fields.insert("workers".into(), workers.into());
        if job.checkpoint.is_some() {
            let newest = checkpoints.usable.iter().max();
            let behind = newest.map(|id| snapshot.step.0.saturating_sub(id.step.0));
            let checkpoint = json!({
                "newest": newest.map(|id| folder_name(*id)), "newestStep": newest.map(|id| id.step), "stepsBehind": behind, "failing": checkpoints.failing,
            });
            fields.insert("checkpoint".into(), checkpoint);
        }
    }
    status
}

fn timings(t: &StepMetrics) -> Value {
    json!({
        "step": t.step, "stepMs": t.step_ms, "forwardMs": t.forward_ms, "backwardMs": t.backward_ms,
        "recomputeMs": t.recompute_ms, "waitMs": t.wait_ms, "reduceMs": t.reduce_ms, "applyMs": t.apply_ms,
    })
}

/// What the machine makes of a worker's metrics.
pub(crate) fn observed(metrics: &StepMetrics) -> Observed {
    let segments = metrics.segments.iter();
    Observed {
        generation: metrics.generation,
        step: metrics.step,
        micro_batch_size: metrics.micro_batch_size,
        busy_ms: metrics.forward_ms + metrics.backward_ms,
        segments: segments
            .map(|s| (s.segment, s.forward_ms + s.backward_ms))
            .collect(),
    }
}

/// What an object store's error says, without what differs from one try to the next: how long it took, and the number of the request.
pub(crate) fn in_short(error: &str) -> String {
    let head = error.split("<?xml").next().unwrap_or(error);
    let mut words = head
        .lines()
        .next()
        .unwrap_or("")
        .trim_end_matches([':', ' '])
        .to_owned();
    if let Some((before, after)) = words.split_once(" in ")
        && let Some((took, rest)) = after.split_once(" - ")
        && took.starts_with(|c: char| c.is_ascii_digit())
    {
        words = format!("{before}: {rest}");
    }
    let tag = |name: &str| {
        let (_, after) = error.split_once(&format!("<{name}>"))?;
        Some(after.split_once(&format!("</{name}>"))?.0)
    };
    match (tag("Code"), tag("Message")) {
        (Some(code), Some(message)) => format!("{words} ({code}: {message})"),
        (Some(code), None) => format!("{words} ({code})"),
        _ => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stores_error_reads_the_same_each_time() {
        let error = |took: &str, request: &str| {
            format!(
                "checkpoint store: Generic S3 error: Error performing list request: Error performing GET http://h:1/b?list-type=2 in {took} \
                 - Server returned non-2xx status code: 404 Not Found: <?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>NoSuchBucket\
                 </Code><Message>The specified bucket does not exist</Message><RequestId>{request}</RequestId></Error>"
            )
        };
        let words = in_short(&error("1.4ms", "a"));
        assert_eq!(words, in_short(&error("12.5ms", "b")));
        assert!(
            words.ends_with("b?list-type=2: Server returned non-2xx status code: 404 Not Found (NoSuchBucket: The specified bucket does not exist)"),
            "{words}"
        );
        assert_eq!(
            in_short("no space left in 3 folders"),
            "no space left in 3 folders"
        );
    }
}
