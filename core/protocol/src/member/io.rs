//! A member's inputs and effects: its whole surface towards engine, peers, store and coordinator.

use crate::message::{Digests, Order, PeerMessage, Prepared, Report};
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, Generation, Layout, Plan, StateId, Step, Unit, WorkerId};

/// The member's own deadlines; that of a step comes with the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberTiming {
    /// Longest interval between two Status.
    pub heartbeat: Duration,
    /// How long connecting and fetching may show no progress before a link is suspected. Never grows. Ten times that where only the store is waited for.
    pub connect_deadline: Duration,
    /// How long a fetch may show no progress before the next source is asked.
    pub fetch_retry: Duration,
    /// How long a step that was run here may wait for the gradients of units whose spare copy this worker keeps, or as long as it took to run, if
    /// that is longer. Then it goes on without them, and the copy is asked for anew. Less than the least deadline of a step.
    pub spare_wait: Duration,
    /// How long the engine may take to stop, or to finish what cannot be stopped, once a fence waits for it. Less than a coordinator waits
    /// for a worker that is connected and does not answer (see [`crate::coordinator::Timing::unanswered`]).
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

/// What a member is configured with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberConfig {
    /// This worker.
    pub id: WorkerId,
    /// The model's units.
    pub layout: Layout,
    /// The run ends when this many steps are committed, unless more are ordered.
    pub last_step: Step,
    /// Steps between regular checkpoints; one is also made when it is ordered, and at the end. None = there is no store.
    pub checkpoint_every: Option<u64>,
    /// It can follow units (see [`PeerMessage::Follow`]): its driver knows the inputs and effects of that.
    pub follows: bool,
    /// Steps between comparisons of the holders' states; those of checkpoints are compared too. None = nothing is compared.
    pub compare_every: Option<u64>,
    /// Deadlines.
    pub timing: MemberTiming,
}

/// What may happen to a member.
#[derive(Clone, PartialEq, Debug)]
pub enum MemberInput {
    /// The clock: every few tens of milliseconds.
    Tick,
    /// A new stream to a coordinator is up.
    Stream,
    /// The stream to the coordinator has ended.
    StreamDown,
    /// From the newest stream.
    Order {
        /// The coordinator's term; orders of a lower term than the greatest seen are ignored.
        term: u64,
        /// What it wants.
        order: Order,
    },
    /// My dial to `peer` was accepted: it knows the plan.
    Connected {
        /// Of which generation.
        generation: Generation,
        /// Who accepted.
        peer: WorkerId,
    },
    /// A connection ended, in either direction.
    Closed {
        /// Of which generation.
        generation: Generation,
        /// To or from whom.
        peer: WorkerId,
    },
    /// What came from a peer was no sound frame; its connection is about to end.
    Damaged {
        /// Of which generation.
        generation: Generation,
        /// Who sent it.
        from: WorkerId,
    },
    /// A message on a connection of that generation.
    Peer {
        /// Of the connection.
        generation: Generation,
        /// Who sent it.
        from: WorkerId,
        /// The message.
        message: PeerMessage,
    },
    /// A whole unit lies staged under `(unit, id)`, from a peer or (`from` = this worker) from the store. The member answers
    /// at once with [`MemberEffect::Adopt`]; what it does not adopt is to be dropped.
    Fetched {
        /// Of the plan it was asked for.
        generation: Generation,
        /// Who sent it.
        from: WorkerId,
        /// Which unit.
        unit: Unit,
        /// The state it is at.
        id: StateId,
        /// The sender's last decision.
        decision: Option<Decision>,
    },
    /// Bytes of a fetch are arriving, from a peer or (`from` = this worker) from the store.
    FetchProgress {
        /// Of the plan it was asked for.
        generation: Generation,
        /// Who sends.
        from: WorkerId,
        /// Which unit.
        unit: Unit,
    },
    /// A fetch ended without a whole unit; with `from` = this worker: the store has no sound shard of it.
    FetchFailed {
        /// Of the plan it was asked for.
        generation: Generation,
        /// Who was asked.
        from: WorkerId,
        /// Which unit.
        unit: Unit,
    },
    /// A unit's state, see [`MemberEffect::Serve`], was sent to the end.
    Served {
        /// Of which generation.
        generation: Generation,
        /// To whom.
        to: WorkerId,
        /// Which unit.
        unit: Unit,
    },
    /// A gradient, see [`MemberEffect::Forward`], was sent to the end.
    Forwarded {
        /// Of which generation.
        generation: Generation,
        /// To whom.
        to: WorkerId,
        /// Which unit.
        unit: Unit,
    },
    /// The reduced gradient of a step lies staged under `(unit, decision.id)`. The member answers at once with
    /// [`MemberEffect::ApplyForwarded`]; what it does not take is to be dropped.
    Gradient {
        /// Of the connection.
        generation: Generation,
        /// Who sent it.
        from: WorkerId,
        /// Which unit.
        unit: Unit,
        /// The decision of its step.
        decision: Decision,
    },
    /// The reduced gradient of a step lies staged under unit, generation and step, for a spare copy that this worker keeps. Where it is
    /// wanted the member answers at once with [`MemberEffect::KeepGradient`]; else it is to be dropped.
    PreparedGradient {
        /// Of the connection.
        generation: Generation,
        /// Who sent it.
        from: WorkerId,
        /// Which unit.
        unit: Unit,
        /// The generation and step that were run, and the unit's part of the norm exchange, as in [`MemberEffect::ForwardPrepared`].
        prepared: Prepared,
    },
    /// Engine: every unit of mine is reduced for the step.
    Prepared {
        /// Of the plan that was run.
        generation: Generation,
        /// The step that was run.
        step: Step,
        /// All units of this worker.
        units: Vec<(Unit, UnitNorm)>,
        /// The store has not taken this worker's last checkpoint yet.
        store_busy: bool,
    },
    /// Engine, the answer to Abort: nothing runs; these units of the interrupted step are completely reduced.
    Stopped {
        /// Possibly none, possibly all.
        prepared: Vec<(Unit, UnitNorm)>,
    },
    /// Engine: the decision that leads to `id` is applied.
    Applied {
        /// `Decision::id` of the Apply.
        id: StateId,
    },
    /// Engine: a unit is at `id` now (the answer to Adopt, to ApplyForwarded, and to Load of the initial state).
    Loaded {
        /// Which unit.
        unit: Unit,
        /// Its state.
        id: StateId,
    },
    /// Engine: the running step broke for another reason than Abort. The engine idles and waits for Abort.
    StepFailed {
        /// Of the plan that was run.
        generation: Generation,
        /// Whom it was waiting for.
        about: Option<WorkerId>,
    },
    /// Engine: the step broke since its data could not be read; or it was stopped, and its data had not come for long. Else as StepFailed.
    StepLacksData {
        /// Of the plan that was run.
        generation: Generation,
    },
    /// Engine, the answer to Digest.
    Digested(Digests),
    /// This worker had notice that it will go.
    Drain,
}

/// What the driver does for a member, in order.
#[derive(Clone, PartialEq, Debug)]
pub enum MemberEffect {
    /// A plan was accepted: from now on peers' dials of its generation, which prove its secret, are accepted.
    Accepted(Arc<Plan>),
    /// Dial the peer until it accepts or until Disconnect.
    Connect {
        /// Of which generation.
        generation: Generation,
        /// The peer.
        peer: WorkerId,
        /// Where it listens.
        address: String,
    },
    /// Close all connections of the generation, end its dials, refuse further ones.
    Disconnect {
        /// Which one.
        generation: Generation,
    },
    /// On the connection of that generation. Dropped if there is none.
    Send {
        /// Of which generation.
        generation: Generation,
        /// To whom.
        to: WorkerId,
        /// The message.
        message: PeerMessage,
    },
    /// Send my copy of the unit as it is now over the data plane, one at a time to each peer. Answer: Served, unless the connection is closed.
    Serve {
        /// Of which generation.
        generation: Generation,
        /// To whom.
        to: WorkerId,
        /// Which unit.
        unit: Unit,
        /// Its state.
        id: StateId,
        /// Travels with it.
        decision: Option<Decision>,
    },
    /// Make a copy of the unit as it is now, beside the next step, and send that: training waits neither for the network nor for the
    /// reader. At most one at a time to each peer. Answer: Served, unless the connection is closed.
    Copy {
        /// Of which generation.
        generation: Generation,
        /// To whom.
        to: WorkerId,
        /// Which unit.
        unit: Unit,
        /// Its state.
        id: StateId,
        /// The decision that led to it.
        decision: Option<Decision>,
    },
    /// Copy the unit's reduced gradient (nothing of a skipped step), and send it with the decision. Answer: Forwarded, unless the connection is closed.
    Forward {
        /// Of which generation.
        generation: Generation,
        /// To whom.
        to: WorkerId,
        /// Which unit.
        unit: Unit,
        /// The decision of the step.
        decision: Decision,
    },
    /// Copy the unit's reduced gradient as it is now, and send it to who keeps its spare copy. Answer: Forwarded, unless the connection is closed.
    ForwardPrepared {
        /// Of which generation.
        generation: Generation,
        /// To whom.
        to: WorkerId,
        /// Which unit.
        unit: Unit,
        /// Travels with it.
        prepared: Prepared,
    },
    /// Keep the gradient that has just arrived for a spare copy until it is applied, whatever becomes of the connection; it is also forgotten with
    /// Free, and when the unit is adopted at a later step.
    KeepGradient {
        /// Which unit.
        unit: Unit,
        /// The step that was run.
        step: Step,
    },
    /// Engine: apply the decision with the staged gradient to the unit, uninterruptibly: with the one that came with it, or the one that was kept
    /// of the generation and step that it concludes. Answer: Loaded with `decision.id`.
    ApplyForwarded {
        /// Which unit; it is at the decision's parent when all that was ordered before is done.
        unit: Unit,
        /// What to apply.
        decision: Decision,
    },
    /// Send no more state in this generation: the engine is about to change it.
    StopServing {
        /// Which one.
        generation: Generation,
    },
    /// To the coordinator; dropped while no stream is up.
    Report(Report),
    /// `StateId::INITIAL`: the engine makes the unit from the job's seed and answers Loaded, always. Otherwise: stage the shard
    /// from the store and answer Fetched with `from` = this worker and this generation, or never. Repeated while it is lacking.
    Load {
        /// Of the plan that needs it.
        generation: Generation,
        /// The state.
        id: StateId,
        /// Which unit.
        unit: Unit,
    },
    /// Engine: take over the staged unit, in place of what was held. Answer: Loaded.
    Adopt {
        /// Which unit.
        unit: Unit,
        /// The state it is staged under.
        id: StateId,
    },
    /// Engine: run the step that follows `step` committed ones. Answer: Prepared or StepFailed, or Stopped after Abort.
    Run {
        /// The plan in force.
        plan: Arc<Plan>,
        /// Steps committed.
        step: Step,
        /// How long it may take.
        deadline: Duration,
    },
    /// Engine: stop the running step now. Answer: Stopped, always.
    Abort,
    /// Engine: apply the decision to these units, uninterruptibly. Answer: Applied. Also used to roll forward.
    Apply {
        /// What to apply.
        decision: Decision,
        /// To which units; each is prepared for it.
        units: Vec<Unit>,
    },
    /// Engine: forget the state of all other units.
    Free {
        /// What stays.
        keep: Vec<Unit>,
    },
    /// Copy the unit's state as it is now, and put it into the store under `(id, unit)` if absent.
    Put {
        /// Its state.
        id: StateId,
        /// Which unit.
        unit: Unit,
    },
    /// Compute the digests of these units' state as it is now, beside the next step. Answer: Digested, or none where it is not there.
    Digest {
        /// The state.
        id: StateId,
        /// All members put it into the store.
        saved: bool,
        /// Which units.
        units: Vec<Unit>,
    },
    /// End the process.
    Exit(ExitReason),
}

/// Why a worker's process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitReason {
    /// The coordinator let it go.
    Released,
    /// The run has reached its last step, and no coordinator came to say so.
    Finished,
    /// Nothing was committed and no coordinator was found for a long time.
    Orphaned,
    /// The engine does not stop: what it does is not known.
    EngineStuck,
}
