//! `coordinator.json`.

use serde::{Deserialize, Serialize};

/// How to reach the coordinator of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Contact {
    /// Where it listens: `host:port`.
    pub address: String,
    /// The run's token, which every request must carry; empty where the run has none.
    pub token: String,
    /// Its process id on its host.
    pub pid: u32,
}
