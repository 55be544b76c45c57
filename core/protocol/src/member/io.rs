//! A member's inputs and effects: its whole surface towards engine, peers, store and coordinator.

use crate::message::{Digests, Lack, Order, PeerMessage, Prepared, Report};
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, Generation, Plan, StateId, Step, Unit, WorkerId};

/// An input of a member.
#[derive(Clone, PartialEq, Debug)]
pub enum MemberInput {
    /// The clock: every few tens of milliseconds.
    Tick,
    /// A new stream to a coordinator is up.
    Stream,
    /// The stream to the coordinator has ended.
    StreamDown,
    /// An order on the newest stream.
    Order {
        /// The coordinator's term; orders of a lower term than the greatest seen are ignored.
        term: u64,
        /// The order.
        order: Order,
    },
    /// The connection that this worker opened to `peer` was accepted: the peer knows the plan.
    Connected {
        /// The generation.
        generation: Generation,
        /// The peer that accepted.
        peer: WorkerId,
    },
    /// A connection ended, in either direction.
    Closed {
        /// The generation.
        generation: Generation,
        /// The peer.
        peer: WorkerId,
    },
    /// A peer sent an invalid frame; its connection is about to end.
    Damaged {
        /// The generation.
        generation: Generation,
        /// The sender.
        from: WorkerId,
    },
    /// A message on a connection of that generation.
    Peer {
        /// The connection's generation.
        generation: Generation,
        /// The sender.
        from: WorkerId,
        /// The message.
        message: PeerMessage,
    },
    /// A whole unit is staged under `(unit, id)`, from a peer or (`from` = this worker) from the store. The member answers at once with
    /// [`MemberEffect::Adopt`]; if it does not, the unit must be dropped.
    Fetched {
        /// The generation of the plan for which it was requested.
        generation: Generation,
        /// The sender.
        from: WorkerId,
        /// The unit.
        unit: Unit,
        /// The state it is at.
        id: StateId,
        /// The sender's last decision.
        decision: Option<Decision>,
    },
    /// Bytes of a fetch are arriving, from a peer or (`from` = this worker) from the store.
    FetchProgress {
        /// The generation of the plan for which it was requested.
        generation: Generation,
        /// The sender.
        from: WorkerId,
        /// The unit.
        unit: Unit,
    },
    /// A fetch ended without a whole unit. `from` = this worker: the store has no valid shard of it.
    FetchFailed {
        /// The generation of the plan for which it was requested.
        generation: Generation,
        /// The source that was asked.
        from: WorkerId,
        /// The unit.
        unit: Unit,
    },
    /// A unit's state was sent completely (see [`MemberEffect::Serve`]).
    Served {
        /// The generation.
        generation: Generation,
        /// The receiver.
        to: WorkerId,
        /// The unit.
        unit: Unit,
    },
    /// The sender had no memory for a [`MemberEffect::Copy`] of the unit to this receiver: nothing was sent.
    NotCopied(Generation, WorkerId, Unit),
    /// A gradient was sent completely (see [`MemberEffect::Forward`]).
    Forwarded {
        /// The generation.
        generation: Generation,
        /// The receiver.
        to: WorkerId,
        /// The unit.
        unit: Unit,
    },
    /// The reduced gradient of a step is staged under `(unit, decision.id)`. The member answers at once with
    /// [`MemberEffect::ApplyForwarded`]; if it does not, the gradient must be dropped.
    Gradient {
        /// The connection's generation.
        generation: Generation,
        /// The sender.
        from: WorkerId,
        /// The unit.
        unit: Unit,
        /// The decision of its step.
        decision: Decision,
    },
    /// The reduced gradient of a step is staged under unit, generation and step, for a spare copy that this worker keeps. If it is wanted,
    /// the member answers at once with [`MemberEffect::KeepGradient`]; otherwise it must be dropped.
    PreparedGradient {
        /// The connection's generation.
        generation: Generation,
        /// The sender.
        from: WorkerId,
        /// The unit.
        unit: Unit,
        /// The generation and step that were run, and the unit's part of the norm exchange, as in [`MemberEffect::ForwardPrepared`].
        prepared: Prepared,
    },
    /// Engine: every unit of this worker is reduced for the step.
    Prepared {
        /// The generation that ran.
        generation: Generation,
        /// The step that was run.
        step: Step,
        /// All units of this worker.
        units: Vec<(Unit, UnitNorm)>,
        /// The store has not accepted this worker's last checkpoint yet.
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
        /// The unit.
        unit: Unit,
        /// State of the unit.
        id: StateId,
    },
    /// Engine: the running step failed for a reason other than Abort. The engine is idle and waits for Abort.
    StepFailed {
        /// The generation that ran.
        generation: Generation,
        /// The worker that it was waiting for, if known.
        about: Option<WorkerId>,
    },
    /// Engine: the step of this generation failed since this worker lacks something, or was stopped after a long wait for its data. Else
    /// as StepFailed.
    StepLacks(Generation, Lack),
    /// Engine, the answer to Digest.
    Digested(Digests),
    /// This worker was notified that it will be stopped.
    Drain,
}

/// What the driver must do for a member, in order.
#[derive(Clone, PartialEq, Debug)]
pub enum MemberEffect {
    /// A plan was accepted. From now on peers' connections of its generation are accepted if they prove its secret.
    Accepted(Arc<Plan>),
    /// Dial the peer until it accepts or until Disconnect.
    Connect {
        /// The generation.
        generation: Generation,
        /// The peer.
        peer: WorkerId,
        /// Address at which the peer listens.
        address: String,
    },
    /// Close all connections of the generation, end its dials, refuse further ones.
    Disconnect {
        /// The generation whose connections are closed.
        generation: Generation,
    },
    /// Send on the connection of that generation. Dropped if there is none.
    Send {
        /// The generation.
        generation: Generation,
        /// The receiver.
        to: WorkerId,
        /// The message.
        message: PeerMessage,
    },
    /// Send the unit's present state over the data plane, one unit at a time to each peer. Answer: Served, unless the connection closes.
    Serve {
        /// The generation.
        generation: Generation,
        /// The receiver.
        to: WorkerId,
        /// The unit.
        unit: Unit,
        /// State of the unit.
        id: StateId,
        /// The decision that is sent with the unit.
        decision: Option<Decision>,
    },
    /// Copy the unit's present state while the next step runs, and send the copy: training waits neither for the network nor for the
    /// reader. Answer: Served or NotCopied, unless the connection closes.
    Copy {
        /// The generation.
        generation: Generation,
        /// The receiver.
        to: WorkerId,
        /// The unit.
        unit: Unit,
        /// State of the unit.
        id: StateId,
        /// The decision that led to it.
        decision: Option<Decision>,
    },
    /// Copy the unit's reduced gradient (none of a skipped step), and send it with the decision. Answer: Forwarded, unless closed.
    Forward {
        /// The generation.
        generation: Generation,
        /// The receiver.
        to: WorkerId,
        /// The unit.
        unit: Unit,
        /// The decision of the step.
        decision: Decision,
    },
    /// Copy the unit's reduced gradient, and send it to the keeper of its spare copy. Answer: Forwarded, unless the connection closes.
    ForwardPrepared {
        /// The generation.
        generation: Generation,
        /// The receiver.
        to: WorkerId,
        /// The unit.
        unit: Unit,
        /// The norm that is sent with the gradient.
        prepared: Prepared,
    },
    /// Keep the gradient that has just arrived for a spare copy until it is applied, even if the connection closes. It is also dropped by
    /// Free, and when the unit is adopted at a later step.
    KeepGradient {
        /// The unit.
        unit: Unit,
        /// The step that was run.
        step: Step,
    },
    /// Engine: apply the decision to the unit, uninterruptibly: with the gradient that came with it, or with the kept gradient of the
    /// generation and step that it concludes. Answer: Loaded with `decision.id`.
    ApplyForwarded {
        /// Which unit; it is at the decision's parent once everything ordered before is done.
        unit: Unit,
        /// The decision to apply.
        decision: Decision,
    },
    /// Stop sending state in this generation: the engine is about to change it.
    StopServing {
        /// The generation in which nothing is sent any more.
        generation: Generation,
    },
    /// Send a report to the coordinator; dropped while no stream is up.
    Report(Report),
    /// If `id` is `StateId::INITIAL`, the engine makes the unit from the job's seed and always answers Loaded. Otherwise: stage the shard
    /// from the store and answer Fetched with `from` = this worker and this generation, or never. Repeated while the unit is missing.
    Load {
        /// The generation of the plan that needs it.
        generation: Generation,
        /// The state.
        id: StateId,
        /// The unit.
        unit: Unit,
    },
    /// Engine: replace the held unit with the staged one. Answer: Loaded.
    Adopt {
        /// The unit.
        unit: Unit,
        /// The state it is staged under.
        id: StateId,
    },
    /// Engine: run the step after the first `step` committed ones. Answer: Prepared or StepFailed, or Stopped after Abort.
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
        /// The decision to apply.
        decision: Decision,
        /// Units that it applies to; each is prepared for it.
        units: Vec<Unit>,
    },
    /// Engine: forget the state of all other units.
    Free {
        /// The units whose state stays.
        keep: Vec<Unit>,
    },
    /// Copy the unit's present state, and put it into the store under `(id, unit)` if it is not there.
    SaveUnit {
        /// State of the unit.
        id: StateId,
        /// The unit.
        unit: Unit,
    },
    /// Compute digests of the present state of these units while the next step runs. Answer: Digested, or none if the state is not there.
    Digest {
        /// The state.
        id: StateId,
        /// Whether all members put it into the store.
        saved: bool,
        /// The units.
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
    /// The run has reached its last step, and no coordinator came to confirm it.
    Finished,
    /// Nothing was committed and no coordinator was found for a long time.
    Orphaned,
    /// The engine does not stop; what it is doing is not known.
    EngineStuck,
}
