//! `spec.data`.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};

/// Where the tokens are.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("has(self.path) != has(self.train)",
            "give path, the dataset to train on, or train, the datasets of a blend"),
        validation = ("!has(self.path) || (!self.path.endsWith('.bin') && !self.path.endsWith('.idx'))",
            "give the path without .bin or .idx: a dataset is both files"),
        validation = ("!has(self.validationPath) || (!self.validationPath.endsWith('.bin') && !self.validationPath.endsWith('.idx'))",
            "give validationPath without .bin or .idx: a dataset is both files"),
        validation = ("!has(self.validationPath) || !has(self.validationFraction)",
            "leave validationFraction out: the dataset of validationPath is held out instead of a share of the others"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataSpec {
    /// Path of an indexed dataset without its `.bin` / `.idx`, or its URL on a store (s3://, gs://, az://). This or `train` is required.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::text(limits::TEXT)))]
    pub path: Option<String>,
    /// Datasets that are trained on as a blend, instead of `path`. In each prefix of the samples each has its share within one sample, and begins
    /// anew when all of its own samples were taken.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::mappings(limits::DATASETS_MAX)))]
    pub train: Option<Vec<DataSourceSpec>>,
    /// Path or URL of an indexed dataset all of whose samples are for evaluation, such as the one that `varuna data build --split` writes.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::text(limits::TEXT)))]
    pub validation_path: Option<String>,
    /// Share of the samples that is held out for evaluation, 0 to 0.5; 0.05 where left out. Not with `validationPath`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::VALIDATION_FRACTION)))]
    pub validation_fraction: Option<f64>,
    /// What is done about samples that hold several documents; nothing where left out.
    pub packing: Option<PackingSpec>,
}

/// Documents lie one after the other in the samples. This is what they know of each other.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(crates(kube_core = "::kube_core"))
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PackingSpec {
    /// Tokens see those of their own document alone; false where left out. Megatron's --reset-attention-mask.
    pub block_mask: Option<bool>,
    /// Positions are counted from the beginning of each document; false where left out. Megatron's --reset-position-ids.
    pub reset_positions: Option<bool>,
    /// The last token of a document is not trained to predict the first of the next; false where left out. Megatron's --eod-mask-loss.
    pub mask_loss: Option<bool>,
}

/// A dataset of a blend.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("!self.path.endsWith('.bin') && !self.path.endsWith('.idx')",
            "give the path without .bin or .idx: a dataset is both files"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataSourceSpec {
    /// Path or URL of the indexed dataset without its `.bin` / `.idx`. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::text(limits::TEXT)))]
    pub path: Option<String>,
    /// Weight of the dataset, above 0; 1 where left out. Only the ratios of the weights count, to about a millionth.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::above_zero(limits::WEIGHT_MAX)))]
    pub weight: Option<f64>,
}
