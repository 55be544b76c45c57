//! Reads the files that a run has left.

use crate::judge::{Commit, Evidence, Problem};
use crate::processes::{Paths, Worker};
use crate::world::World;
use anyhow::{Context, Result};
use std::path::Path;
use varuna_plan::Step;
use varuna_protocol::Record;
use varuna_run_folder::{Metric, RunFiles};

/// Reads the run folder and the workers' logs.
///
/// # Errors
/// A file is missing. A damaged file is no error but a part of the evidence.
pub fn read(paths: &Paths, world: &World) -> Result<Evidence> {
    let files = RunFiles::new(&paths.run);
    let mut problems: Vec<Problem> = world.all_problems().collect();
    let mut damaged = |why: String| problems.push(Problem::Damaged { why });
    let events = files.events().unwrap_or_else(|error| {
        damaged(error.to_string());
        vec![]
    });
    let plans = files.plans().unwrap_or_else(|error| {
        damaged(error.to_string());
        vec![]
    });
    let published = metrics(&files.metrics_path(), &mut damaged)?;
    let text = std::fs::read_to_string(files.record_path()).context("cannot read the record")?;
    let record: Option<Record> = serde_json::from_str(&text)
        .map_err(|e| damaged(e.to_string()))
        .ok();
    let job = std::fs::read_to_string(&paths.job).context("cannot read the job file")?;
    let job = varuna_api::parse_job(&job).context("the job file")?;
    let holders = plans.iter().map(|plan| {
        let of_unit = plan
            .layout
            .all_units()
            .map(|unit| plan.shape.holders(&plan.layout, unit));
        (plan.generation, of_unit.collect())
    });
    let mut commits = Vec::new();
    for number in world.lives.keys() {
        let log = std::fs::read(paths.worker_log(&Worker::name(*number))).unwrap_or_default();
        commits.extend(String::from_utf8_lossy(&log).lines().filter_map(commit));
    }
    commits.sort_by_key(|c| c.time_ms);
    Ok(Evidence {
        steps: job.training.steps,
        exit: world.exit,
        published,
        events,
        holders: holders.collect(),
        record,
        lives: world.lives.values().cloned().collect(),
        commits,
        problems,
    })
}

/// All complete lines of `metrics.jsonl`, including those of steps that were run again.
fn metrics(path: &Path, damaged: &mut impl FnMut(String)) -> Result<Vec<Metric>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let read = complete.lines().enumerate().filter_map(|(index, line)| {
        let metric = serde_json::from_str(line);
        metric
            .map_err(|error| damaged(format!("{}, line {}: {error}", path.display(), index + 1)))
            .ok()
    });
    Ok(read.collect())
}

/// The line of a worker's log about a commit: `2026-01-31T23:59:59.123456Z DEBUG varuna_worker::agent: committed step=7 loss=2.5`.
fn commit(line: &str) -> Option<Commit> {
    let (before, after) = line.split_once(" committed step=")?;
    let (step, rest) = after.split_once(" loss=")?;
    let loss = rest.split(' ').next()?;
    Some(Commit {
        time_ms: milliseconds(before.split(' ').next()?)?,
        step: Step(step.parse().ok()?),
        loss: loss.parse().ok()?,
    })
}

/// A time of a log in milliseconds since 1970.
fn milliseconds(time: &str) -> Option<u64> {
    let number = |from: usize, to: usize| time.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    // In years that begin in March, the leap day is the last day (Hinnant, chrono-compatible low-level date algorithms).
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    let seconds = days * 86_400 + number(11, 13)? * 3_600 + number(14, 16)? * 60 + number(17, 19)?;
    Some(seconds * 1_000 + number(20, 23)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_read_from_a_workers_log() {
        let line = "2026-11-22T21:15:53.797994Z DEBUG varuna_worker::agent: committed step=12 loss=2.5";
        let read = commit(line).unwrap();
        assert_eq!((read.step, read.time_ms), (Step(12), 1_795_382_153_797));
        assert!((read.loss - 2.5).abs() < 1e-12);
        assert_eq!(
            commit("2026-11-22T21:15:53.797994Z  INFO varuna_worker: attached"),
            None
        );
        assert_eq!(milliseconds("1970-01-01T00:00:00.001Z"), Some(1));
        assert_eq!(milliseconds("2024-02-29T00:00:00.000Z"), Some(1_709_164_800_000));
    }
}
