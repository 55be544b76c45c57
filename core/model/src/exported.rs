//! A user's own model as its job file describes it: the cost of each of its segments. The code of the segments is in a folder that only
//! workers read (ADR 38).

use crate::layout::{Layout, Unit};
use crate::spec::{ModelSpec, SegmentKind, SegmentSpec};
use serde::{Deserialize, Serialize};

/// A model that `varuna_export` has cut into segments.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exported {
    /// Path of the folder, as written; a relative path is relative to the working directory.
    pub path: String,
    /// SHA-256 of the folder's manifest, 64 hex digits.
    pub digest: String,
    /// Format of a sample.
    pub sample: ExportedSample,
    /// Whether its result depends on how a batch is cut into micro-batches, because it draws random numbers or a sample sees others of its
    /// micro-batch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub plan_dependent: bool,
    /// Elements of the parameters that the first and the last segment share; 0 if they share none.
    #[serde(default)]
    pub shared_parameters: u64,
    /// The segments in order; at least one.
    pub segments: Vec<ExportedSegment>,
}

/// A sample of an exported model: whole numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExportedSample {
    /// How many numbers a sample has, at least 1.
    pub length: u32,
    /// Upper limit (exclusive) of the numbers.
    pub values: u32,
    /// Whether each document of a dataset is one sample, of exactly `length` numbers. Otherwise samples are windows of the documents'
    /// tokens.
    #[serde(default)]
    pub records: bool,
}

/// One segment. Operations and elements are those of one sample.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExportedSegment {
    /// Name of the segment in the user's model.
    pub name: String,
    /// Elements of the parameters that only this segment holds.
    pub parameters: u64,
    /// Shape of its output, without the batch.
    pub output: Vec<u32>,
    /// Floating-point operations of the forward.
    pub forward_flops: u64,
    /// Floating-point operations of the backward, without recompute.
    pub backward_flops: u64,
    /// See [`SegmentSpec::saved_elements`].
    pub saved_elements: u64,
    /// See [`SegmentSpec::working_elements`].
    pub working_elements: u64,
    /// SHA-256 of the names and shapes of its parameters, in the order of their names, since the order in which they are stored may differ
    /// in the next export. None in descriptions of older exports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters_digest: Option<String>,
}

impl ExportedSegment {
    /// Elements of its output.
    #[must_use]
    pub fn output_elements(&self) -> u64 {
        self.output
            .iter()
            .fold(1, |product, size| product.saturating_mul(u64::from(*size)))
    }
}

impl Exported {
    /// Segments and units.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout::new(
            u32::try_from(self.segments.len()).unwrap_or(u32::MAX),
            self.shared_parameters > 0,
        )
    }

    /// Number of parameters of a unit.
    #[must_use]
    pub fn unit_parameter_count(&self, unit: Unit) -> u64 {
        let own = self.segments.get(unit.index());
        own.map_or(self.shared_parameters, |segment| segment.parameters)
    }

    /// Elements of a segment's input for one sample.
    #[must_use]
    pub fn input_elements(&self, segment: u32) -> u64 {
        let before = segment.checked_sub(1).and_then(|s| self.segments.get(s as usize));
        before.map_or(self.sample.length.into(), ExportedSegment::output_elements)
    }

    /// The amounts that planning needs.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "costs are estimates")]
    pub fn spec(&self) -> ModelSpec {
        let segment = |(number, of): (u32, &ExportedSegment)| SegmentSpec {
            kind: SegmentKind::Block,
            parameters: of.parameters,
            forward_flops: of.forward_flops as f64,
            backward_flops: of.backward_flops as f64,
            saved_elements: of.saved_elements,
            working_elements: of.working_elements,
            input_elements: self.input_elements(number),
        };
        ModelSpec {
            segments: (0..).zip(&self.segments).map(segment).collect(),
            tied_parameters: self.shared_parameters,
        }
    }
}
