//! The view of a run for the process around its coordinator.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};
use varuna_plan::Step;
use varuna_protocol::coordinator::{Event, Snapshot};
use varuna_run_folder::Metric;

/// The present state of a run, published a few times a second.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The protocol's present state.
    pub snapshot: Option<Snapshot>,
    /// The last committed step.
    pub metric: Option<Metric>,
    /// The newest entries of the event log as sentences, each with its number; watchers remember what they have shown.
    pub messages: VecDeque<(u64, String)>,
    /// The newest events of the protocol, each with its number (counted separately) and the time since the coordinator's start. Of
    /// successive committed steps only the first is included.
    pub events: VecDeque<(u64, Duration, Event)>,
    /// The checkpoints; none where the run has no store.
    pub checkpoints: Option<CheckpointHealth>,
}

/// The known state of a run's checkpoints.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckpointHealth {
    /// Step of the newest checkpoint that can be resumed from.
    pub newest: Option<Step>,
    /// When it was first seen.
    pub newest_at: Option<SystemTime>,
    /// Why the store cannot be asked, or why workers cannot upload to it; none if both work.
    pub failing: Option<String>,
    /// Whether the newest is older than a few save intervals, for whatever reason.
    pub stale: bool,
}
