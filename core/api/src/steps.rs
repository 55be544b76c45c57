//! The number of steps of a run that has begun. It is the only part of the job that may change, and it may only grow, because everything
//! else determines the numbers of the run.
//!
//! A run uses the job's text as it was when the run began, including its `training.steps`: this is where the learning rate's decay ends,
//! unless the job sets that itself, and it is part of a checkpoint's identity. So a greater number never changes the curve of the steps
//! that were trained, and the old checkpoints still belong to the run.

use crate::error::{Found, JobError};
use crate::manifest::VarunaJob;
use crate::read::{self, UnknownFields};
use serde_json::Value;

const STEPS: &str = "spec.training.steps";
/// Maximum number of characters of a value that are shown.
const SHOWN_MAX: usize = 60;

/// The number of steps that a job requests of the run that began with the text `begun`. `now`: its present text. Texts that differ only in
/// form are the same job.
///
/// # Errors
/// One of them is not a job, they differ in anything except `training.steps`, or the number of steps decreased.
pub fn steps_of_run(begun: &str, now: &str) -> Result<u64, JobError> {
    let (begun, now) = (manifest(begun)?, manifest(now)?);
    let (had, wanted) = (steps(&begun)?, steps(&now)?);
    let (begun, now) = (without_steps(begun), without_steps(now));
    if let Some((path, now, begun)) = difference("", &begun, &now) {
        return Err(JobError {
            path,
            value: now,
            allowed: format!(
                "{begun}, as the run began: of a run that has begun only training.steps may change"
            ),
        });
    }
    if wanted < had {
        return Err(JobError {
            path: STEPS.to_owned(),
            value: wanted.to_string(),
            allowed: format!(
                "at least {had}, as the run began: steps can be added, not taken away; stop the run to end it sooner"
            ),
        });
    }
    Ok(wanted)
}

/// The document of a job whose run is resumed with another spec, with the number of steps with which its run began.
#[must_use]
pub fn with_steps_of(begun: &Value, mut now: Value) -> Value {
    let steps = begun.pointer("/spec/training/steps");
    if let (Some(begun), Some(now)) = (steps, now.pointer_mut("/spec/training/steps")) {
        *now = begun.clone();
    }
    now
}

fn manifest(text: &str) -> Result<VarunaJob, JobError> {
    let mut found = Found::default();
    let manifest = read::manifest(text, UnknownFields::LeftOut, &mut found);
    found.finish(manifest).map_err(|errors| errors.first())
}

fn steps(job: &VarunaJob) -> Result<u64, JobError> {
    let training = job.spec.as_ref().and_then(|spec| spec.training.as_ref());
    training.and_then(|t| t.steps).ok_or_else(|| JobError {
        path: STEPS.to_owned(),
        value: "missing".to_owned(),
        allowed: "a whole number".to_owned(),
    })
}

fn without_steps(mut job: VarunaJob) -> Value {
    if let Some(training) = job.spec.as_mut().and_then(|spec| spec.training.as_mut()) {
        training.steps = None;
    }
    // Plain structs of numbers, texts and maps always serialise.
    serde_json::to_value(job).unwrap_or_default()
}

/// The first field, in the order of names, that differs: its path, its present value, its former value.
fn difference(path: &str, begun: &Value, now: &Value) -> Option<(String, String, String)> {
    if let (Value::Object(begun), Value::Object(now)) = (begun, now) {
        let mut names: Vec<&String> = begun.keys().chain(now.keys()).collect();
        names.sort_unstable();
        return names.into_iter().find_map(|name| {
            let field = |map: &serde_json::Map<String, Value>| map.get(name).cloned().unwrap_or_default();
            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            difference(&path, &field(begun), &field(now))
        });
    }
    (begun != now).then(|| (path.to_owned(), shown(now), shown(begun)))
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::Null => return "left out".to_owned(),
        value => value.to_string(),
    };
    if text.chars().count() <= SHOWN_MAX {
        return text;
    }
    text.chars().take(SHOWN_MAX - 3).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::tests::MINIMAL;
    use crate::{model_hash, parse_job};
    use proptest::prelude::*;

    fn more(steps: u64) -> String {
        MINIMAL.replace("steps: 200", &format!("steps: {steps}"))
    }

    fn refused(begun: &str, now: &str) -> String {
        steps_of_run(begun, now).unwrap_err().to_string()
    }

    proptest! {
        #[test]
        fn steps_may_grow_and_never_shrink(begun in 1u64..1_000_000, now in 1u64..1_000_000) {
            let result = steps_of_run(&more(begun), &more(now));
            prop_assert_eq!(result.is_ok(), now >= begun);
            if let Ok(steps) = result {
                prop_assert_eq!(steps, now);
            }
        }
    }

    #[test]
    fn fewer_steps_are_refused_with_what_is_allowed() {
        assert_eq!(
            refused(MINIMAL, &more(199)),
            "spec.training.steps: 199 — at least 200, as the run began: steps can be added, not taken away; stop the run to end it sooner"
        );
    }

    #[test]
    fn whatever_else_differs_is_named() {
        let other = MINIMAL.replace("globalBatchSize: 16", "globalBatchSize: 32");
        assert_ne!(other, MINIMAL);
        assert_eq!(
            refused(MINIMAL, &other),
            "spec.training.globalBatchSize: 32 — 16, as the run began: of a run that has begun only training.steps may change"
        );
        let left_out = refused(&format!("{MINIMAL}  suspend: true\n"), MINIMAL);
        assert!(
            left_out.starts_with("spec.suspend: left out — true"),
            "{left_out}"
        );
    }

    #[test]
    fn another_form_of_the_same_job_is_the_same_job() {
        let document: Value = serde_saphyr::from_str(MINIMAL).unwrap();
        assert_eq!(steps_of_run(MINIMAL, &document.to_string()), Ok(200));
        assert_eq!(steps_of_run(MINIMAL, &format!("# a remark\n{MINIMAL}")), Ok(200));
    }

    #[test]
    fn what_is_no_job_is_refused() {
        assert!(refused(MINIMAL, "[1").starts_with("job file: "));
        let none = MINIMAL.replace("steps: 200", "seed: 1");
        assert!(refused(MINIMAL, &none).starts_with("spec.training.steps: missing"));
    }

    #[test]
    fn resumed_run_keeps_its_curve_and_checkpoints() {
        let document = |text: &str| -> Value { serde_saphyr::from_str(text).unwrap() };
        let mut now = document(&more(500));
        now["spec"]["workers"]["image"] = "another".into();
        let kept = with_steps_of(&document(MINIMAL), now);
        let (begun, kept) = (parse_job(MINIMAL).unwrap(), parse_job(&kept.to_string()).unwrap());
        assert_eq!(kept.workers.image.as_deref(), Some("another"));
        assert_eq!(kept.training.learning_rate.decay_steps, 200);
        let hash = |job: &crate::Job| model_hash(&job.model, &job.training, "data");
        assert_eq!(hash(&begun), hash(&kept));
    }
}
