//! When a job ends for other reasons than its last step, and what ends its workers.

use serde::{Deserialize, Serialize};

/// When a job ends for other reasons than its last step, in a cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lifecycle {
    /// What crashing workers do to the job.
    pub failure_policy: FailurePolicy,
    /// Seconds for which the job may exist; none = no limit.
    pub active_deadline_seconds: Option<u64>,
    /// Seconds after its end at which it is deleted; none = never.
    pub ttl_seconds_after_finished: Option<u64>,
    /// Whether it may lose its training progress, and then begins anew.
    pub allow_state_loss: bool,
}

/// What crashing workers do to a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailurePolicy {
    /// Number of crashes, at different moments and without a step between them, after which the job fails; none = depends on the number of
    /// workers.
    pub max_crashes: Option<u32>,
    /// Number of failures on a node after which new pods avoid it.
    pub avoid_node_after: u32,
}

impl Default for FailurePolicy {
    fn default() -> Self {
        FailurePolicy {
            max_crashes: None,
            avoid_node_after: 3,
        }
    }
}

impl FailurePolicy {
    /// Number of crashes after which a job of `workers` workers fails: with more workers, more of them crash for reasons unrelated to the
    /// job.
    #[must_use]
    pub fn crashes_of(&self, workers: u32) -> usize {
        self.max_crashes.unwrap_or_else(|| workers.div_ceil(8).max(6)) as usize
    }
}

/// Which signals announce the end of a worker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Disruption {
    /// Taint prefixes and condition names that announce the end of a node.
    pub node_signals: Vec<String>,
    /// Seconds from a notice to the end of the worker, if the job sets them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice_seconds: Option<u32>,
}

impl Disruption {
    /// Seconds that a worker has after a notice. The default is 25: the shortest notice of a large cloud, minus the time until the pod
    /// receives it.
    #[must_use]
    pub fn grace_seconds(&self) -> u32 {
        self.notice_seconds.unwrap_or(25)
    }
}
