//! A job with an exported model.

use super::errors;
use crate::parse_job;
use varuna_model::{Exported, ExportedSample, ExportedSegment, Model};

const JOB: &str = include_str!("../../../testdata/exported.yaml");

#[test]
fn an_exported_model_is_what_its_section_says() {
    let job = parse_job(JOB).unwrap();
    let segment = |name: &str, parameters, output: &[u32]| ExportedSegment {
        name: name.into(),
        parameters,
        output: output.to_vec(),
        forward_flops: 4000,
        backward_flops: 8000,
        saved_elements: 300,
        working_elements: 50,
        // Older exports have no digest.
        parameters_digest: (name == "embed").then(|| "fedcba9876543210".repeat(4)),
    };
    let expected = Exported {
        path: "models/vit".into(),
        digest: "0123456789abcdef".repeat(4),
        sample: ExportedSample {
            length: 65,
            values: 17,
            records: true,
        },
        plan_dependent: true,
        shared_parameters: 16,
        segments: vec![segment("embed", 1088, &[17, 64]), segment("head", 650, &[10])],
    };
    assert_eq!(job.model, Model::Exported(expected));
    assert_eq!(job.pipeline.max_depth, 2, "one stage for a segment at most");
}

#[test]
fn fields_beside_an_exported_model_are_refused() {
    let refused = |from: &str, to: &str| errors(&JOB.replace(from, to)).join("\n");
    for (from, to, expected) in [
        (
            "  model:\n",
            "  model:\n    layers: 2\n",
            "spec.model: exported and other fields — exported alone",
        ),
        (
            "steps: 20",
            "steps: 20\n    precision: bf16",
            "spec.training.precision: 16 bits — fp32, as spec.model.exported",
        ),
        (
            "{path: digits}",
            "{path: digits, packing: {blockMask: true}}",
            "spec.data.packing: given — nothing, as spec.model.exported is not told",
        ),
        (
            "steps: 20",
            "steps: 20\n    masking: {maskToken: 1}",
            "spec.training.masking: given — nothing",
        ),
        (
            "0123456789abcdef",
            "0123456789ABCDEF",
            "spec.model.exported.digest: \"0123456789ABCDEF",
        ),
        (
            "parametersDigest: fedc",
            "parametersDigest: FEDC",
            "spec.model.exported.segments.0.parametersDigest: \"FEDC",
        ),
        (
            "output: [10]",
            "output: [1048576, 1048576, 1048576]",
            "spec.model.exported.segments.1.output: [1048576, 1048576, 1048576] — at most",
        ),
        (
            "output: [10]",
            "output: []",
            "spec.model.exported.segments.1.output: 0 sizes — a list of 1 to 8 sizes",
        ),
        (
            "output: [10]",
            "output: 10",
            "spec.model.exported.segments.1.output: 10 —",
        ),
        (
            "parameters: 650",
            "parameters: 1125899906842624",
            "spec.model.exported.segments: parameters 1125899906843712 — at most 1125899906842624 in all segments together",
        ),
        (
            "parameters: 650, ",
            "",
            "spec.model.exported.segments.1.parameters: missing — 0 to",
        ),
    ] {
        let found = refused(from, to);
        assert!(found.contains(expected), "{to}: {found}");
    }
}

#[test]
fn a_model_without_parameters_is_refused() {
    let nothing = ["sharedParameters: 16", "parameters: 1088", "parameters: 650"].iter();
    let nothing = nothing.fold(JOB.to_owned(), |job, field| {
        let (name, _) = field.split_once(' ').unwrap();
        job.replace(field, &format!("{name} 0"))
    });
    let found = errors(&nothing).join("\n");
    assert!(
        found.contains("spec.model.exported.segments: no parameters"),
        "{found}"
    );
}
