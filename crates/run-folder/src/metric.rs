//! `metrics.jsonl`.

use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};
use varuna_plan::{Generation, StateId, Step};

/// One committed step: a line of `metrics.jsonl`. Losses in nats per token.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    /// Steps done, this one included.
    pub step: Step,
    /// Mean training loss of the step; `null` in the file where it is not a finite number or there is none. Use [`Metric::mean_loss`] to
    /// tell these apart.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f64,
    /// The step has no loss, because its batch has no target. Omitted where it has one, as in lines of earlier releases. `loss` stays in
    /// the line all the same: earlier releases need it to read the line.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub no_targets: bool,
    /// Mean loss on the held-out split, where this step began with an evaluation.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub eval_loss: Option<f64>,
    /// L2 norm of the gradient before clipping; `null` in the file where it is not a finite number.
    #[serde(deserialize_with = "null_is_nan")]
    pub gradient_norm: f64,
    /// The optimizer skipped this step, because a gradient was not finite.
    pub overflow: bool,
    /// Steps that were skipped so far.
    #[serde(default)]
    pub skipped_steps: u64,
    /// What the next step's loss is multiplied by, where the job scales its loss.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub loss_scale: Option<u64>,
    /// The generation that ran it.
    pub generation: Generation,
    /// Workers of the plan in force when the step was published.
    pub workers: usize,
    /// Short form of that plan, such as `P2xD4`.
    pub plan: String,
    /// Tokens of the step.
    pub tokens: u64,
    /// Milliseconds since the previous step was published.
    pub step_ms: f64,
    /// When it was published: milliseconds since 1970.
    pub time_ms: u64,
    /// Identity of the state reached.
    pub state: StateId,
    /// Figures that follow from the job and from workers' reports; they are fields of the line like all others.
    #[serde(flatten)]
    pub figures: StepFigures,
}

impl Metric {
    /// The mean training loss, which may be no finite number; none where the step's batch has no target.
    #[must_use]
    pub fn mean_loss(&self) -> Option<f64> {
        (!self.no_targets).then_some(self.loss)
    }
}

/// Figures of one committed step. A figure that is not known is omitted, as in lines of earlier releases: none is estimated.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StepFigures {
    /// The position in the data after this step: the samples that the job's steps so far have, including those of skipped steps. Steps of another
    /// job, with whose whole checkpoint this one began, count as if they had this job's batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumed_samples: Option<u64>,
    /// The tokens of these samples, with this job's length of samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumed_tokens: Option<u64>,
    /// The step's learning rate; for a skipped step, the one that it would have had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Steps up to this one whose loss was not a finite number, as far as this run folder has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nan_steps: Option<u64>,
    /// Tokens per second, if the step's own time is known: not after a pause, not for a step that began with an evaluation, and not for
    /// steps that were reported together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Floating-point operations per second that the model needs, without recomputation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_flops_per_second: Option<f64>,
    /// These as a share of the peak of the plan's GPUs by their data sheets, in 16 bits and without sparsity; only if all GPUs are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Peak memory of any worker of the plan since it started, bytes: tensors on a GPU, or the whole process on a processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
}

/// JSON has no NaN and no infinities, so a diverged step's loss is `null`, which plotting tools skip.
fn null_is_nan<'de, D: serde::Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or(f64::NAN))
}

/// The present time: milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A step as tests have it.
#[cfg(test)]
pub(crate) fn example(step: u64) -> Metric {
    let (generation, step) = (Generation(1), Step(step));
    Metric {
        step,
        loss: 1.5,
        no_targets: false,
        eval_loss: None,
        gradient_norm: 1.0,
        overflow: false,
        skipped_steps: 0,
        loss_scale: None,
        generation,
        workers: 2,
        plan: "P2xD1".into(),
        tokens: 64,
        step_ms: 10.0,
        time_ms: 1,
        state: StateId {
            run_gen: generation,
            step,
            chain: varuna_plan::state::Chain(step.0),
        },
        figures: StepFigures::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::state::Chain;

    /// A line that was written by release 0.2.
    const OLD: &str = r#"{"step":45,"loss":2.5,"gradientNorm":0.85,"overflow":false,"skippedSteps":0,"generation":2,"workers":4,"plan":"P2xD2","tokens":2048,"stepMs":2058.35,"timeMs":1795344944287,"state":{"run_gen":2,"step":45,"chain":"f88609ce2c1fb6f3"}}"#;

    #[test]
    fn a_line_of_an_earlier_release_is_read_and_written_as_it_was() {
        let metric: Metric = serde_json::from_str(OLD).unwrap();
        assert_eq!(metric.state.chain, Chain(0xf886_09ce_2c1f_b6f3));
        assert_eq!(metric.figures, StepFigures::default());
        assert_eq!(serde_json::to_string(&metric).unwrap(), OLD);
    }

    #[test]
    fn a_step_without_targets_has_no_loss_and_reads_back() {
        let old: Metric = serde_json::from_str(OLD).unwrap();
        assert_eq!(old.mean_loss(), Some(2.5));
        let without = Metric {
            loss: f64::NAN,
            no_targets: true,
            ..old
        };
        let line = serde_json::to_string(&without).unwrap();
        assert!(line.contains(r#""loss":null,"noTargets":true"#), "{line}");
        let read: Metric = serde_json::from_str(&line).unwrap();
        assert_eq!(read.mean_loss(), None);
        // A loss that is not finite is another thing.
        let diverged = line.replace(r#","noTargets":true"#, "");
        let read: Metric = serde_json::from_str(&diverged).unwrap();
        assert!(read.mean_loss().is_some_and(f64::is_nan));
    }

    #[test]
    fn figures_are_fields_of_the_line_and_read_back() {
        let metric = Metric {
            figures: StepFigures {
                consumed_samples: Some(u64::MAX),
                consumed_tokens: Some(92_160),
                learning_rate: Some(3e-4),
                nan_steps: Some(0),
                tokens_per_second: Some(995.1),
                model_flops_per_second: Some(1.5e9),
                mfu: None,
                peak_memory_bytes: Some(1 << 40),
            },
            ..serde_json::from_str(OLD).unwrap()
        };
        let line = serde_json::to_string(&metric).unwrap();
        assert!(
            line.contains(r#","learningRate":0.0003,"nanSteps":0,"#) && !line.contains("mfu"),
            "{line}"
        );
        assert_eq!(serde_json::from_str::<Metric>(&line).unwrap(), metric);
    }
}
