//! Job files.

use super::{MORE, Seeds, text};
use crate::{Form, Target};
use varuna_api::{model_hash, parse_job, planner};

pub(super) const JOB: Target = Target {
    name: "job",
    what: "job files (YAML)",
    form: Form::Text,
    words: &[
        "spec:",
        "model:",
        "layers:",
        "hiddenSize:",
        "heads:",
        "preset:",
        "training:",
        "globalBatchSize:",
        "optimizer:",
        "pipeline:",
        "schedule: interleaved",
        "elasticity:",
        "workers:",
        "deviceMemory:",
        "checkpoint:",
        "disruption:",
        "nodeSignals:",
        "{",
        "}",
        "[",
        "]",
        ": ",
        "- ",
        "\n  ",
        "&a ",
        "*a",
        "<<: *a",
        "!!binary ",
        "|\n",
        "? ",
        "---\n",
        "...\n",
        "#",
        "'",
        "\"",
        "\\u0000",
        "\t",
        "%YAML 1.2\n",
        "0x7f",
        "0o7",
        "1_000",
        ".nan",
        ".inf",
        "~",
        "300Mi",
        "1e400",
    ],
    memory: MORE,
    seeds,
    run,
};

fn seeds() -> Seeds {
    let file = |path: &str| {
        let path = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read(path).expect("an example of the repository")
    };
    vec![
        ("demo.yaml", file("examples/demo.yaml")),
        ("gpt2-tiny.yaml", file("examples/gpt2-tiny.yaml")),
        ("gpt2-1.5b.yaml", file("bench/data/gpt2-1.5b.yaml")),
        ("all-fields.yaml", FULL.as_bytes().to_vec()),
    ]
}

/// A job with every field.
const FULL: &str = r#"apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata: {name: full, namespace: team-a, labels: {a: b}, annotations: {c: d}}
spec:
  model: {preset: gpt2-small, layers: 4, hiddenSize: 128, heads: 8, sequenceLength: 64, vocabularySize: 257, tiedHead: false, dropout: 0.1}
  data: {path: kjv, validationFraction: 0.1}
  training:
    globalBatchSize: 24
    microBatchSize: 3
    steps: 100
    seed: 7
    precision: fp32
    optimizer: {learningRate: 0.001, minLearningRate: 0, warmupSteps: 10, decaySteps: 90, beta1: 0.8, beta2: 0.99,
      epsilon: 1.0e-6, weightDecay: 0, clipNorm: 0}
    evaluation: {intervalSteps: 20, samples: 32}
  pipeline: {schedule: 1f1b, warmupFactor: 2, recompute: full, minDepth: 2, maxDepth: 5}
  elasticity: {minWorkers: 3, maxWorkers: 9}
  workers: {gpusPerPod: 4, image: "img:1", deviceMemory: 300Mi, threads: 2, template: {spec: {new: null}}}
  checkpoint: {uri: "s3://bucket/x", intervalSteps: 50, intervalSeconds: 600, keep: 2, uploadPerSecond: 5Mi}
  disruption: {nodeSignals: [example.com/spot], noticeSeconds: 30}
"#;

/// What every program does with a job first.
fn run(input: &[u8]) -> Result<String, String> {
    let job = parse_job(text(input)?).map_err(|errors| errors.to_string())?;
    let layout = job.model.layout();
    assert!(job.model.parameter_count() > 0);
    assert_eq!(layout.all_units().count(), layout.units());
    assert_eq!(model_hash(&job.model, &job.training, "").len(), 64);
    assert_eq!(planner(&job).costs.layout(), layout);
    Ok(format!("{:?}", job.pipeline.schedules))
}
