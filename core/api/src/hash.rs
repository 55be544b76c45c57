//! Identities of a job's parts: SHA-256 over canonical JSON, the same in every process and build.

use crate::training::Training;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use varuna_model::Model;

/// Identity of a training computation (64 hex digits): the model, everything that fixes its numbers, and the data's
/// fingerprint. Workers with different hashes must not train together, and a checkpoint belongs to one hash.
#[must_use]
pub fn model_hash(model: &Model, training: &Training, data_fingerprint: &str) -> String {
    // Plain structs of numbers always serialise.
    let model = serde_json::to_value(model).unwrap_or_default();
    let training = serde_json::to_value(training).unwrap_or_default();
    of(
        "varuna-model-1",
        &[&model, &training, &Value::from(data_fingerprint)],
    )
}

/// Identity of a run (64 hex digits): the uid of its job's object (empty outside of a cluster) and the job's text with which the run began.
/// It hashes the text and not its meaning, because another release may know more settings or other defaults, and the run is still the same.
#[must_use]
pub fn run_identity(uid: &str, job_text: &str) -> String {
    of("varuna-run-1", &[&Value::from(uid), &Value::from(job_text)])
}

/// SHA-256 in hex over a purpose and values, each on a line of its own (JSON has no raw line breaks: no ambiguity).
pub(crate) fn of(purpose: &str, values: &[&Value]) -> String {
    let mut text = format!("{purpose}\n");
    for value in values {
        write_canonical(value, &mut text);
        text.push('\n');
    }
    sha256(text.as_bytes())
}

/// SHA-256 of a file's bytes in hex, as in `spec.model.exported.digest`.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// JSON without spaces, keys sorted: `serde_json`'s own order depends on a feature that any crate of the tree can turn on.
fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            out.push('{');
            for (i, key) in keys.into_iter().enumerate() {
                let comma = if i > 0 { "," } else { "" };
                let _ = write!(out, "{comma}{}:", Value::from(key.as_str()));
                write_canonical(&map[key], out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        scalar => {
            let _ = write!(out, "{scalar}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{model_hash, of, run_identity};
    use crate::{Schedule, Training, parse_job, resolve::tests::MINIMAL};
    use serde_json::json;

    #[test]
    fn the_order_of_keys_does_not_change_a_hash() {
        let (a, b) = (
            json!({"b": [1, 2.5], "a": {"y": null, "x": "é"}}),
            json!({"a": {"x": "é", "y": null}, "b": [1, 2.5]}),
        );
        assert_eq!(of("t", &[&a]), of("t", &[&b]));
        assert_ne!(of("t", &[&a]), of("u", &[&a]));
    }

    #[test]
    fn a_runs_identity_is_stable_and_depends_on_uid_and_text() {
        let base = run_identity("u", MINIMAL);
        // Workers of the previous release use this value.
        assert_eq!(
            base,
            "f8c3f7d1ca726db019454595ca282234788fbad978fb9cbe8e3c604c40838591"
        );
        assert_ne!(base, run_identity("v", MINIMAL));
        assert_ne!(base, run_identity("u", &MINIMAL.replace("200", "201")));
    }

    #[test]
    fn model_hash_depends_on_model_training_and_data() {
        let job = parse_job(MINIMAL).unwrap();
        let base = model_hash(&job.model, &job.training, "data");
        // This value must never change, because checkpoints contain it. If this fails, old checkpoints can no longer be loaded.
        assert_eq!(
            base,
            "ab90aab26eeaa067851afc48008c07fcf1420098b963c6802421a9ef286ab542"
        );
        let model = varuna_model::Transformer {
            dropout: 0.1,
            ..job.model.transformer().unwrap().clone()
        };
        assert_ne!(base, model_hash(&model.into(), &job.training, "data"));
        let other = |change: fn(&mut Training)| {
            let mut training = job.training.clone();
            change(&mut training);
            assert_ne!(base, model_hash(&job.model, &training, "data"));
        };
        other(|t| t.seed += 1);
        other(|t| t.learning_rate.schedule = Schedule::Linear);
        other(|t| t.optimizer.weight_decay_on.clear());
        assert_ne!(base, model_hash(&job.model, &job.training, "other"));
    }
}
