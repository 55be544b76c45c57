//! `spec.training.optimizer`.

#[cfg(feature = "kubernetes")]
use crate::{choices, limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};

/// The optimizer and its learning rate: a linear warm-up, then what `schedule` says.
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
    /// Optimizer. `adamw` is AdamW (Loshchilov & Hutter 2019). `sgd` is stochastic gradient descent with momentum, like `torch.optim.SGD`.
    /// `muon` is Muon (Jordan et al. 2024) for the matrices of blocks, with AdamW for all other parameters. Default: `adamw`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::OPTIMIZERS.map(|(name, _)| name))))]
    pub kind: Option<String>,
    /// Peak learning rate. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::above_zero(limits::LEARNING_RATE_MAX)))]
    pub learning_rate: Option<f64>,
    /// Learning rate after the warm-up. `cosine` and `linear` decay from the end of the warm-up. `wsd` (warm-up, stable, decay) keeps the
    /// peak until `stableSteps` and then decays linearly. `constant` keeps the peak. Default: `cosine`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::DECAYS.map(|(name, _)| name))))]
    pub schedule: Option<String>,
    /// Learning rate at the end of the decay. Not allowed with `schedule: constant`. Default: a tenth of the peak.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::MIN_LEARNING_RATE)))]
    pub min_learning_rate: Option<f64>,
    /// Number of steps of the linear warm-up. Default: 0.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::COUNT_OR_NONE)))]
    pub warmup_steps: Option<u64>,
    /// Step at which the decay begins, only with `schedule: wsd`. Default: nine tenths of `decaySteps`, at least `warmupSteps`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::COUNT_OR_NONE)))]
    pub stable_steps: Option<u64>,
    /// Step at which the decay ends. Steps that are added later do not change the curve. Not allowed with `schedule: constant`. Default:
    /// the number of steps that the run began with.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::COUNT_OR_NONE)))]
    pub decay_steps: Option<u64>,
    /// Share of the accumulated gradient that is kept in each step: of the sum of gradients with `sgd`, of their mean with `muon`. 0 means
    /// no momentum. Not allowed with `adamw`. Default: 0.9 with `sgd`, 0.95 with `muon`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::fraction))]
    pub momentum: Option<f64>,
    /// Decay rate of the first moment of AdamW, also within `muon`. Not allowed with `sgd`. Default: 0.9.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::fraction))]
    pub beta1: Option<f64>,
    /// Decay rate of the second moment of AdamW, also within `muon`. Not allowed with `sgd`. Default: 0.95.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::fraction))]
    pub beta2: Option<f64>,
    /// Number that is added to the root of the second moment of AdamW, also within `muon`. Not allowed with `sgd`. Default: 1e-8.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::above_zero(limits::EPSILON_MAX)))]
    pub epsilon: Option<f64>,
    /// Weight decay. It is decoupled with `adamw` and `muon`, and part of the gradient with `sgd`. Default: 0.1 with `adamw` and `muon`, 0
    /// with `sgd`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WEIGHT_DECAY)))]
    pub weight_decay: Option<f64>,
    /// Kinds of parameters with weight decay: `matrices` (of linear layers, including an untied head), `embeddings` (tables of tokens and
    /// positions, also if the head is tied to one), `biases` and `norms`. With an empty list, no parameters decay. Default: `[matrices,
    /// embeddings]`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::set_of_names(choices::PARAMETER_KINDS.map(|(name, _)| name))))]
    pub weight_decay_on: Option<Vec<String>>,
    /// Sharding of the optimizer state. With `none`, each worker holds the state of all parameters that it computes with. With `zero1`, the
    /// workers that compute with the same segment divide its master parameters and moments among them, and two workers hold each part. It
    /// saves memory from three pipelines on. Not allowed with `muon`, which needs whole matrices. It cannot change after the first start.
    /// Default: `none`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::SHARDINGS.map(|(name, _)| name))))]
    pub sharding: Option<String>,
    /// Maximum global norm of the gradient. A larger gradient is scaled down to it. 0 turns clipping off. Default: 1.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::CLIP_NORM)))]
    pub clip_norm: Option<f64>,
}
