//! What a run is doing, for people and for the programs that watch it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What a run is doing, as its coordinator sees it. The serialized names are part of the control interface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RunMode {
    /// The coordinator reads the record.
    #[default]
    #[serde(rename = "boot")]
    Starting,
    /// A new coordinator waits for the members of the plan that it found.
    Settling,
    /// The members of a plan connect and load state.
    Launching,
    /// Steps are run.
    Training,
    /// Steps are run while another plan is prepared.
    Changing,
    /// There are too few workers, or there is no plan for them.
    Waiting,
    /// Workers are stopped and say what they hold.
    Recovering,
    /// The record is being written.
    Persisting,
    /// The last step is committed; workers are released.
    Done,
    /// The user ended the run; workers are stopped and released.
    Stopped,
    /// The coordinator has ended, also because another has taken over or state is lost.
    Ended,
    /// A mode of a coordinator of a later release that this one does not know. A coordinator never reports it about itself.
    #[serde(other)]
    Unknown,
}

impl RunMode {
    /// Steps are run.
    #[must_use]
    pub fn is_training(self) -> bool {
        matches!(self, RunMode::Training | RunMode::Changing)
    }

    /// Whether the coordinator is new, so that it may not have heard from all workers yet.
    #[must_use]
    pub fn is_settling(self) -> bool {
        matches!(self, RunMode::Starting | RunMode::Settling)
    }

    /// Whether no step follows any more.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, RunMode::Done | RunMode::Stopped | RunMode::Ended)
    }

    /// The serialized name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            RunMode::Starting => "boot",
            RunMode::Settling => "settling",
            RunMode::Launching => "launching",
            RunMode::Training => "training",
            RunMode::Changing => "changing",
            RunMode::Waiting => "waiting",
            RunMode::Recovering => "recovering",
            RunMode::Persisting => "persisting",
            RunMode::Done => "done",
            RunMode::Stopped => "stopped",
            RunMode::Ended => "ended",
            RunMode::Unknown => "unknown",
        }
    }
}

impl fmt::Display for RunMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
