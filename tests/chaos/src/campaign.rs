//! Many runs, each a line of `runs.jsonl`. A campaign that was interrupted continues with the next seed that has not been run.

use crate::judge::{Figures, Verdict};
use crate::run::Outcome;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

/// One run: a line of `runs.jsonl`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Seed of the run.
    pub seed: u64,
    /// Number of workers killed with SIGKILL.
    pub kills: u64,
    /// Number of coordinators killed with SIGKILL.
    pub coordinator_kills: u64,
    /// Number of faults, by kind.
    pub faults: BTreeMap<String, u64>,
    /// Number of steps of the job.
    pub steps: u64,
    /// Duration of the run, in seconds.
    pub seconds: f64,
    /// Numbers of plans, of recoveries, of coordinators that took over, and of recoveries from a checkpoint.
    pub changes: [usize; 4],
    /// Number of committed steps that were lost although holders of every unit were alive.
    pub steps_lost: u64,
    /// Number of committed steps that were run again because all holders of some unit were lost.
    pub steps_again: u64,
    /// Number of steps in the state of a checkpoint that nobody could report any more.
    pub unpublished: u64,
    /// Greatest difference of a loss from the undisturbed one, as a share of it.
    pub loss_difference: f64,
    /// Times from each kill to the next published step, ascending.
    pub pauses_ms: Vec<u64>,
    /// Longest time between two published steps.
    pub longest_ms: u64,
    /// Problems that the judge found.
    pub problems: Vec<String>,
}

impl Entry {
    /// The line of a run.
    #[must_use]
    pub fn new(seed: u64, outcome: &Outcome, verdict: &Verdict) -> Entry {
        let Figures {
            loss_difference,
            plans,
            recoveries,
            terms,
            steps_lost,
            steps_again,
            unpublished,
            restores,
            pauses_ms,
            longest_ms,
        } = verdict.figures.clone();
        let [kills, coordinator_kills] = outcome.kills;
        Entry {
            seed,
            kills,
            coordinator_kills,
            faults: outcome
                .faults
                .iter()
                .map(|(k, n)| ((*k).to_owned(), *n))
                .collect(),
            steps: outcome.evidence.steps,
            seconds: outcome.seconds,
            changes: [plans, recoveries, terms, restores],
            steps_lost,
            steps_again,
            unpublished,
            loss_difference,
            pauses_ms,
            longest_ms,
            problems: verdict.problems.iter().map(ToString::to_string).collect(),
        }
    }

    /// Number of processes killed with SIGKILL.
    #[must_use]
    pub fn all_kills(&self) -> u64 {
        self.kills + self.coordinator_kills
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [plans, recoveries, terms, restores] = self.changes;
        let faults: u64 = self.faults.values().sum();
        let verdict = if self.problems.is_empty() {
            "sound"
        } else {
            "FAILED"
        };
        write!(
            f,
            "seed {}: {verdict}; {} steps in {:.0} s, {faults} faults, {} kills of workers and {} of the coordinator, {plans} plans, \
             {recoveries} recoveries ({restores} from a checkpoint), {terms} terms; {} steps lost, {} run again, {} unpublished, losses differ by {:.1e}; \
             a kill to the next step {} ms (median), longest pause {:.1} s",
            self.seed,
            self.steps,
            self.seconds,
            self.kills,
            self.coordinator_kills,
            self.steps_lost,
            self.steps_again,
            self.unpublished,
            self.loss_difference,
            quantile(&self.pauses_ms, 50),
            self.longest_ms as f64 / 1e3,
        )
    }
}

/// The value below which this percentage of the ascending values is; 0 if there are no values.
#[must_use]
pub fn quantile(ascending: &[u64], percent: usize) -> u64 {
    let last = ascending.len().saturating_sub(1);
    ascending.get(last * percent / 100).copied().unwrap_or(0)
}

/// The file of a campaign.
#[derive(Clone, PartialEq, Debug)]
pub struct Campaign {
    path: PathBuf,
    /// The runs so far.
    pub entries: Vec<Entry>,
}

impl Campaign {
    /// Opens a campaign's file, or creates it.
    ///
    /// # Errors
    /// A line of the file is not a run.
    pub fn open(path: PathBuf) -> Result<Campaign> {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let entries: Result<Vec<Entry>, _> = text.lines().map(serde_json::from_str).collect();
        let entries = entries.with_context(|| format!("{} is damaged", path.display()))?;
        Ok(Campaign { path, entries })
    }

    /// Adds a run.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, entry: Entry) -> Result<()> {
        append(&self.path, &serde_json::to_string(&entry)?)
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        self.entries.push(entry);
        Ok(())
    }

    /// Whether a seed was run.
    #[must_use]
    pub fn has(&self, seed: u64) -> bool {
        self.entries.iter().any(|e| e.seed == seed)
    }

    /// Number of processes killed so far.
    #[must_use]
    pub fn kills(&self) -> u64 {
        self.entries.iter().map(Entry::all_kills).sum()
    }
}

fn append(path: &Path, line: &str) -> std::io::Result<()> {
    let mut file = std::fs::File::options().create(true).append(true).open(path)?;
    file.write_all(format!("{line}\n").as_bytes())
}

impl fmt::Display for Campaign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |of: fn(&Entry) -> u64| -> u64 { self.entries.iter().map(of).sum() };
        let mut faults: BTreeMap<&str, u64> = BTreeMap::new();
        for (kind, count) in self.entries.iter().flat_map(|e| &e.faults) {
            *faults.entry(kind).or_default() += count;
        }
        let mut pauses: Vec<u64> = self.entries.iter().flat_map(|e| e.pauses_ms.clone()).collect();
        pauses.sort_unstable();
        let difference = self.entries.iter().map(|e| e.loss_difference).fold(0.0, f64::max);
        let failed = self.entries.iter().filter(|e| !e.problems.is_empty()).count();
        let kinds: Vec<String> = faults
            .iter()
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect();
        let seconds: f64 = self.entries.iter().map(|e| e.seconds).sum();
        writeln!(f, "{} runs, {failed} failed, {seconds:.0} s", self.entries.len())?;
        writeln!(f, "faults: {}", kinds.join(", "))?;
        let [half, most, all] = [50, 95, 100].map(|p| quantile(&pauses, p));
        writeln!(
            f,
            "a kill to the next step: median {half} ms, 95 of 100 within {most} ms, all within {all} ms"
        )?;
        let longest = self.entries.iter().map(|e| e.longest_ms).max().unwrap_or(0);
        writeln!(f, "RESULT chaos.kills {}", self.kills())?;
        writeln!(f, "RESULT chaos.worker_kills {}", sum(|e| e.kills))?;
        writeln!(f, "RESULT chaos.faults {}", faults.values().sum::<u64>())?;
        writeln!(f, "RESULT chaos.steps_lost {}", sum(|e| e.steps_lost))?;
        writeln!(
            f,
            "RESULT chaos.steps_run_again_without_holder {}",
            sum(|e| e.steps_again)
        )?;
        writeln!(f, "RESULT chaos.steps_unpublished {}", sum(|e| e.unpublished))?;
        writeln!(f, "RESULT chaos.loss_difference {difference:.1e}")?;
        writeln!(f, "RESULT chaos.pause_median_ms {half}")?;
        writeln!(f, "RESULT chaos.pause_longest_ms {longest}")?;
        write!(f, "RESULT chaos.failed_runs {failed}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(seed: u64) -> Entry {
        Entry {
            seed,
            kills: 10,
            coordinator_kills: 1,
            faults: BTreeMap::from([("kill".to_owned(), 9)]),
            steps: 4,
            seconds: 1.5,
            changes: [3, 2, 1, 0],
            steps_lost: 0,
            steps_again: 5,
            unpublished: 0,
            loss_difference: 1e-7,
            pauses_ms: vec![100, 300, 200 * seed],
            longest_ms: 900,
            problems: vec![],
        }
    }

    #[test]
    fn a_campaign_is_taken_up_again_where_it_stood() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("runs.jsonl");
        let mut first = Campaign::open(path.clone()).unwrap();
        first.add(entry(3)).unwrap();
        first.add(entry(4)).unwrap();
        let second = Campaign::open(path).unwrap();
        assert_eq!(first, second);
        assert!(second.has(4) && !second.has(5));
        let text = second.to_string();
        assert!(text.contains("RESULT chaos.kills 22\n"), "{text}");
        assert!(text.contains("RESULT chaos.loss_difference 1.0e-7\n"), "{text}");
    }

    #[test]
    fn a_quantile_is_one_of_the_values() {
        assert_eq!([0, 50, 100].map(|p| quantile(&[1, 2, 9], p)), [1, 2, 9]);
        assert_eq!(quantile(&[], 50), 0);
    }
}
