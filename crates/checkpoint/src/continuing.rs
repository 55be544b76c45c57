//! What may have changed since a job's own checkpoint was saved. Other data is refused. Other settings are allowed, and named.

use crate::CheckpointError;
use crate::manifest::{Facts, Manifest};
use serde_json::Value;
use varuna_api::{Training, model_hash};
use varuna_model::Model;

/// Characters of a fingerprint that an error shows: enough to tell datasets apart.
const SHOWN: usize = 12;
/// Sizes of a model that may change, because no parameter has them as a dimension.
const FREE_SIZES: [&str; 2] = ["dropout", "sequenceLength"];

impl Manifest {
    /// Checks that a job may continue from this checkpoint of its own with its data. A fingerprint that is not known is not compared: an
    /// import has none, nor has a checkpoint that a coordinator without the data completed.
    ///
    /// # Errors
    /// The checkpoint was trained on other data.
    pub(crate) fn suits_data(&self, facts: &Facts) -> Result<(), CheckpointError> {
        let (own, of_job) = (&self.facts.data_fingerprint, &facts.data_fingerprint);
        if own.is_empty() || of_job.is_empty() || own == of_job {
            return Ok(());
        }
        Err(CheckpointError::OtherData {
            id: self.state,
            why: format!(
                "it was trained on other data than spec.data names (the fingerprint was {}, and is {} now): use the data of before, or give \
                 this job another name or checkpoint.uri, with checkpoint.from and weightsOnly: true to begin with these parameters",
                shown(own),
                shown(of_job)
            ),
        })
    }

    /// In which settings a job differs from the one that saved this checkpoint, as far as the manifest says. None if they are the same, or
    /// if the manifest has no hash of them. The hash includes the data, which are compared apart.
    pub(crate) fn other_settings(
        &self,
        facts: &Facts,
        (model, training): (&Model, &Training),
    ) -> Option<String> {
        let own = &self.facts;
        let same = model_hash(model, training, &own.data_fingerprint);
        if own.training_hash.is_empty() || own.training_hash == same {
            return None;
        }
        let mut named = Vec::new();
        let mut compare = |field: &str, was: Value, is: Value| {
            if was != is {
                named.push(format!("spec.{field} was {was}, and is {is}"));
            }
        };
        compare("training.seed", own.seed.into(), facts.seed.into());
        compare(
            "training.globalBatchSize",
            own.global_batch_size.into(),
            facts.global_batch_size.into(),
        );
        for size in FREE_SIZES {
            compare(
                &format!("model.{size}"),
                own.model[size].clone(),
                facts.model[size].clone(),
            );
        }
        if named.is_empty() {
            return Some(
                "another field of spec.training (such as steps), spec.data.packing or spec.model has changed"
                    .to_owned(),
            );
        }
        Some(named.join("; "))
    }
}

/// The beginning of a fingerprint. One from a manifest may be any text.
fn shown(fingerprint: &str) -> String {
    fingerprint.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_api::{Job, parse_job};
    use varuna_plan::{Moments, StateId};

    const JOB: &str = "{apiVersion: varuna.dev/v1alpha1, kind: VarunaJob, metadata: {name: j}, spec: {model: {preset: qwen3-tiny}, data: {path: d},
        training: {globalBatchSize: 8, steps: 9, seed: 1, optimizer: {learningRate: 0.1}}}}";

    fn facts(job: &Job, data: &str) -> Facts {
        Facts {
            job: job.name.clone(),
            model: serde_json::to_value(&job.model).unwrap(),
            training_hash: match data {
                "" => String::new(),
                known => model_hash(&job.model, &job.training, known),
            },
            seed: job.training.seed,
            global_batch_size: job.training.global_batch_size,
            data_fingerprint: data.to_owned(),
            moments: Moments::Adam,
        }
    }

    fn saved(job: &Job, data: &str) -> Manifest {
        Manifest::new(StateId::INITIAL, job.layout(), facts(job, data), Vec::new())
    }

    #[test]
    fn only_known_fingerprints_are_compared() {
        let job = parse_job(JOB).unwrap();
        let suits =
            |of_checkpoint: &str, of_job: &str| saved(&job, of_checkpoint).suits_data(&facts(&job, of_job));
        for (of_checkpoint, of_job) in [("a", "a"), ("", "a"), ("a", ""), ("", "")] {
            assert!(suits(of_checkpoint, of_job).is_ok(), "{of_checkpoint} {of_job}");
        }
        let long = "\u{e9}".repeat(40);
        let error = suits(&long, "b").unwrap_err();
        assert!(matches!(error, CheckpointError::OtherData { .. }) && error.is_final());
        let said = error.to_string();
        let expected = format!(
            "spec.data names (the fingerprint was {}, and is b now)",
            "\u{e9}".repeat(12)
        );
        assert!(
            said.contains(&expected) && said.contains("weightsOnly: true"),
            "{said}"
        );
    }

    #[test]
    fn changed_settings_are_named_as_far_as_they_are_known() {
        let before = parse_job(JOB).unwrap();
        // What the job says now, on data that a coordinator need not know.
        let other = |change: fn(&mut Job), of_checkpoint: &str| {
            let mut job = before.clone();
            change(&mut job);
            saved(&before, of_checkpoint).other_settings(&facts(&job, ""), (&job.model, &job.training))
        };
        assert_eq!(other(|_| (), "a"), None);
        let more: fn(&mut Job) = |job| job.training.global_batch_size = 16;
        assert_eq!(other(more, ""), None, "an import was not trained with any");
        let said = other(more, "a").unwrap();
        assert_eq!(said, "spec.training.globalBatchSize was 8, and is 16");
        let both: fn(&mut Job) = |job| {
            job.training.seed = 2;
            let Model::Transformer(model) = &mut job.model else {
                panic!("a transformer");
            };
            model.dropout = 0.5;
        };
        let said = other(both, "a").unwrap();
        let expected = "spec.training.seed was 1, and is 2; spec.model.dropout was ";
        assert!(
            said.starts_with(expected) && said.ends_with(", and is 0.5"),
            "{said}"
        );
        let said = other(|job| job.training.steps += 1, "a").unwrap();
        assert!(said.contains("another field of spec.training"), "{said}");
    }
}
