//! Statistics of schedules.

use std::collections::BTreeMap;

/// What happened in one schedule, or in many.
#[derive(Default, Clone, Debug)]
pub struct Stats {
    /// Events.
    pub events: u64,
    /// Plans persisted.
    pub generations: u64,
    /// Number of these plans that were planned changes.
    pub planned: u64,
    /// Number of these plans that were recoveries which finish a step.
    pub rolled: u64,
    /// Number of these plans that were recoveries from a checkpoint beyond the initial state.
    pub restores: u64,
    /// Commits, one for each worker.
    pub commits: u64,
    /// Faults.
    pub faults: u64,
    /// Jobs that ended.
    pub done: u64,
    /// Jobs that were given up because nothing was left of some unit.
    pub lost: u64,
    /// Planned changes that were cancelled.
    pub cancelled: u64,
    /// Longest time from the end of the faults to the end of the job, in milliseconds of the world.
    pub recovery_max: u64,
    /// Time of the world, in milliseconds.
    pub simulated_ms: u64,
    /// What was reached, by kind: faults, reasons of fences, ways to resume, changes, ends.
    pub reached: BTreeMap<String, u64>,
}

impl Stats {
    /// Something of this kind happened.
    pub(super) fn reach(&mut self, kind: impl Into<String>) {
        *self.reached.entry(kind.into()).or_default() += 1;
    }

    /// Adds another schedule.
    pub fn add(&mut self, other: &Stats) {
        self.events += other.events;
        self.generations += other.generations;
        self.planned += other.planned;
        self.rolled += other.rolled;
        self.restores += other.restores;
        self.commits += other.commits;
        self.faults += other.faults;
        self.done += other.done;
        self.lost += other.lost;
        self.cancelled += other.cancelled;
        self.recovery_max = self.recovery_max.max(other.recovery_max);
        self.simulated_ms += other.simulated_ms;
        for (kind, count) in &other.reached {
            *self.reached.entry(kind.clone()).or_default() += count;
        }
    }
}
