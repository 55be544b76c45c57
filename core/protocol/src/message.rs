//! The messages between coordinator, members and peers.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::{Decision, Generation, Plan, StateId, Step, Unit, WorkerId, state::UnitNorm};

/// Nanoseconds since a start that the driver chooses. Only differences are meaningful.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Time(pub u64);

impl Time {
    /// Later by a duration (saturating).
    #[must_use]
    pub fn after(self, d: Duration) -> Time {
        Time(
            self.0
                .saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
    /// Time since an earlier instant (zero if it is later).
    #[must_use]
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Where a member stands in its present plan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Phase {
    /// No plan; may hold state.
    Idle,
    /// The worker sends its state to the plan's members, and has no stage.
    Source,
    /// Connecting, rolling forward, fetching.
    Loading,
    /// The worker is at the base and connected to all peers; it waits for Go.
    Ready,
    /// Training.
    Running,
}

/// Whether a worker can follow the units that it will need (see [`PeerMessage::Follow`]), and how far it has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Following {
    /// The worker cannot follow: its version is older than this feature.
    #[default]
    Unable,
    /// The worker can follow.
    Able,
    /// The worker has a copy of each unit that it is to follow, but not yet a later gradient for each. The oldest of them has this many
    /// steps: if that is what the run has committed, the worker has caught up.
    Copied(Step),
    /// The worker follows all its units of the plan that it joins, and they are at the run's state, or nearly.
    CaughtUp,
}

/// Whether a worker can keep spare copies of units and let others keep copies of its own (ADR 27), and whether its copies are up to date.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Keeping {
    /// The worker cannot keep copies: its version is older than this feature. Versions that can follow could not always keep.
    #[default]
    Unable,
    /// The worker can keep copies. Those that it keeps, if any, are not at the run's state.
    Able,
    /// The worker keeps copies under its plan, and all of them are at the run's state: the loss of their holder costs no committed step.
    InStep,
}

/// A worker's status. It is sent on every change except that of the step, on a new stream, and as a heartbeat. The coordinator acts on the
/// latest one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Plan in force here; 0 = none.
    pub generation: Generation,
    /// Highest fence obeyed.
    pub fenced: Generation,
    /// The worker's phase in that plan.
    pub phase: Phase,
    /// Whether the base of the present generation is known (not merely announced).
    pub based: bool,
    /// All peers of the present plan are connected.
    pub connected: bool,
    /// A planned change that is being prepared; 0 = none.
    pub next: Generation,
    /// All peers of `next` are connected.
    pub next_connected: bool,
    /// The state reached.
    pub at: StateId,
    /// The worker was notified that it will be stopped: plan around it.
    pub draining: bool,
    /// The last step of the run, as far as the worker knows.
    pub last_step: Step,
    /// Whether it can follow units, and whether it has caught up.
    #[serde(default)]
    pub following: Following,
    /// Whether it can keep spare copies of units, and whether the ones it keeps are up to date.
    #[serde(default)]
    pub keeping: Keeping,
    /// Whether it can compute a plan's first step with parameters that others send it, before it has the state that it lacks (ADR 43).
    #[serde(default)]
    pub parameters_first: bool,
}

/// A unit whose gradient of one step is completely reduced on this worker, not yet applied.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Prepared {
    /// The generation that ran the step.
    pub run_gen: Generation,
    /// The step that was run (it leads to `step + 1`).
    pub step: Step,
    /// The unit's part of the norm exchange.
    pub norm: UnitNorm,
}

/// The last step that a worker ran, whether or not it committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ran {
    /// Generation in which the step ran.
    pub generation: Generation,
    /// Number of steps of the state from which it ran.
    pub step: Step,
    /// Whether it had put its norm into the exchange, so that others may have committed. False proves that nobody committed this step.
    pub norm_put_in: bool,
}

/// The answer to a fence: what the worker holds, and the promise not to commit in any generation up to `upto`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Inventory {
    /// The fence that it answers.
    pub upto: Generation,
    /// State held, by unit.
    pub units: BTreeMap<Unit, StateId>,
    /// Reduced gradients not yet applied, by unit.
    pub prepared: BTreeMap<Unit, Prepared>,
    /// The last step it ran.
    pub ran: Option<Ran>,
    /// The decision of its last commit.
    pub decision: Option<Decision>,
}

/// Digests of a worker's copies of a state: equal bits have equal digests, and different bits have different ones except by chance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Digests {
    /// The state.
    pub id: StateId,
    /// All members put this state into the store.
    pub saved: bool,
    /// The digests of those of its units that others hold too.
    pub units: Vec<(Unit, u64)>,
}

/// What a worker suspects about another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Suspicion {
    /// Nothing arrives from it any more, or the connection has ended. If it is about the worker itself: it makes no progress.
    Gone,
    /// This worker could not connect to the other one, or could not fetch from it.
    Unreachable,
    /// Data from it is damaged: invalid frames, or states that do not match the digest made by their sender. The cause may be its memory,
    /// this worker's, or the network between them.
    Damaged,
    /// About the worker itself: what it reads for its step (samples of the dataset, or the code of an exported model's segment) cannot be
    /// read, or did not come for long. It is also reported for a step that was stopped for another reason.
    NoData,
    /// About the worker itself: its device had no memory for the step.
    NoMemory(MemoryShortage),
}

/// What is known of memory that was not there, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MemoryShortage {
    /// What was asked for at once.
    pub needed_bytes: Option<u64>,
    /// What the device's driver reported as free then.
    pub free_bytes: Option<u64>,
}

impl fmt::Display for MemoryShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: Option<u64>| match bytes {
            Some(bytes) => format!("{} MiB", bytes.div_ceil(1 << 20)),
            None => "unknown".to_owned(),
        };
        write!(
            f,
            "asked for at once: {}, free: {}",
            mib(self.needed_bytes),
            mib(self.free_bytes)
        )
    }
}

/// What a worker itself lacks for a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    /// See [`Suspicion::NoData`].
    Data,
    /// See [`Suspicion::NoMemory`].
    Memory(MemoryShortage),
}

impl From<Lack> for Suspicion {
    fn from(lack: Lack) -> Suspicion {
        match lack {
            Lack::Data => Suspicion::NoData,
            Lack::Memory(shortage) => Suspicion::NoMemory(shortage),
        }
    }
}

/// Maximum number of commits in one answer to [`Order::Tell`].
pub const TOLD_AT_ONCE: usize = 256;

/// Worker to coordinator.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Report {
    /// The present level.
    Status(Status),
    /// Something is stuck or unreachable in `generation`. Nobody is dropped because of an accusation.
    Suspect {
        /// Generation of the suspicion.
        generation: Generation,
        /// The suspected worker (the reporting worker itself if it does not know).
        about: WorkerId,
        /// Kind of the problem.
        why: Suspicion,
    },
    /// The answer to a fence.
    Inventory(Inventory),
    /// A step was committed. One member of the generation reports it, for loss and metrics; the protocol itself only needs Status.
    Committed {
        /// The decision that was applied.
        decision: Decision,
    },
    /// The answer to [`Order::Tell`].
    Commits {
        /// The step after which commits were requested, as in the order.
        after: Step,
        /// The later commits that this worker knows, oldest first, at most [`TOLD_AT_ONCE`].
        decisions: Vec<Decision>,
    },
    /// Digests of this worker's copies of a state, to be compared with those of the other holders.
    Digests(Digests),
}

/// Coordinator to worker. All orders are idempotent and numbered, and carry the coordinator's term.
#[derive(Clone, PartialEq, Debug)]
pub enum Order {
    /// Stop every generation up to `upto` and send the inventory.
    Fence {
        /// Always a persisted generation number.
        upto: Generation,
    },
    /// Be a member or a source of this plan.
    Prepare(Arc<Plan>),
    /// Put this number into the norm exchange from now on.
    Arm {
        /// The planned change.
        generation: Generation,
    },
    /// Put the next state after step `after` into the store, whatever the interval says. A worker that has put one since then ignores it.
    Save {
        /// A step that was committed when this was wanted.
        after: Step,
    },
    /// Start training. To sources and non-members: state may be freed.
    Go {
        /// The generation.
        generation: Generation,
    },
    /// Report the commits after this step: the coordinator was away, or a report was lost.
    Tell {
        /// The last step that it knows.
        after: Step,
    },
    /// The run ends with this step. The greatest step ever ordered counts, so repeated and late orders do no harm.
    LastStep {
        /// The last step; it is already in the record.
        step: Step,
    },
    /// End of the run, or of a drained worker: exit with success.
    Release,
}

/// What a member and all members below it in the plan's tree report about a step that they have run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Norms {
    /// The step that was run.
    pub step: Step,
    /// The norms of the units that they own, that is, of which they are the first holder.
    pub units: Vec<(Unit, UnitNorm)>,
    /// The planned change that all of them are armed for (0 = none).
    pub armed: Generation,
    /// A checkpoint of the state that this step leads to is wanted. One such flag is enough. All members see it before any of them commits,
    /// so all put the same state.
    #[serde(default)]
    pub save: bool,
    /// Some member's store has not accepted an earlier checkpoint yet. Then all members skip the checkpoint that would be due: one that
    /// only some of them made would never be complete.
    #[serde(default)]
    pub store_busy: bool,
}

/// What follows from the norms of all members. It is the same for all of them, so all do the same.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Conclusion {
    /// The step's decision.
    pub decision: Decision,
    /// Some member wants a checkpoint of the state that the step leads to.
    pub save: bool,
    /// Some member's store has not accepted an earlier checkpoint yet.
    pub store_busy: bool,
}

/// Worker to worker, on a connection that belongs to one generation. Tensors travel on the data plane.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum PeerMessage {
    /// The norm exchange, upwards: to the parent in the plan's tree.
    Norm(Norms),
    /// The norm exchange, downwards: to the children in the plan's tree.
    Decided(Conclusion),
    /// Ask for a unit's state. It is answered only at the base and before Go.
    Fetch {
        /// The unit.
        unit: Unit,
    },
    /// Ask for a copy of a unit while its holder trains, and then for the reduced gradient of each step. It also acts as a
    /// [`PeerMessage::Fetch`]: a unit that has not been followed up to the base is sent whole there.
    Follow {
        /// The unit.
        unit: Unit,
        /// The state at which it is followed; none if a copy is needed.
        held: Option<StateId>,
    },
}
