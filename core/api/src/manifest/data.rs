//! `spec.data`.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};

/// The datasets for training and evaluation.
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
    /// Path of an indexed dataset without `.bin` or `.idx`, or its URL in a store (`s3://`, `gs://`, `az://`). Either `path` or `train` is
    /// required.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::place(limits::TEXT)))]
    pub path: Option<String>,
    /// Datasets that are mixed for training, instead of `path`. After any number of samples, each dataset has contributed its share, to
    /// within one sample. When all samples of a dataset were used, it starts again.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::mappings(limits::DATASETS_MAX)))]
    pub train: Option<Vec<DataSourceSpec>>,
    /// Path or URL of an indexed dataset of which all samples are used for evaluation, such as the one that `varuna data build --split`
    /// writes. It replaces `validationFraction`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::place(limits::TEXT)))]
    pub validation_path: Option<String>,
    /// Share of each dataset's samples that is held out for evaluation, from 0 to 0.5. The last samples are held out. Not allowed with
    /// `validationPath`. Default: 0.05.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::VALIDATION_FRACTION)))]
    pub validation_fraction: Option<f64>,
    /// How samples that contain several documents are treated. Default: each sample is treated as one text.
    pub packing: Option<PackingSpec>,
}

/// Documents are stored one after another, so a sample can contain several. These options separate them.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(crates(kube_core = "::kube_core"))
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PackingSpec {
    /// Whether tokens see only tokens of their own document, like Megatron's `--reset-attention-mask`. Default: false.
    pub block_mask: Option<bool>,
    /// Whether positions are counted from the beginning of each document, like Megatron's `--reset-position-ids`. Default: false.
    pub reset_positions: Option<bool>,
    /// Whether the loss leaves out the prediction of a document's first token from the last token of the document before, like Megatron's
    /// `--eod-mask-loss`. Default: false.
    pub mask_loss: Option<bool>,
}

/// A dataset of a mix.
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
    /// Path or URL of the indexed dataset, without `.bin` or `.idx`. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::place(limits::TEXT)))]
    pub path: Option<String>,
    /// Weight of the dataset, above 0. Only the ratios of the weights matter, to about a millionth. Default: 1.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::above_zero(limits::WEIGHT_MAX)))]
    pub weight: Option<f64>,
}
