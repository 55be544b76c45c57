//! `spec.training.optimizer`.

#[cfg(feature = "kubernetes")]
use crate::{choices, limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};

/// The optimizer, and its learning rate: a linear warm-up, then what `schedule` says.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("!has(self.minLearningRate) || self.minLearningRate <= self.learningRate",
            "make minLearningRate at most learningRate"),
        validation = ("!has(self.stableSteps) || (has(self.schedule) && self.schedule == 'wsd')",
            "leave stableSteps out, or make schedule wsd: other decays begin after the warm-up"),
        validation = ("!has(self.stableSteps) || !has(self.warmupSteps) || self.warmupSteps <= self.stableSteps",
            "make warmupSteps at most stableSteps"),
        validation = ("!has(self.schedule) || self.schedule != 'constant' || (!has(self.minLearningRate) && !has(self.decaySteps))",
            "leave minLearningRate and decaySteps out: schedule constant has no decay"),
        validation = ("!has(self.momentum) || (has(self.kind) && self.kind != 'adamw')",
            "leave momentum out, or make kind sgd or muon: adamw has beta1"),
        validation = ("!has(self.kind) || self.kind != 'sgd' || (!has(self.beta1) && !has(self.beta2) && !has(self.epsilon))",
            "leave beta1, beta2 and epsilon out: kind sgd has momentum"),
        validation = ("!has(self.sharding) || self.sharding == 'none' || !has(self.kind) || self.kind != 'muon'",
            "make sharding none: kind muon needs whole matrices"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OptimizerSpec {
    /// `adamw` (Loshchilov & Hutter 2019), `sgd`: stochastic gradient descent with momentum, as `torch.optim.SGD`, or `muon` (Jordan et al. 2024) for the
    /// matrices of blocks with `adamw` for all else. `adamw` where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::OPTIMIZERS.map(|(name, _)| name))))]
    pub kind: Option<String>,
    /// Peak learning rate. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::above_zero(limits::LEARNING_RATE_MAX)))]
    pub learning_rate: Option<f64>,
    /// What follows the warm-up: `cosine` or `linear` decays from there on, `wsd` (warm-up, stable, decay) keeps the peak until `stableSteps` and then
    /// decays in a straight line, `constant` keeps the peak for ever. `cosine` where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::DECAYS.map(|(name, _)| name))))]
    pub schedule: Option<String>,
    /// Learning rate at the end of the decay; a tenth of the peak where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::MIN_LEARNING_RATE)))]
    pub min_learning_rate: Option<f64>,
    /// Steps of linear warm-up; 0 where left out.
    pub warmup_steps: Option<u64>,
    /// Step at which the decay of `wsd` begins; nine tenths of `decaySteps` where left out.
    pub stable_steps: Option<u64>,
    /// Step at which the decay ends; the steps that the run began with where left out. More steps later do not bend the curve.
    pub decay_steps: Option<u64>,
    /// What `sgd` keeps of the sum of gradients in each step, or `muon` of their mean; 0.9 with `sgd`, 0.95 with `muon` where left out, 0 = none.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::fraction))]
    pub momentum: Option<f64>,
    /// Decay of the first moment of `adamw`, also in `muon`; 0.9 where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::fraction))]
    pub beta1: Option<f64>,
    /// Decay of the second moment of `adamw`, also in `muon`; 0.95 where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::fraction))]
    pub beta2: Option<f64>,
    /// Added to the root of the second moment of `adamw`, also in `muon`; 1e-8 where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::above_zero(limits::EPSILON_MAX)))]
    pub epsilon: Option<f64>,
    /// Weight decay: decoupled with `adamw` and `muon`, part of the gradient with `sgd`; 0.1 with `adamw` and `muon`, 0 with `sgd` where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WEIGHT_DECAY)))]
    pub weight_decay: Option<f64>,
    /// Which parameters decay: `matrices` (of linear layers, an untied head among them), `embeddings` (tables of tokens and positions, also where the head is tied to
    /// one), `biases`, `norms`; none where it is empty. `[matrices, embeddings]` where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::set_of_names(choices::PARAMETER_KINDS.map(|(name, _)| name))))]
    pub weight_decay_on: Option<Vec<String>>,
    /// Who holds the optimizer's state: `none`: each worker all of what it computes with; `zero1`: the workers that compute with a segment share its masters and
    /// moments out among them, each part with two of them, which takes less memory from three pipelines on. Not with `muon`, which needs whole matrices. Fixed at the
    /// first start. `none` where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::SHARDINGS.map(|(name, _)| name))))]
    pub sharding: Option<String>,
    /// Limit of the gradient's global norm; 1 where left out, 0 = no clipping.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::CLIP_NORM)))]
    pub clip_norm: Option<f64>,
}
