//! `spec.training.masking`.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
use serde::{Deserialize, Serialize};

/// Masked language modelling: some tokens are hidden, and the model learns to predict them. Of the chosen tokens, 80 % are replaced by the
/// mask token, 10 % by a random token, and 10 % stay as they are. It requires `model.bidirectional`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MaskingSpec {
    /// Token that replaces hidden tokens. It must be less than `model.vocabularySize`, and no text may contain it. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::MASK_TOKEN)))]
    pub mask_token: Option<u32>,
    /// Probability that a token is chosen for prediction. Of the chosen tokens, 80 % are replaced by the mask token, 10 % by a random
    /// token, and 10 % stay as they are. Default: 0.15.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::MASK_PROBABILITY)))]
    pub probability: Option<f64>,
}
