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
        ("all-fields.yaml", file("core/api/testdata/all-fields.yaml")),
        ("exported.yaml", file("core/api/testdata/exported.yaml")),
    ]
}

/// What every program does first with a job.
fn run(input: &[u8]) -> Result<String, String> {
    let job = parse_job(text(input)?).map_err(|errors| errors.to_string())?;
    let layout = job.layout().undivided();
    let parameters = layout
        .all_units()
        .map(|unit| job.model.unit_parameter_count(unit));
    assert!(parameters.sum::<u64>() > 0);
    assert_eq!(layout.all_units().count(), layout.units());
    assert_eq!(model_hash(&job.model, &job.training, "").len(), 64);
    assert_eq!(planner(&job).costs.layout(), layout);
    Ok(format!("{:?}", job.pipeline.schedules))
}
