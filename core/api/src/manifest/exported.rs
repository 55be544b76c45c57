//! `spec.model.exported`.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
use serde::{Deserialize, Serialize};

/// A model of the user's own, as `varuna_export` describes it in the `model.yaml` of the folder that it writes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExportedSpec {
    /// Path of the exported folder on the workers. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::text(limits::TEXT)))]
    pub path: Option<String>,
    /// SHA-256 of the folder's `manifest.json`, as 64 lower-case hex digits. Workers refuse a folder with another digest. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::pattern(limits::DIGEST_PATTERN, limits::DIGEST)))]
    pub digest: Option<String>,
    /// Format of a sample. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required))]
    pub sample: Option<ExportedSampleSpec>,
    /// Whether the result of the model depends on how a batch is divided into micro-batches. Default: false.
    pub plan_dependent: Option<bool>,
    /// Number of parameter elements that the first and the last segment share. Default: 0.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::AMOUNT)))]
    pub shared_parameters: Option<u64>,
    /// Segments of the model, in order. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::mappings(limits::EXPORTED_SEGMENTS_MAX)))]
    pub segments: Option<Vec<ExportedSegmentSpec>>,
}

/// A sample is a list of whole numbers.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExportedSampleSpec {
    /// How many numbers a sample has. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::WIDTH)))]
    pub length: Option<u32>,
    /// Every number of a sample is less than this. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::VOCABULARY)))]
    pub values: Option<u32>,
    /// Whether each document of a dataset is one sample, of exactly `length` numbers. If false, samples are windows of the documents'
    /// tokens. Default: false.
    pub records: Option<bool>,
}

/// One segment. Operations and elements are those of one sample.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExportedSegmentSpec {
    /// Name of the segment in the user's model. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::text(limits::TEXT)))]
    pub name: Option<String>,
    /// Number of parameter elements that only this segment has. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::AMOUNT)))]
    pub parameters: Option<u64>,
    /// Shape of the segment's output, 1 to 8 sizes, without the batch dimension. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::sizes(limits::OUTPUT_DIMENSIONS_MAX)))]
    pub output: Option<Vec<u32>>,
    /// Floating-point operations of the forward of one sample. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::AMOUNT)))]
    pub forward_flops: Option<u64>,
    /// Floating-point operations of the backward of one sample, without recomputation. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::AMOUNT)))]
    pub backward_flops: Option<u64>,
    /// Number of elements of one sample that are kept from the forward to the backward, including the output and without the input.
    /// Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::AMOUNT)))]
    pub saved_elements: Option<u64>,
    /// Maximum number of additional elements that the forward or the backward of one sample needs. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::AMOUNT)))]
    pub working_elements: Option<u64>,
    /// SHA-256 of the names and shapes of the segment's parameters, as 64 lower-case hex digits. A checkpoint with other parameters is
    /// refused. Default: not compared.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::pattern(limits::DIGEST_PATTERN, limits::DIGEST)))]
    pub parameters_digest: Option<String>,
}
