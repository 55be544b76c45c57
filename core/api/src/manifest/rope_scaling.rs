//! `spec.model.ropeScaling`.

#[cfg(feature = "kubernetes")]
use crate::{choices, limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};

/// Scaling of the angles of rotary positions. Names in brackets are those of a published `config.json`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("has(self.factor) || (has(self.kind) && self.kind == 'none')",
            "set factor, by which slow angles become slower, or make kind none"),
        validation = ("!has(self.kind) || self.kind != 'none' || !(has(self.factor) || has(self.lowFrequencyFactor) || has(self.highFrequencyFactor) || has(self.originalSequenceLength))",
            "leave all other fields of ropeScaling out: with kind none, angles are not scaled"),
        validation = ("(has(self.lowFrequencyFactor) ? self.lowFrequencyFactor : 1.0) < (has(self.highFrequencyFactor) ? self.highFrequencyFactor : 4.0)",
            "make highFrequencyFactor (default 4) more than lowFrequencyFactor (default 1)"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RopeScalingSpec {
    /// Kind of scaling. With `llama3`, angles that turn rarely within the original length become slower by `factor`, as in Llama 3.1 and
    /// 3.2. With `none`, there is no scaling, even if the preset has one. Default: `llama3`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::ROPE_SCALINGS.map(|(name, _)| name))))]
    pub kind: Option<String>,
    /// Factor by which slow angles become slower (`factor`), for example 8 in Llama 3.1 and 32 in Llama 3.2. Required unless `kind` is
    /// `none`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::above_zero(limits::ROPE_FACTOR_MAX)))]
    pub factor: Option<f64>,
    /// Number of turns within the original length up to which an angle is slow (`low_freq_factor`). Default: 1.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::above_zero(limits::ROPE_FACTOR_MAX)))]
    pub low_frequency_factor: Option<f64>,
    /// Number of turns within the original length from which an angle stays as it is (`high_freq_factor`). It must be more than
    /// `lowFrequencyFactor`. Default: 4.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::above_zero(limits::ROPE_FACTOR_MAX)))]
    pub high_frequency_factor: Option<f64>,
    /// Number of tokens in a sample of the original training (`original_max_position_embeddings`). Default: 8192.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WIDTH)))]
    pub original_sequence_length: Option<u32>,
}
