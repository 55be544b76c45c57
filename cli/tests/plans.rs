//! The text output of several plans. A change of the planner, of its cost model or of its texts changes these files, so a review shows the
//! effect on plans. `VARUNA_WRITE_GOLDEN=1` writes the files again.

use std::path::Path;
use std::process::Command;

const JOB: &str = "
apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata: {name: golden}
spec:
  model: MODEL
  data: {path: not-read}
  training: {globalBatchSize: BATCH, steps: 5, seed: 1, precision: bf16, optimizer: {learningRate: 0.001}}
  pipeline: {PIPELINE}
  elasticity: {maxWorkers: 64}
";

/// The arguments of a plan, and its text.
struct Case {
    name: &'static str,
    model: &'static str,
    batch: u32,
    pipeline: &'static str,
    arguments: &'static [&'static str],
}

const CASES: [Case; 4] = [
    // No grid fits this number of workers, so pipelines have different depths.
    Case {
        name: "h100-37",
        model: "{preset: gpt2-xl}",
        batch: 512,
        pipeline: "minDepth: 5",
        arguments: &["-n", "37", "--device", "h100-80g"],
    },
    // The state is larger than a device's memory, and neighbours are on one node where possible.
    Case {
        name: "a100-nodes-3x4",
        model: "{layers: 32, hiddenSize: 4096, heads: 32, sequenceLength: 1024, vocabularySize: 50304}",
        batch: 96,
        pipeline: "minDepth: 5",
        arguments: &["--nodes", "3x4", "--device", "a100-40g"],
    },
    // A measured profile and measured links.
    Case {
        name: "v100-profile-11",
        model: "{layers: 48, hiddenSize: 1600, heads: 16, sequenceLength: 1024, vocabularySize: 50304}",
        batch: 512,
        pipeline: "minDepth: 5",
        arguments: &["-n", "11", "--profile", "PROFILE", "--links", "LINKS"],
    },
    // Deep pipelines with few micro-batches: workers have several stages each.
    Case {
        name: "h100-8-interleaved",
        model: "{preset: gpt2-xl}",
        batch: 32,
        pipeline: "schedule: interleaved, minDepth: 4",
        arguments: &["--nodes", "1x8", "--device", "h100-80g"],
    },
];

#[test]
fn plans_read_as_they_were_reviewed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let measured = root.join("../bench/data/measured");
    let place = tempfile::tempdir().unwrap();
    for case in &CASES {
        let job = place.path().join("job.yaml");
        let text = JOB
            .replace("MODEL", case.model)
            .replace("PIPELINE", case.pipeline)
            .replace("BATCH", &case.batch.to_string());
        std::fs::write(&job, text).unwrap();
        let arguments = case.arguments.iter().map(|a| match *a {
            "PROFILE" => measured.join("gpt-1.5b-v100-profile.json"),
            "LINKS" => measured.join("p2p-10gbps.csv"),
            other => other.into(),
        });
        let mut command = Command::new(env!("CARGO_BIN_EXE_varuna"));
        command.arg("plan").arg(&job).args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}: {output:?}", case.name);
        assert_eq!(
            output.stdout,
            command.output().unwrap().stdout,
            "{}: the same question, the same bytes",
            case.name
        );
        let said = String::from_utf8(output.stdout).unwrap();
        let path = root.join(format!("tests/golden/{}.txt", case.name));
        if std::env::var_os("VARUNA_WRITE_GOLDEN").is_some() {
            std::fs::write(&path, &said).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap();
        let differs = said.lines().zip(golden.lines()).find(|(now, then)| now != then);
        assert!(
            said == golden,
            "{}: {differs:?}; if this is meant, write it anew with VARUNA_WRITE_GOLDEN=1",
            case.name
        );
    }
}
