//! `spec.model`.

use super::{ExportedSpec, RopeScalingSpec};
#[cfg(feature = "kubernetes")]
use crate::{choices, limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};
#[cfg(feature = "kubernetes")]
use varuna_model::presets;

/// A preset, explicit sizes, or a preset with some sizes and features replaced. Or an exported model of the user's own.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("has(self.exported) || has(self.preset) || (has(self.layers) && has(self.hiddenSize) && has(self.heads) && has(self.sequenceLength) && has(self.vocabularySize))",
            "name a preset, or give all of layers, hiddenSize, heads, sequenceLength and vocabularySize, or exported alone"),
        validation = ("!has(self.exported) || !(has(self.preset) || has(self.layers) || has(self.hiddenSize) || has(self.heads) || has(self.kvHeads) || has(self.headSize) || has(self.qkNorm) || has(self.innerSize) || has(self.mlp) || has(self.sequenceLength) || has(self.positions) || has(self.ropeTheta) || has(self.ropeScaling) || has(self.slidingWindow) || has(self.bidirectional) || has(self.vocabularySize) || has(self.tiedHead) || has(self.norm) || has(self.normEpsilon) || has(self.attentionBias) || has(self.mlpBias) || has(self.logitSoftcap) || has(self.dropout))",
            "leave all other fields of model out: exported is a whole model"),
        validation = ("has(self.headSize) || (has(self.preset) && self.preset.startsWith('qwen3-')) || !has(self.hiddenSize) || !has(self.heads) || self.hiddenSize % self.heads == 0",
            "make hiddenSize a multiple of heads, or give headSize"),
        validation = ("!has(self.slidingWindow) || !(has(self.bidirectional) ? self.bidirectional : has(self.preset) && self.preset.startsWith('bert-'))",
            "leave slidingWindow out: with bidirectional, tokens see their whole sample"),
        validation = ("!(has(self.ropeTheta) || has(self.ropeScaling)) || (has(self.positions) ? self.positions == 'rotary' : has(self.preset) && (self.preset.startsWith('llama') || self.preset.startsWith('qwen3-')))",
            "leave ropeTheta and ropeScaling out, or make positions rotary: learned positions have no angles"),
        validation = ("!(has(self.positions) ? self.positions == 'rotary' : has(self.preset) && (self.preset.startsWith('llama') || self.preset.startsWith('qwen3-'))) || (has(self.headSize) ? self.headSize % 2 == 0 : !has(self.hiddenSize) || !has(self.heads) || (has(self.preset) && self.preset.startsWith('qwen3-')) || self.hiddenSize / self.heads % 2 == 0)",
            "make headSize even, or hiddenSize divided by heads if headSize is left out: rotary positions turn pairs of a head's elements"),
        validation = ("!has(self.kvHeads) || !has(self.heads) || self.heads % self.kvHeads == 0",
            "make kvHeads a divisor of heads"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelSpec {
    /// Name of a published model. Without a preset, `layers`, `hiddenSize`, `heads`, `sequenceLength` and `vocabularySize` are required.
    /// With a preset, other fields replace its values. GPT-2 and Megatron: `gpt2-tiny`, `gpt2-small`, `gpt2-medium`, `gpt2-large`,
    /// `gpt2-1.5b` (also `gpt2-xl`), `gpt2-2.5b` or `gpt2-8.3b`. Llama 3: `llama-tiny`, `llama3.2-1b`, `llama3.2-3b` or `llama3-8b`. Qwen
    /// 3: `qwen3-tiny`, `qwen3-0.6b`, `qwen3-1.7b` or `qwen3-8b`. BERT, with `training.masking`: `bert-tiny`, `bert-base` or `bert-large`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(presets::names())))]
    pub preset: Option<String>,
    /// Number of transformer blocks. Default: the preset's.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::LAYERS)))]
    pub layers: Option<u32>,
    /// Width of the model. It must be a multiple of `heads` if there is no `headSize`. Default: the preset's.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WIDTH)))]
    pub hidden_size: Option<u32>,
    /// Number of attention heads. Default: the preset's.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WIDTH)))]
    pub heads: Option<u32>,
    /// Number of heads with their own keys and values. It must divide `heads`. Default: the preset's, or `heads`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WIDTH)))]
    pub kv_heads: Option<u32>,
    /// Width of an attention head. Default: the preset's, or `hiddenSize` divided by `heads`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::HEAD)))]
    pub head_size: Option<u32>,
    /// Whether the queries and keys of each head are normalised: their mean square becomes 1, then they have a learned weight, whatever
    /// `norm` is. Default: the preset's, or false.
    pub qk_norm: Option<bool>,
    /// Inner width of the MLP. Default: the preset's, or 4 times `hiddenSize`, or with `swiglu` 8/3 of `hiddenSize`, rounded up to a
    /// multiple of 64.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::INNER)))]
    pub inner_size: Option<u32>,
    /// Kind of MLP: `gelu` (approximated by tanh), `geluErf` (exact), `swiglu` or `relu2` (squared ReLU). Default: the preset's, or `gelu`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::MLPS.map(|(name, _)| name))))]
    pub mlp: Option<String>,
    /// Number of tokens in a sample. Default: the preset's.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WIDTH)))]
    pub sequence_length: Option<u32>,
    /// How tokens learn of their position. With `learned`, each position has a learned vector. With `rotary`, queries and keys are rotated
    /// by angles that grow with the position, and heads need an even width. Default: the preset's, or `learned`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::POSITIONS.map(|(name, _)| name))))]
    pub positions: Option<String>,
    /// Base of the angles of rotary positions (`rope_theta` of a `config.json`). Only if positions are rotary. Default: the preset's, or
    /// 10000 as in the paper and in `transformers`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::above_zero(limits::ROPE_THETA_MAX)))]
    pub rope_theta: Option<f64>,
    /// Scaling of the angles of rotary positions, for samples that are longer than those of the original training (`rope_scaling` of a
    /// `config.json`). Only if positions are rotary. Default: the preset's, or no scaling.
    pub rope_scaling: Option<RopeScalingSpec>,
    /// Number of tokens that a token sees, including itself. Not allowed with `bidirectional`. Default: all tokens up to and including
    /// itself.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WIDTH)))]
    pub sliding_window: Option<u32>,
    /// Whether tokens also see the tokens after them, as in a BERT. The model then learns to predict masked tokens, and `training.masking`
    /// is required. Default: the preset's, or false.
    pub bidirectional: Option<bool>,
    /// Number of rows of the embedding table. It must be at least the vocabulary of the dataset's tokenizer, for example 257 for the byte
    /// tokenizer and 50257 for GPT-2. Default: the preset's.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::VOCABULARY)))]
    pub vocabulary_size: Option<u32>,
    /// Whether the head uses the table of the token embedding. Default: the preset's, or true.
    pub tied_head: Option<bool>,
    /// Kind of norm: `layer` (mean 0 and variance 1, then a weight and a bias) or `rms` (mean square 1, then a weight). Default: the
    /// preset's, or `layer`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::NORMS.map(|(name, _)| name))))]
    pub norm: Option<String>,
    /// Number that norms add to the variance or mean square before dividing by its root (`rms_norm_eps` or `layer_norm_eps` of a
    /// `config.json`). Default: the preset's, or 1e-5.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::above_zero(limits::NORM_EPSILON_MAX)))]
    pub norm_epsilon: Option<f64>,
    /// Whether the linear layers of attention have biases: queries, keys, values and the output projection (`attention_bias` of a
    /// `config.json`). Default: the preset's, or true.
    pub attention_bias: Option<bool>,
    /// Whether the linear layers of the MLP have biases (`mlp_bias` of a `config.json`). Default: the preset's, or true.
    pub mlp_bias: Option<bool>,
    /// Upper bound c of the absolute value of logits: a logit x becomes c tanh(x / c). Default: no bound.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::above_zero(limits::SOFTCAP_MAX)))]
    pub logit_softcap: Option<f64>,
    /// Dropout probability, at least 0 and below 1. Default: 0.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::fraction))]
    pub dropout: Option<f64>,
    /// A model of your own, exported with `varuna_export`. It replaces all other fields of `model`.
    pub exported: Option<ExportedSpec>,
}
