//! `spec.model`.

use super::{ExportedSpec, RopeScalingSpec};
#[cfg(feature = "kubernetes")]
use crate::{choices, limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};
#[cfg(feature = "kubernetes")]
use varuna_model::presets;

/// A preset, explicit sizes, or a preset with some sizes and features replaced; or a model of one's own.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("has(self.exported) || has(self.preset) || (has(self.layers) && has(self.hiddenSize) && has(self.heads) && has(self.sequenceLength) && has(self.vocabularySize))",
            "name a preset, or give all of layers, hiddenSize, heads, sequenceLength and vocabularySize, or exported alone"),
        validation = ("!has(self.exported) || !(has(self.preset) || has(self.layers) || has(self.hiddenSize) || has(self.heads) || has(self.kvHeads) || has(self.headSize) || has(self.innerSize) || has(self.mlp) || has(self.sequenceLength) || has(self.ropeTheta) || has(self.ropeScaling) || has(self.slidingWindow) || has(self.bidirectional) || has(self.vocabularySize) || has(self.tiedHead) || has(self.normEpsilon) || has(self.attentionBias) || has(self.mlpBias) || has(self.logitSoftcap) || has(self.dropout))",
            "give exported alone: it is a whole model"),
        validation = ("has(self.headSize) || (has(self.preset) && self.preset.startsWith('qwen3-')) || !has(self.hiddenSize) || !has(self.heads) || self.hiddenSize % self.heads == 0",
            "make hiddenSize a multiple of heads, or give headSize"),
        validation = ("!has(self.slidingWindow) || !(has(self.bidirectional) ? self.bidirectional : has(self.preset) && self.preset.startsWith('bert-'))",
            "leave slidingWindow out: with bidirectional tokens see their whole sample"),
        validation = ("!(has(self.ropeTheta) || has(self.ropeScaling)) || (has(self.preset) && (self.preset.startsWith('llama') || self.preset.startsWith('qwen3-')))",
            "leave ropeTheta and ropeScaling out, or name a preset of Llama 3 or Qwen 3: positions of all others are learned"),
        validation = ("!has(self.kvHeads) || !has(self.heads) || self.heads % self.kvHeads == 0",
            "make kvHeads a divisor of heads"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelSpec {
    /// GPT-2 and Megatron: `gpt2-tiny`, `gpt2-small`, `gpt2-medium`, `gpt2-large`, `gpt2-1.5b` (also `gpt2-xl`), `gpt2-2.5b` or `gpt2-8.3b`.
    /// Llama 3: `llama-tiny`, `llama3.2-1b`, `llama3.2-3b` or `llama3-8b`. Qwen 3: `qwen3-tiny`, `qwen3-0.6b`, `qwen3-1.7b` or `qwen3-8b`.
    /// BERT, with `training.masking`: `bert-tiny`, `bert-base` or `bert-large`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(presets::names())))]
    pub preset: Option<String>,
    /// Transformer blocks.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::LAYERS)))]
    pub layers: Option<u32>,
    /// Width; a multiple of `heads` where there is no `headSize`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WIDTH)))]
    pub hidden_size: Option<u32>,
    /// Attention heads.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WIDTH)))]
    pub heads: Option<u32>,
    /// Heads with keys and values of their own, a divisor of `heads`; the preset's or all of them where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WIDTH)))]
    pub kv_heads: Option<u32>,
    /// Width of a head; the preset's or `hiddenSize` by `heads` where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::HEAD)))]
    pub head_size: Option<u32>,
    /// Width of the MLP between its matrices; the preset's or what is usual for the kind of MLP where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::INNER)))]
    pub inner_size: Option<u32>,
    /// Kind of MLP: `gelu` (by tanh), `geluErf` (exact), `swiglu` or `relu2`. Left out, it is the preset's, or `gelu`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::MLPS.map(|(name, _)| name))))]
    pub mlp: Option<String>,
    /// Tokens in a sample.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WIDTH)))]
    pub sequence_length: Option<u32>,
    /// Base of the angles of rotary positions (`rope_theta` of a `config.json`), of a Llama or Qwen; the preset's where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::above_zero(limits::ROPE_THETA_MAX)))]
    pub rope_theta: Option<f64>,
    /// Slower angles of rotary positions, for samples that are longer than those of the first training (`rope_scaling` of a `config.json`); the preset's
    /// where left out.
    pub rope_scaling: Option<RopeScalingSpec>,
    /// Tokens that a token sees, itself among them; all before it where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WIDTH)))]
    pub sliding_window: Option<u32>,
    /// Tokens see those after them too, as in a BERT: the model learns to fill in masked tokens (`training.masking`). The preset's or false where left out.
    pub bidirectional: Option<bool>,
    /// Rows of the embedding table: at least the dataset's vocabulary (byte tokenizer 257, GPT-2 50257).
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::VOCABULARY)))]
    pub vocabulary_size: Option<u32>,
    /// The head shares the token embedding; the preset's or true where left out.
    pub tied_head: Option<bool>,
    /// Added by norms to the variance or mean square that they divide by (`rms_norm_eps` or `layer_norm_eps` of a `config.json`); the preset's or 1e-5
    /// where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::above_zero(limits::NORM_EPSILON_MAX)))]
    pub norm_epsilon: Option<f64>,
    /// Queries, keys and values, and the projection after attention, have biases (`attention_bias` of a `config.json`); the preset's or true where left out.
    pub attention_bias: Option<bool>,
    /// The MLP's matrices have biases (`mlp_bias` of a `config.json`); the preset's or true where left out.
    pub mlp_bias: Option<bool>,
    /// Logits are bent to stay below this: c tanh(x / c); no cap where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::above_zero(limits::SOFTCAP_MAX)))]
    pub logit_softcap: Option<f64>,
    /// Dropout probability, 0 <= p < 1; 0 where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::fraction))]
    pub dropout: Option<f64>,
    /// A model of one's own, exported with `varuna_export`; all other fields are left out then.
    pub exported: Option<ExportedSpec>,
}
