//! Compares the losses of all disturbed runs with the loss curve of an undisturbed run.

use crate::job::{small, workers};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use varuna_cluster_tests::root;

/// Relative difference that is allowed. Other plans sum in another order, which changes a loss by a part in 10^5, and more in later steps.
/// If samples were skipped or used twice, the third digit would differ.
const RELATIVE: f64 = 1e-3;

/// The losses that were scraped, by step.
#[derive(Default)]
pub(crate) struct Curve {
    seen: Vec<(u64, f64, &'static str)>,
}

impl Curve {
    /// Adds the losses that a case scraped.
    pub(crate) fn extend(&mut self, case: &'static str, losses: impl IntoIterator<Item = (u64, f64)>) {
        self.seen
            .extend(losses.into_iter().map(|(step, loss)| (step, loss, case)));
    }

    /// Runs the job undisturbed on this machine, without a cluster, and compares the losses. `has_passed`: whether a case has passed in
    /// which losses are scraped.
    ///
    /// # Errors
    /// A loss differs, or there are none although there should be.
    pub(crate) fn compare(&self, has_passed: bool) -> Result<()> {
        let Some(last) = self.seen.iter().map(|(step, ..)| *step).max() else {
            ensure!(!has_passed, "no case has seen a loss");
            return Ok(());
        };
        let reference = reference(last)?;
        let (mut worst, mut compared) = ((0.0, 0, ""), 0);
        for (step, loss, case) in &self.seen {
            // Losses are known from the first step on.
            let Some(want) = reference.get(step) else { continue };
            compared += 1;
            let off = ((loss - want) / want).abs();
            if off > worst.0 {
                worst = (off, *step, *case);
            }
        }
        ensure!(
            compared > 0,
            "none of {} losses is of a step of the undisturbed run",
            self.seen.len()
        );
        println!(
            "the loss curve: {compared} losses up to step {last}, the greatest relative difference {:.1e} (step {}, {})",
            worst.0, worst.1, worst.2
        );
        println!("RESULT e2e.loss_difference {:.2e}", worst.0);
        ensure!(worst.0 <= RELATIVE, "{worst:?} is more than {RELATIVE:e}");
        Ok(())
    }
}

/// The losses of the same job with one worker, by step.
fn reference(steps: u64) -> Result<BTreeMap<u64, f64>> {
    let folder = tempfile::tempdir()?;
    let mut job = small("reference", workers());
    job["spec"]["training"]["steps"] = steps.into();
    job["spec"]["data"]["path"] = root().join(".cache/data/kjv").to_string_lossy().into();
    let file = folder.path().join("job.json");
    std::fs::write(&file, job.to_string())?;
    let binaries = std::env::var_os("BINARIES").map_or_else(|| root().join("target/release"), Into::into);
    let output = Command::new(binaries.join("varuna"))
        .arg("run")
        .arg(&file)
        .args(["--workers", "1", "--run-dir"])
        .arg(folder.path().join("run"))
        .env("VARUNA_WORKER", binaries.join("varuna-worker"))
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start varuna in {} (BINARIES)", binaries.display()))?;
    ensure!(
        output.status.success(),
        "the undisturbed run failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = std::fs::read_to_string(folder.path().join("run/metrics.jsonl"))?;
    let metrics = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(metrics
        .filter_map(|m| Some((m["step"].as_u64()?, m["loss"].as_f64()?)))
        .collect())
}
