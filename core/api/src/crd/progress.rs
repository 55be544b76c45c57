//! How far a job has come, how its time was spent, and what has happened to it: the parts of its status that are kept from one report to the
//! next.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of entries of a job's history; the oldest are removed first.
pub const HISTORY_MAX: usize = 20;
/// Maximum number of recoveries that are kept; the oldest are removed first.
pub const RECOVERIES_MAX: usize = 10;

/// How the time since the job's first training was spent, in whole seconds. Time in which the job was queued, suspended, refused, complete
/// or failed is not counted.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TimeSpent {
    /// Time up to which the seconds are counted.
    #[schemars(with = "String")]
    pub until: Time,
    /// Seconds in which steps were committed, including steps that were trained again.
    #[serde(default)]
    pub training_seconds: i64,
    /// Seconds in which no worker trained because a new plan was made and came into force.
    #[serde(default)]
    pub recovering_seconds: i64,
    /// Seconds in which there were too few workers.
    #[serde(default)]
    pub waiting_seconds: i64,
    /// Seconds in which pods or the coordinator were starting.
    #[serde(default)]
    pub starting_seconds: i64,
    /// Part of the training time that was spent on steps that were lost later, because no worker held their state any more.
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

    /// The share of the time that was spent on steps that were not lost later, 0 to 1; none before any time has passed.
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
    /// Time at which training continued, or the next plan took over.
    #[schemars(with = "String")]
    pub at: Time,
    /// Cause: lost (a worker ended without notice), notice (a worker announced its end), takeover (another coordinator took over), joined
    /// (workers joined) or other.
    #[serde(default)]
    pub cause: String,
    /// Number of workers that were lost or had a notice.
    #[serde(default)]
    pub workers_lost: i64,
    /// Time without training, in milliseconds. It is 0 if training continued until the next plan took over.
    #[serde(default)]
    pub pause_ms: i64,
    /// Number of steps that are trained again, because no worker held their state any more.
    #[serde(default)]
    pub steps_lost: i64,
}

/// Total cost of all recoveries and planned changes with one cause, since the job began.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryTotals {
    /// The cause, as in a [`Recovery`].
    #[schemars(description = "Cause, as in recentRecoveries.")]
    pub cause: String,
    /// Number of recoveries and planned changes.
    #[serde(default)]
    pub count: i64,
    /// Number of workers that were lost or had a notice.
    #[serde(default)]
    pub workers_lost: i64,
    /// Total time without training, in milliseconds.
    #[serde(default)]
    pub pause_ms: i64,
    /// Number of steps that were trained again.
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
    /// Time of the event.
    #[schemars(with = "String")]
    pub at: Time,
    /// Reason in one word, as in the Kubernetes Event.
    pub reason: String,
    /// Description in a sentence.
    pub text: String,
}
