//! `coordinator.json`.

use serde::{Deserialize, Serialize};

/// How to reach the coordinator of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Contact {
    /// Address at which the coordinator listens: `host:port`.
    pub address: String,
    /// The run's token, which every request must carry; empty where the run has none.
    pub token: String,
    /// The certificate (PEM) that it shows; none where it speaks in the clear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Process id of the coordinator on its host.
    pub pid: u32,
}
