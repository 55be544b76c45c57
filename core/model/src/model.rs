//! A job's model: one that Varuna describes, or one of the user's own.

use crate::exported::Exported;
use crate::layout::{Layout, Unit};
use crate::spec::ModelSpec;
use crate::transformer::Transformer;
use serde::{Deserialize, Serialize};

/// A model with all its sizes.
///
/// As JSON, a transformer is its fields, as in all releases; an exported model is `{"exported": {..}}`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Model {
    /// One of the user's own.
    Exported(Exported),
    /// One that sizes and features describe.
    #[serde(untagged)]
    Transformer(Transformer),
}

impl From<Transformer> for Model {
    fn from(transformer: Transformer) -> Model {
        Model::Transformer(transformer)
    }
}

impl From<Exported> for Model {
    fn from(exported: Exported) -> Model {
        Model::Exported(exported)
    }
}

impl Model {
    /// The transformer, if it is one.
    #[must_use]
    pub fn transformer(&self) -> Option<&Transformer> {
        match self {
            Model::Transformer(transformer) => Some(transformer),
            Model::Exported(_) => None,
        }
    }

    /// Segments and units.
    #[must_use]
    pub fn layout(&self) -> Layout {
        match self {
            Model::Transformer(transformer) => transformer.layout(),
            Model::Exported(exported) => exported.layout(),
        }
    }

    /// The amounts that planning needs.
    #[must_use]
    pub fn spec(&self) -> ModelSpec {
        match self {
            Model::Transformer(transformer) => transformer.spec(),
            Model::Exported(exported) => exported.spec(),
        }
    }

    /// Length of a sample: its tokens, or the numbers that it consists of.
    #[must_use]
    pub fn sample_length(&self) -> u32 {
        match self {
            Model::Transformer(transformer) => transformer.sequence_length,
            Model::Exported(exported) => exported.sample.length,
        }
    }

    /// Whether each document of a dataset must be one sample, of exactly [`Model::sample_length`] numbers.
    #[must_use]
    pub fn reads_records(&self) -> bool {
        matches!(self, Model::Exported(exported) if exported.sample.records)
    }

    /// Upper limit (exclusive) of the tokens of its data.
    #[must_use]
    pub fn vocabulary_size(&self) -> u32 {
        match self {
            Model::Transformer(transformer) => transformer.vocabulary_size,
            Model::Exported(exported) => exported.sample.values,
        }
    }

    /// Number of parameters of a unit.
    #[must_use]
    pub fn unit_parameter_count(&self, unit: Unit) -> u64 {
        match self {
            Model::Transformer(transformer) => transformer.unit_parameter_count(unit),
            Model::Exported(exported) => exported.unit_parameter_count(unit),
        }
    }

    /// Maximum number of elements that cross a cut for one sample.
    #[must_use]
    pub fn boundary_elements(&self) -> u64 {
        let segments = self.spec().segments;
        segments
            .iter()
            .skip(1)
            .map(|s| s.input_elements)
            .max()
            .unwrap_or(0)
    }

    /// Whether tokens see later tokens too, and some are masked in training.
    #[must_use]
    pub fn is_bidirectional(&self) -> bool {
        self.transformer().is_some_and(|t| t.features.bidirectional)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exported::{ExportedSample, ExportedSegment};
    use crate::presets;

    fn segment(parameters: u64, output: &[u32]) -> ExportedSegment {
        ExportedSegment {
            name: "a".into(),
            parameters,
            output: output.to_vec(),
            forward_flops: 10,
            backward_flops: 20,
            saved_elements: 30,
            working_elements: 40,
            parameters_digest: None,
        }
    }

    fn exported() -> Exported {
        Exported {
            path: "model".into(),
            digest: "0".repeat(64),
            sample: ExportedSample {
                length: 65,
                values: 17,
                records: true,
            },
            plan_dependent: false,
            shared_parameters: 7,
            segments: vec![segment(5, &[17, 64]), segment(0, &[8]), segment(6, &[10])],
        }
    }

    #[test]
    fn serialized_form_of_models_is_stable() {
        let gpt2 = presets::preset("gpt2-tiny").unwrap();
        let own = serde_json::to_value(&gpt2).unwrap();
        let model = Model::from(gpt2);
        assert_eq!(serde_json::to_value(&model).unwrap(), own);
        assert_eq!(serde_json::from_value::<Model>(own).unwrap(), model);

        let model = Model::from(exported());
        let json = serde_json::to_value(&model).unwrap();
        assert_eq!(
            json["exported"]["segments"][0]["output"],
            serde_json::json!([17, 64])
        );
        assert_eq!(serde_json::from_value::<Model>(json).unwrap(), model);
    }

    #[test]
    fn a_segment_reads_what_the_one_before_it_has_made() {
        let model = Model::from(exported());
        let spec = model.spec();
        let inputs: Vec<u64> = spec.segments.iter().map(|s| s.input_elements).collect();
        assert_eq!(inputs, [65, 17 * 64, 8]);
        assert_eq!(model.boundary_elements(), 17 * 64);
        assert_eq!(spec.tied_parameters, 7);
    }

    #[test]
    fn units_are_the_segments_and_what_the_ends_share() {
        let model = Model::from(exported());
        let counts: Vec<u64> = model
            .layout()
            .all_units()
            .map(|unit| model.unit_parameter_count(unit))
            .collect();
        assert_eq!(counts, [5, 0, 6, 7]);
        let alone = Model::from(Exported {
            shared_parameters: 0,
            ..exported()
        });
        assert_eq!(alone.layout().units(), 3);
    }
}
