//! The job that all runs train, and its data.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Words for the dataset.
const TEXT: &str = include_str!("../../fixtures/genesis.txt");

/// The job of one run.
#[derive(Clone, Debug)]
pub struct JobFile<'a> {
    /// Number of optimizer steps.
    pub steps: u64,
    /// Minimum number of stages in a pipeline. It affects the plans, but not the losses.
    pub min_depth: u32,
    /// The dataset, without its file extensions.
    pub data: &'a Path,
    /// A folder for checkpoints, and the number of steps between two.
    pub checkpoints: Option<(&'a Path, u64)>,
}

impl JobFile<'_> {
    /// The job file. The model is small enough for steps of a few milliseconds, and has enough segments for five stages.
    #[must_use]
    pub fn yaml(&self) -> String {
        let checkpoint = self.checkpoints.map_or(String::new(), |(folder, every)| {
            format!(
                "  checkpoint: {{uri: {}, intervalSteps: {every}}}\n",
                folder.display()
            )
        });
        format!(
            "apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata: {{name: chaos}}
spec:
  model: {{layers: 4, hiddenSize: 32, heads: 4, sequenceLength: 32, vocabularySize: 257, tiedHead: true, dropout: 0.1}}
  data: {{path: {data}, validationFraction: 0.1}}
  training:
    globalBatchSize: 4
    microBatchSize: 1
    steps: {steps}
    seed: 11
    optimizer: {{learningRate: 0.001, warmupSteps: 5}}
    evaluation: {{intervalSteps: 50, samples: 4}}
  pipeline: {{minDepth: {depth}}}
  elasticity: {{minWorkers: {depth}, maxWorkers: 8}}
  integrity: {{compareEverySteps: 3}}
{checkpoint}",
            data = self.data.display(),
            steps = self.steps,
            depth = self.min_depth,
        )
    }
}

/// Builds the dataset in a folder, unless it exists. Returns its path without file extensions.
///
/// # Errors
/// The program fails, or the folder cannot be written.
pub fn dataset(programs: &Path, folder: &Path) -> Result<PathBuf> {
    let prefix = folder.join("data");
    if prefix.with_extension("idx").exists() {
        return Ok(prefix);
    }
    let text = folder.join("text.txt");
    std::fs::write(&text, TEXT).with_context(|| format!("cannot write {}", text.display()))?;
    let output = Command::new(programs.join("varuna"))
        .args(["data", "build", "--tokenizer", "byte", "--output"])
        .arg(&prefix)
        .arg(&text)
        .output()
        .context("cannot start varuna")?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "varuna data build has failed: {why}");
    Ok(prefix)
}
