//! What a member is configured with.

use std::time::Duration;
use varuna_plan::{Layout, Step, WorkerId};

/// The member's own deadlines; that of a step comes with the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberTiming {
    /// Longest interval between two Status.
    pub heartbeat: Duration,
    /// How long connecting or fetching may stall before a link is suspected; ten times that if only the store is awaited. Never grows.
    pub connect_deadline: Duration,
    /// How long a fetch may make no progress before the next source is asked.
    pub fetch_retry: Duration,
    /// How long a finished step may wait for the gradients of units whose spare copy this worker keeps, or as long as the step took if that
    /// is longer. Then it continues without them, and the copy is requested again. Shorter than the shortest step deadline.
    pub spare_wait: Duration,
    /// How long the engine may take to stop, or to finish what cannot be interrupted, when a fence waits for it. Shorter than a coordinator
    /// waits for a connected worker that does not answer (see [`crate::coordinator::Timing::unanswered`]).
    pub engine: Duration,
    /// How long a member that has reached the last step waits for a coordinator that is gone.
    pub finished: Duration,
    /// How long a member that commits nothing waits for a coordinator that is gone.
    pub orphan: Duration,
}

impl Default for MemberTiming {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(1),
            connect_deadline: Duration::from_secs(2),
            fetch_retry: Duration::from_millis(700),
            spare_wait: Duration::from_millis(500),
            engine: Duration::from_secs(45),
            finished: Duration::from_secs(10 * 60),
            orphan: Duration::from_secs(30 * 60),
        }
    }
}

/// The configuration of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberConfig {
    /// Id of this worker.
    pub id: WorkerId,
    /// The model's units.
    pub layout: Layout,
    /// The run ends when this many steps are committed, unless more are ordered.
    pub last_step: Step,
    /// Steps between regular checkpoints; one is also made when it is ordered, and at the end. None = there is no store.
    pub checkpoint_every: Option<u64>,
    /// Whether it can follow units (see [`crate::message::PeerMessage::Follow`]): its driver handles the inputs and effects of following.
    pub follows: bool,
    /// Whether it can run a plan's first step with parameters that others send it, and take over state meanwhile (ADR 43): its driver can.
    pub parameters_first: bool,
    /// Steps between comparisons of the holders' states; the states of checkpoints are compared too. None = no comparison.
    pub compare_every: Option<u64>,
    /// Deadlines.
    pub timing: MemberTiming,
}
