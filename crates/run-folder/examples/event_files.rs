//! Makes a run folder as several coordinators leave it behind, for `make test-tensorboard`: steps that are run again, a coordinator that
//! was killed within a record, and one whose clock was set back. Prints what stays of the steps: a JSON list of step and loss.

use std::path::{Path, PathBuf};
use varuna_plan::state::Chain;
use varuna_plan::{Generation, StateId, Step};
use varuna_run_folder::{FolderError, Metric, RunFiles, RunFolder, StepFigures};

/// Milliseconds since 1970.
const BEGAN: u64 = 1_795_344_944_000;

#[expect(clippy::cast_precision_loss, reason = "a few hundred steps")]
fn metric(generation: u64, step: u64, time_ms: u64) -> Metric {
    Metric {
        step: Step(step),
        loss: 6.0 / (step as f64 + generation as f64 / 8.0),
        no_targets: false,
        eval_loss: step.is_multiple_of(10).then_some(2.5),
        gradient_norm: 1.0,
        overflow: false,
        skipped_steps: 0,
        loss_scale: None,
        generation: Generation(generation),
        workers: 2,
        plan: "P2xD1".into(),
        tokens: 64,
        step_ms: 10.0,
        time_ms,
        state: StateId {
            run_gen: Generation(generation),
            step: Step(step),
            chain: Chain(step),
        },
        figures: StepFigures {
            consumed_samples: Some(step * 8),
            learning_rate: Some(1e-3),
            mfu: Some(0.0),
            ..StepFigures::default()
        },
    }
}

/// A coordinator that publishes the steps of these generations.
fn coordinate(
    path: &Path,
    began: u64,
    generations: &[(u64, std::ops::RangeInclusive<u64>)],
) -> Result<(), FolderError> {
    let mut folder = RunFolder::open(path, "job")?;
    let steps = generations.iter().cloned();
    let all = steps.flat_map(|(generation, steps)| steps.map(move |step| (generation, step)));
    for (number, (generation, step)) in (0u64..).zip(all) {
        folder.append_metric(metric(generation, step, began + 10 * number));
    }
    Ok(())
}

/// As if the process had been killed while it wrote its last record.
fn cut_newest(path: &Path) -> std::io::Result<()> {
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(path)? {
        files.push(entry?.path());
    }
    files.sort();
    let Some(newest) = files.last() else { return Ok(()) };
    let file = std::fs::OpenOptions::new().write(true).open(newest)?;
    file.set_len(file.metadata()?.len() - 20)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: event_files FOLDER")?);
    let events = RunFiles::new(&path).tensorboard_path();
    // A recovery went back to step 40.
    coordinate(&path, BEGAN, &[(1, 1..=60), (2, 41..=80)])?;
    cut_newest(&events)?;
    // The next coordinator goes back to a checkpoint, and its clock runs an hour late.
    coordinate(&path, BEGAN - 3_600_000, &[(3, 71..=100)])?;
    coordinate(&path, BEGAN + 5_000, &[(4, 101..=120)])?;
    let steps = RunFiles::new(&path).metrics()?;
    let steps: Vec<(u64, f64)> = steps.iter().map(|m| (m.step.0, m.loss)).collect();
    println!("{}", serde_json::to_string(&steps)?);
    Ok(())
}
