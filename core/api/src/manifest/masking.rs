//! `spec.training.masking`.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
use serde::{Deserialize, Serialize};

/// Masked language modelling: some tokens are hidden, and the model learns to fill them in. Of those that are chosen 80 % are replaced by the mask
/// token, 10 % by a random token, and 10 % stay. It goes with `model.bidirectional`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MaskingSpec {
    /// The token that stands for hidden ones, one that no text has; below `model.vocabularySize`. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::MASK_TOKEN)))]
    pub mask_token: Option<u32>,
    /// Probability with which a token is chosen; 0.15 where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::MASK_PROBABILITY)))]
    pub probability: Option<f64>,
}
