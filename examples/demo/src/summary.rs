//! What the run published, and its summary.

use anyhow::{Result, ensure};
use std::fmt::Write as _;
use std::path::Path;
use varuna_run_folder::{Metric, RunFiles};

/// What the chaos driver can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ActKind {
    /// kill -9 of one worker.
    Kill,
    /// One worker joins.
    Join,
}

/// Something the chaos driver did.
pub(crate) struct Act {
    /// Kind of the act.
    pub(crate) kind: ActKind,
    /// A short text.
    pub(crate) what: String,
    /// Time of the act, in milliseconds since 1970.
    pub(crate) time_ms: u64,
}

/// A run from its first to its last step.
pub(crate) struct DemoRun {
    /// Committed steps in the order of their publication.
    pub(crate) metrics: Vec<Metric>,
    /// What was done to it.
    pub(crate) acts: Vec<Act>,
}

impl DemoRun {
    /// Reads the run folder of a run that has ended.
    pub(crate) fn read(folder: &Path, acts: Vec<Act>) -> Result<DemoRun> {
        let files = RunFiles::new(folder);
        let metrics = files.metrics()?;
        ensure!(
            metrics.len() > 1,
            "{} holds no run",
            files.metrics_path().display()
        );
        Ok(DemoRun { metrics, acts })
    }

    /// Committed steps that were run again, or are missing from the sequence 1, 2, 3, ...
    pub(crate) fn steps_lost(&self) -> u64 {
        let expected = 1..=self.metrics.len() as u64;
        self.metrics
            .iter()
            .zip(expected)
            .filter(|(m, k)| m.step.0 != *k)
            .count() as u64
    }

    /// The longest time between two committed steps, in seconds.
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of one run")]
    pub(crate) fn longest_gap_s(&self) -> f64 {
        let gaps = self
            .metrics
            .windows(2)
            .map(|w| w[1].time_ms.saturating_sub(w[0].time_ms));
        gaps.max().unwrap_or(0) as f64 / 1e3
    }

    /// Median time between two committed steps, in seconds.
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of one run")]
    pub(crate) fn median_step_s(&self) -> f64 {
        let mut gaps: Vec<u64> = self
            .metrics
            .windows(2)
            .map(|w| w[1].time_ms.saturating_sub(w[0].time_ms))
            .collect();
        gaps.sort_unstable();
        gaps.get(gaps.len() / 2).copied().unwrap_or(0) as f64 / 1e3
    }

    /// The closing lines of the demo.
    pub(crate) fn report(&self, svg: &Path) -> String {
        let (first, last) = (&self.metrics[0], &self.metrics[self.metrics.len() - 1]);
        let mut text = String::from("\nWhat happened\n");
        for act in &self.acts {
            let before = self.metrics.iter().rev().find(|m| m.time_ms <= act.time_ms);
            let after = self.metrics.iter().find(|m| m.time_ms > act.time_ms);
            if let (Some(b), Some(a)) = (before, after) {
                let wait = a.time_ms.saturating_sub(act.time_ms);
                let _ = writeln!(
                    text,
                    "  {:<22} after step {:>4} of plan {:<8} next step {:>5} ms later",
                    act.what, b.step, b.plan, wait
                );
            }
        }
        let _ = write!(
            text,
            "  steps {}  lost {}  longest gap {:.2} s (median step {:.2} s)  loss {:.3} -> {:.3}\n  picture: {}\n",
            last.step,
            self.steps_lost(),
            self.longest_gap_s(),
            self.median_step_s(),
            first.loss,
            last.loss,
            svg.display()
        );
        text
    }
}
