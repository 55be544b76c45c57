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
    /// Mean training loss of the step; `null` in the file where it is not a finite number.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f64,
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
}

/// JSON has no NaN and no infinities, so a diverged step's loss is `null`, which plotting tools leave out.
fn null_is_nan<'de, D: serde::Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or(f64::NAN))
}

/// The present time: milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
