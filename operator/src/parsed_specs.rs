//! The specs of jobs, as they were parsed last: each generation of a spec is parsed once.

use crate::decide::ObservedJob;
use crate::job_object::JobObject;
use kube::{Resource as _, ResourceExt as _};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use varuna_api::Job;

/// What a parsed spec depends on: the generation, and the labels with the job's queue, which are no part of the spec and change no generation.
type Version = (i64, BTreeMap<String, String>);

/// A spec, or everything that is wrong with it, and the version that it was parsed from.
#[derive(Debug)]
struct ParsedSpec {
    version: Version,
    spec: Result<Job, String>,
}

/// The parsed specs of all jobs, by uid. They are boxed, because a map of such large values would leave much of its memory empty.
#[derive(Debug, Default)]
pub struct ParsedSpecs(Mutex<BTreeMap<String, Box<ParsedSpec>>>);

impl ParsedSpecs {
    /// The job of an object. Its spec is parsed only if that was not done for this version.
    #[must_use]
    pub fn job(&self, object: &JobObject) -> ObservedJob {
        let uid = object.uid().unwrap_or_default();
        let version = (object.meta().generation.unwrap_or(0), object.queue_labels());
        let known = {
            let specs = self.0.lock();
            let known = specs.get(&uid).filter(|known| known.version == version);
            known.map(|known| known.spec.clone())
        };
        let spec = known.unwrap_or_else(|| {
            let spec = object.parsed_spec();
            let parsed = ParsedSpec {
                version,
                spec: spec.clone(),
            };
            self.0.lock().insert(uid, Box::new(parsed));
            spec
        });
        object.observed(spec)
    }

    /// Forgets deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.0.lock().retain(|uid, _| exists(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use varuna_api::manifest::{API_VERSION, KIND, QUEUE_LABEL};

    /// The steps of a job with this generation and queue, whose spec names so many.
    fn steps(specs: &ParsedSpecs, generation: i64, queue: Option<&str>, steps: u64) -> u64 {
        let labels = queue.map(|queue| json!({ QUEUE_LABEL: queue }));
        let metadata =
            json!({ "name": "j", "namespace": "n", "uid": "u", "generation": generation, "labels": labels });
        let training =
            json!({ "globalBatchSize": 8, "steps": steps, "optimizer": { "learningRate": 0.001 } });
        let spec = json!({ "model": { "preset": "gpt2-tiny" }, "data": { "path": "d" }, "allowStateLoss": true, "training": training });
        let object: JobObject = serde_json::from_value(
            json!({ "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec }),
        )
        .unwrap();
        specs.job(&object).spec.unwrap().training.steps
    }

    #[test]
    fn a_spec_is_parsed_once_for_each_version() {
        let specs = ParsedSpecs::default();
        assert_eq!(steps(&specs, 1, None, 10), 10);
        // No server changes a spec without its generation: this shows that it is not parsed again.
        assert_eq!(steps(&specs, 1, None, 20), 10);
        assert_eq!(steps(&specs, 2, None, 30), 30);
        assert_eq!(steps(&specs, 2, Some("queue"), 40), 40, "another queue");
        specs.retain(|_| false);
        assert_eq!(steps(&specs, 2, Some("queue"), 50), 50, "it was forgotten");
    }
}
