//! The job that tests run, and its data.

use crate::program;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The settings of a test job that tests vary.
#[derive(Clone, Debug)]
pub struct JobFile {
    /// Optimizer steps.
    pub steps: u64,
    /// Samples in a step.
    pub batch: u32,
    /// Fewest workers.
    pub min_workers: u32,
    /// Fewest stages in a pipeline.
    pub min_depth: u32,
    /// The order of work.
    pub schedule: &'static str,
    /// Blocks of the model.
    pub layers: u32,
    /// Width of the model: what makes a step longer.
    pub hidden: u32,
    /// The fields of `spec.checkpoint`.
    pub checkpoint: Option<String>,
}

impl Default for JobFile {
    fn default() -> Self {
        JobFile {
            steps: 60,
            batch: 8,
            min_workers: 1,
            min_depth: 1,
            schedule: "1f1b",
            layers: 4,
            hidden: 64,
            checkpoint: None,
        }
    }
}

impl JobFile {
    fn yaml(&self, data: &Path) -> String {
        let JobFile {
            steps,
            batch,
            min_depth,
            schedule,
            layers,
            hidden,
            ..
        } = self;
        let checkpoint = self.checkpoint.as_ref();
        let checkpoint = checkpoint.map_or(String::new(), |fields| format!("  checkpoint: {{{fields}}}\n"));
        let min_workers = self.min_workers.max(*min_depth);
        format!(
            "apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata: {{name: elastic}}
spec:
  model: {{layers: {layers}, hiddenSize: {hidden}, heads: 4, sequenceLength: 64, vocabularySize: 257, tiedHead: true, dropout: 0.1}}
  data: {{path: {data}, validationFraction: 0.1}}
  training:
    globalBatchSize: {batch}
    microBatchSize: 1
    steps: {steps}
    seed: 11
    optimizer: {{learningRate: 0.002, warmupSteps: 5}}
    evaluation: {{intervalSteps: 20, samples: 8}}
  pipeline: {{schedule: {schedule}, minDepth: {min_depth}}}
  elasticity: {{minWorkers: {min_workers}, maxWorkers: 8}}
{checkpoint}",
            data = data.display()
        )
    }
}

/// Writes a small dataset of real words and a job file into a folder; returns the job file's path.
///
/// # Panics
/// When the folder cannot be written.
#[must_use]
pub fn prepare(folder: &Path, job: &JobFile) -> PathBuf {
    let text = include_str!("../data/genesis.txt");
    let source = folder.join("text.txt");
    std::fs::write(&source, text).expect("a writable folder");
    let prefix = folder.join("data");
    let built = Command::new(program("varuna"))
        .args(["data", "build", "--tokenizer", "byte", "--output"])
        .arg(&prefix)
        .arg(&source)
        .output()
        .expect("varuna starts");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let path = folder.join("job.yaml");
    std::fs::write(&path, job.yaml(&prefix)).expect("a writable folder");
    path
}
