//! A job for unit tests.

use varuna_api::Job;

/// A small job of nine steps with these settings of checkpoints; none where they are left out.
pub(crate) fn job(checkpoint: Option<&str>) -> Job {
    let checkpoint = checkpoint.map_or(String::new(), |c| format!("  checkpoint: {{{c}}}\n"));
    let text = format!(
        "apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata: {{name: small}}
spec:
  model: {{layers: 2, hiddenSize: 16, heads: 2, sequenceLength: 8, vocabularySize: 64}}
  data: {{path: nowhere}}
  training: {{globalBatchSize: 8, steps: 9, seed: 1, optimizer: {{learningRate: 0.001}}}}
{checkpoint}"
    );
    varuna_api::parse_job(&text).unwrap()
}
