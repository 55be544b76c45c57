//! The processor cores that the workers of a node share.

use serde::{Deserialize, Serialize};

/// The processor cores of one node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Host {
    /// Processor cores of a node.
    pub cores: u32,
    /// Threads that a worker computes with.
    pub threads: u32,
    /// Factor by which compute slows when 1, 2, ... workers compute at once, each on cores of its own, because of caches, memory and clock.
    /// The last value holds for more workers.
    pub slowdown: Vec<f64>,
}

impl Host {
    /// Factor by which each of this many workers is slower because they take turns.
    #[must_use]
    pub fn turns(&self, workers: u32) -> f64 {
        (f64::from(workers) * f64::from(self.threads) / f64::from(self.cores.max(1))).max(1.0)
    }

    /// The rate at which each of `active` tasks progresses that together want `wanted` cores; 1 = on cores of its own.
    pub(crate) fn rate(&self, active: usize, wanted: f64) -> f64 {
        let cores = f64::from(self.cores.max(1));
        let at_once = (self.cores / self.threads.max(1)).max(1) as usize;
        let slowdown = self.slowdown.get(active.min(at_once).max(1) - 1);
        let slowdown = slowdown.or(self.slowdown.last()).copied().unwrap_or(1.0);
        (cores / wanted).min(1.0) / slowdown.max(1e-9)
    }
}
