//! `spec.model.exported`.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
use serde::{Deserialize, Serialize};

/// A model of one's own, as `varuna_export` describes it in the `model.yaml` of the folder that it writes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExportedSpec {
    /// Path of the folder, as a worker finds it. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::text(limits::TEXT)))]
    pub path: Option<String>,
    /// SHA-256 of the folder's manifest.json, 64 hex digits: workers refuse a folder with another one. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::pattern(limits::DIGEST_PATTERN, limits::DIGEST)))]
    pub digest: Option<String>,
    /// What a sample is. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required))]
    pub sample: Option<ExportedSampleSpec>,
    /// The model's result depends on how a batch is cut into micro-batches; false where left out.
    pub plan_dependent: Option<bool>,
    /// Elements of the parameters that the first and the last segment share; 0 where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::AMOUNT)))]
    pub shared_parameters: Option<u64>,
    /// The segments in order. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::mappings(limits::EXPORTED_SEGMENTS_MAX)))]
    pub segments: Option<Vec<ExportedSegmentSpec>>,
}

/// A sample: whole numbers.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExportedSampleSpec {
    /// How many. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::WIDTH)))]
    pub length: Option<u32>,
    /// They are less than this. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::VOCABULARY)))]
    pub values: Option<u32>,
    /// Each document of a dataset is one sample, of exactly `length` numbers; false where left out: samples are windows of the documents' tokens.
    pub records: Option<bool>,
}

/// One segment. Operations and elements are those of one sample.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExportedSegmentSpec {
    /// Its name in the user's model. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::text(limits::TEXT)))]
    pub name: Option<String>,
    /// Elements of the parameters that it alone holds. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::AMOUNT)))]
    pub parameters: Option<u64>,
    /// Shape of its output, without the batch: 1 to 8 sizes. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::sizes(limits::OUTPUT_DIMENSIONS_MAX)))]
    pub output: Option<Vec<u32>>,
    /// Floating-point operations of the forward. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::AMOUNT)))]
    pub forward_flops: Option<u64>,
    /// Floating-point operations of the backward, without recompute. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::AMOUNT)))]
    pub backward_flops: Option<u64>,
    /// Elements that stay from the forward to the backward, the output among them and the input not. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::AMOUNT)))]
    pub saved_elements: Option<u64>,
    /// The most elements that forward or backward take beyond these. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::AMOUNT)))]
    pub working_elements: Option<u64>,
    /// SHA-256 of the names and shapes of the parameters that it computes with, 64 hex digits: checkpoints of other parameters are refused; not
    /// compared where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::pattern(limits::DIGEST_PATTERN, limits::DIGEST)))]
    pub parameters_digest: Option<String>,
}
