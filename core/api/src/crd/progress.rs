//! How far a job has come, how its time was spent, and what has happened to it: the parts of its status that are kept from one report to the
//! next.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Entries of a job's history; the oldest go first.
pub const HISTORY_MAX: usize = 20;
/// Recoveries that are kept; the oldest go first.
pub const RECOVERIES_MAX: usize = 10;

/// How the job's time was spent since it first trained, in whole seconds. Time in which it was suspended, complete or failed is not counted.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TimeSpent {
    /// Until when it is counted.
    #[schemars(with = "String")]
    pub until: Time,
    /// Steps were committed, those that were trained again included.
    #[serde(default)]
    pub training_seconds: i64,
    /// Workers stood while a plan was made and came into force.
    #[serde(default)]
    pub recovering_seconds: i64,
    /// There were too few workers.
    #[serde(default)]
    pub waiting_seconds: i64,
    /// Pods or the coordinator were starting.
    #[serde(default)]
    pub starting_seconds: i64,
    /// Of the training: what was trained a second time, because no worker held its state any more.
    #[serde(default)]
    pub repeated_seconds: i64,
}

impl TimeSpent {
    /// Nothing is counted yet.
    #[must_use]
    pub fn since(until: Time) -> TimeSpent {
        TimeSpent {
            until,
            training_seconds: 0,
            recovering_seconds: 0,
            waiting_seconds: 0,
            starting_seconds: 0,
            repeated_seconds: 0,
        }
    }

    /// The share of the time in which steps were trained that stayed, 0 to 1; none before any time has passed.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "seconds are far below 2^52")]
    pub fn goodput(&self) -> Option<f64> {
        let lost = self.recovering_seconds + self.waiting_seconds + self.starting_seconds;
        let all = self.training_seconds + lost;
        let good = (self.training_seconds - self.repeated_seconds).max(0);
        (all > 0).then(|| good as f64 / all as f64)
    }
}

/// A recovery, or a planned change of the workers that train, that is over.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    /// When training went on, or the next plan took over.
    #[schemars(with = "String")]
    pub at: Time,
    /// Why: lost (a worker went without notice), notice (a worker was to go), takeover (another coordinator), joined (workers came) or other.
    #[serde(default)]
    pub cause: String,
    /// Workers that were lost or had notice.
    #[serde(default)]
    pub workers_lost: i64,
    /// Time without training, in milliseconds: 0 where training went on until the next plan took over.
    #[serde(default)]
    pub pause_ms: i64,
    /// Steps that are trained again, because no worker held their state any more.
    #[serde(default)]
    pub steps_lost: i64,
}

/// What recoveries and planned changes of one cause have cost since the job began.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryTotals {
    /// Why, as in a [`Recovery`].
    #[schemars(description = "Why, as in recentRecoveries.")]
    pub cause: String,
    /// How many there were.
    #[serde(default)]
    pub count: i64,
    /// Workers that were lost or had notice.
    #[serde(default)]
    pub workers_lost: i64,
    /// Time without training, in milliseconds.
    #[serde(default)]
    pub pause_ms: i64,
    /// Steps that were trained again.
    #[serde(default)]
    pub steps_lost: i64,
}

impl RecoveryTotals {
    /// Counts one more.
    pub fn add(&mut self, recovery: &Recovery) {
        self.count = self.count.saturating_add(1);
        self.workers_lost = self.workers_lost.saturating_add(recovery.workers_lost);
        self.pause_ms = self.pause_ms.saturating_add(recovery.pause_ms);
        self.steps_lost = self.steps_lost.saturating_add(recovery.steps_lost);
    }
}

/// Something that happened to the job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// When.
    #[schemars(with = "String")]
    pub at: Time,
    /// In one word, as in the Event.
    pub reason: String,
    /// In a sentence.
    pub text: String,
}
