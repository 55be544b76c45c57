//! How a job trains, with every default resolved.

use crate::learning_rate::LearningRate;
use crate::masking::Masking;
use crate::packing::Packing;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use varuna_model::layout::SHARDED_RANGES;
use varuna_model::{Layout, ParameterKind};
use varuna_plan::{EvaluationSteps, LossScaling, Moments};

/// Default number of steps that may be skipped in a row. A bad sample spoils only the steps that use it. Twenty skipped steps in a row show
/// that these parameters give no finite gradient, and no step will change them.
pub const DEFAULT_SKIP_LIMIT: u32 = 20;

/// Everything that fixes the numbers of a run besides the model and the data.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Training {
    /// Samples in an optimizer step (M).
    pub global_batch_size: u64,
    /// Optimizer steps of the run.
    pub steps: u64,
    /// Seeds initial weights, sample order and dropout.
    pub seed: u64,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The learning rate over the steps.
    pub learning_rate: LearningRate,
    /// Evaluation on the held-out split, if wanted.
    pub evaluation: Option<Evaluation>,
    /// The loss scaling. Not in the hash of jobs that do not scale the loss, nor is the limit below if it is the default: their hashes are
    /// the same as before these fields existed.
    #[serde(default = "no_loss_scaling", skip_serializing_if = "LossScaling::is_off")]
    pub loss_scaling: LossScaling,
    /// Number of steps that may be skipped in a row when the loss scale cannot be lowered; one more ends the run.
    #[serde(default = "default_skip_limit", skip_serializing_if = "is_default_skip_limit")]
    pub skip_limit: u32,
    /// How samples with several documents are treated. Not in the hash of jobs with the default.
    #[serde(default, skip_serializing_if = "Packing::is_off")]
    pub packing: Packing,
    /// How tokens are masked that the model learns to fill in; none = it learns to predict the next token. Not in the hash of jobs without
    /// masking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masking: Option<Masking>,
}

fn no_loss_scaling() -> LossScaling {
    LossScaling::OFF
}

fn default_skip_limit() -> u32 {
    DEFAULT_SKIP_LIMIT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_default_skip_limit(limit: &u32) -> bool {
    *limit == DEFAULT_SKIP_LIMIT
}

impl Training {
    /// The steps that begin with an evaluation, for their deadlines.
    #[must_use]
    pub fn evaluation_steps(&self) -> Option<EvaluationSteps> {
        let batches = |samples: u64| samples.div_ceil(self.global_batch_size.max(1));
        self.evaluation.as_ref().map(|e| EvaluationSteps {
            interval_steps: e.interval_steps,
            batches: u32::try_from(batches(e.samples)).unwrap_or(u32::MAX),
        })
    }
}

/// How parameters follow from their gradients.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Optimizer {
    /// The update rule, which is in the hash as its fields only.
    #[serde(flatten)]
    pub rule: UpdateRule,
    /// Decay of the parameters whose kinds are in `weight_decay_on`; the rule determines its meaning.
    pub weight_decay: f64,
    /// The kinds of parameters that decay. Not in the hash of jobs with the default: their hash is the same as before there was a choice.
    #[serde(default = "default_decaying", skip_serializing_if = "are_default_decaying")]
    pub weight_decay_on: BTreeSet<ParameterKind>,
    /// Clip the gradient's global L2 norm to this; none = no clipping.
    pub clip_norm: Option<f64>,
    /// Which workers hold masters and moments. Not in the hash of jobs in which all workers hold them that compute with a parameter.
    #[serde(default, skip_serializing_if = "Sharding::is_off")]
    pub sharding: Sharding,
}

/// Which of the workers that compute with a parameter hold its master and its moments.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Sharding {
    /// Every worker of a segment has all of its optimizer state.
    #[default]
    Off,
    /// Two of them; different ranges of a segment's parameters have different holders (`ZeRO-1`, Rajbhandari et al. 2020, with a second
    /// holder). Losing one worker loses no state.
    Zero1,
}

impl Sharding {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    fn is_off(&self) -> bool {
        *self == Sharding::Off
    }

    /// The units of a model's state.
    #[must_use]
    pub fn layout(self, of_model: Layout) -> Layout {
        match self {
            Sharding::Off => of_model,
            Sharding::Zero1 => of_model.in_ranges(SHARDED_RANGES),
        }
    }
}

/// The rule of an optimizer's step.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum UpdateRule {
    /// Muon (Jordan et al. 2024) for the matrices of blocks: their momentum is orthogonalised, and scaled to the size of an update of `AdamW` (Liu et
    /// al. 2025). All other parameters have `AdamW`. Before `Adamw` and `Sgd`, which have some of its fields.
    Muon {
        /// Fraction of a matrix's momentum that is kept in each step.
        momentum: f64,
        /// As in `Adamw`, like the next two.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        epsilon: f64,
    },
    /// `AdamW` (Loshchilov & Hutter 2019): the decay is decoupled, so each step subtracts rate times decay of a parameter.
    Adamw {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        epsilon: f64,
    },
    /// Stochastic gradient descent with momentum, as `torch.optim.SGD` without dampening: the decay times the parameter is part of its
    /// gradient.
    Sgd {
        /// Fraction of the momentum that is kept in each step.
        momentum: f64,
    },
}

impl UpdateRule {
    /// The moments that it keeps for each parameter.
    #[must_use]
    pub fn moments(&self) -> Moments {
        match self {
            UpdateRule::Adamw { .. } => Moments::Adam,
            UpdateRule::Sgd { .. } => Moments::Momentum,
            UpdateRule::Muon { .. } => Moments::Muon,
        }
    }
}

/// The kinds of parameters that decay by default: those whose large values help to fit noise. Biases and norms are few, and only shift and
/// scale what others compute.
#[must_use]
pub fn default_decaying() -> BTreeSet<ParameterKind> {
    BTreeSet::from([ParameterKind::Matrix, ParameterKind::Embedding])
}

fn are_default_decaying(kinds: &BTreeSet<ParameterKind>) -> bool {
    *kinds == default_decaying()
}

/// Evaluation on the held-out split.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Evaluation {
    /// Before each step that is a multiple of this.
    pub interval_steps: u64,
    /// Samples per evaluation, taken from the start of the held-out split; divided among pipelines like the batch.
    pub samples: u64,
}
