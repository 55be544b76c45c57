//! The worker's side of the protocol: what it holds, which generation it is in, when a step is committed.
//!
//! A [`Member`] drives one engine, one set of peer connections and one coordinator stream, all outside of it. It never
//! touches a tensor: it knows state by [`StateId`] only. Two rules carry everything: an inventory leaves only when the engine
//! has said that nothing runs (it is a promise not to commit), and an apply is never interrupted.

mod loading;
mod orders;
mod step;
#[cfg(test)]
mod tests;

use crate::message::{Norms, Order, PeerMessage, Phase, Prepared, Ran, Report, Status, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, Generation, Layout, Plan, StateId, Step, Unit, WorkerId};

/// Commits that are told again on a new stream, so that a coordinator that was away misses none.
const HISTORY: usize = 4096;

/// The member's own deadlines; that of a step comes with the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberTiming {
    /// A Status is sent at least so often.
    pub heartbeat: Duration,
    /// Connecting and fetching may show no progress for so long before a link is blamed. Never grows.
    pub connect_deadline: Duration,
    /// A fetch without progress is asked again, from the next source, after so long.
    pub fetch_retry: Duration,
}

impl Default for MemberTiming {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(1),
            connect_deadline: Duration::from_secs(2),
            fetch_retry: Duration::from_millis(700),
        }
    }
}

/// What a member is told once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberConfig {
    /// This worker.
    pub id: WorkerId,
    /// The model's units.
    pub layout: Layout,
    /// The run ends when this many steps are committed.
    pub last_step: Step,
    /// A checkpoint every so many steps and at the end; none = never.
    pub checkpoint_every: Option<u64>,
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
    /// with [`MemberEffect::Adopt`] or ignores it; what was not adopted may be dropped at the next `Free` or `Disconnect`.
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
    /// Bytes of a fetch are arriving.
    FetchProgress {
        /// Of the plan it was asked for.
        generation: Generation,
        /// Who sends.
        from: WorkerId,
        /// Which unit.
        unit: Unit,
    },
    /// A fetch ended without a whole unit.
    FetchFailed {
        /// Of the plan it was asked for.
        generation: Generation,
        /// Who was asked.
        from: WorkerId,
        /// Which unit.
        unit: Unit,
    },
    /// Engine: every unit of mine is reduced for the step.
    Prepared {
        /// Of the plan that was run.
        generation: Generation,
        /// The step that was run.
        step: Step,
        /// All units of this worker.
        units: Vec<(Unit, UnitNorm)>,
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
    /// Engine: a unit is at `id` now (the answer to Adopt, and to Load of the initial state).
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
    /// This worker had notice that it will go.
    Drain,
}

/// What the driver does for a member, in order.
#[derive(Clone, PartialEq, Debug)]
pub enum MemberEffect {
    /// A plan was accepted: from now on peers' dials of its generation, with its secret, are accepted.
    Accepted(Arc<Plan>),
    /// Dial the peer until it accepts or until Disconnect.
    Connect {
        /// Of which generation.
        generation: Generation,
        /// Whom.
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
        /// What.
        message: PeerMessage,
    },
    /// Send my copy of the unit, as it is now, over the data plane.
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
    /// To the coordinator; dropped while no stream is up.
    Report(Report),
    /// `StateId::INITIAL`: the engine makes the unit from the job's seed and answers Loaded, always. Otherwise: stage the shard
    /// from the store and answer Fetched with `from` = this worker, or never. Repeated while it is lacking.
    Load {
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
    /// End the process with success.
    Exit,
}

/// What the engine is busy with.
#[derive(Clone, PartialEq, Debug)]
enum Engine {
    Idle,
    Running {
        generation: Generation,
        step: Step,
    },
    /// Broke by itself; still has to say which units are reduced.
    Failed {
        generation: Generation,
        step: Step,
    },
    Stopping {
        generation: Generation,
        step: Step,
    },
    Applying {
        decision: Decision,
        units: Vec<Unit>,
        commit: bool,
    },
}

/// A fetch under way.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Fetch {
    from: WorkerId,
    asked_at: Time,
}

/// The worker's state machine.
pub struct Member {
    config: MemberConfig,
    #[cfg(feature = "mutants")]
    mutant: Option<crate::mutant::Mutant>,
    // outlives a plan
    held: BTreeMap<Unit, StateId>,
    prepared: BTreeMap<Unit, Prepared>,
    decision: Option<Decision>,
    ran: Option<Ran>,
    fenced: Generation,
    term: u64,
    at: StateId,
    history: VecDeque<Decision>,
    draining: bool,
    exited: bool,
    beat_at: Time,
    // the engine
    engine: Engine,
    adopting: BTreeMap<Unit, StateId>,
    pending_fence: Option<Generation>,
    pending_plan: Option<Arc<Plan>>,
    // the plan in force here
    plan: Option<Arc<Plan>>,
    phase: Phase,
    base: Option<StateId>,
    peers: BTreeSet<WorkerId>,
    progress_at: Time,
    norms: BTreeMap<(Step, WorkerId), Norms>,
    fetches: BTreeMap<Unit, Fetch>,
    shards_asked: BTreeMap<Unit, Time>,
    turn: usize,
    asks: BTreeSet<(Generation, WorkerId, Unit)>,
    /// The generation that a planned change left; its connections stay open until Go.
    previous: Option<Generation>,
    // a planned change
    next: Option<Arc<Plan>>,
    next_peers: BTreeSet<WorkerId>,
    armed: Generation,
}

impl Member {
    /// A member that holds nothing and knows no plan.
    #[must_use]
    pub fn new(config: MemberConfig) -> Self {
        Member {
            config,
            #[cfg(feature = "mutants")]
            mutant: None,
            held: BTreeMap::new(),
            prepared: BTreeMap::new(),
            decision: None,
            ran: None,
            fenced: Generation(0),
            term: 0,
            at: StateId::INITIAL,
            history: VecDeque::new(),
            draining: false,
            exited: false,
            beat_at: Time(0),
            engine: Engine::Idle,
            adopting: BTreeMap::new(),
            pending_fence: None,
            pending_plan: None,
            plan: None,
            phase: Phase::Idle,
            base: None,
            peers: BTreeSet::new(),
            progress_at: Time(0),
            norms: BTreeMap::new(),
            fetches: BTreeMap::new(),
            shards_asked: BTreeMap::new(),
            turn: 0,
            asks: BTreeSet::new(),
            previous: None,
            next: None,
            next_peers: BTreeSet::new(),
            armed: Generation(0),
        }
    }

    /// Switches a seeded bug on.
    #[cfg(feature = "mutants")]
    #[doc(hidden)]
    #[must_use]
    pub fn with_mutant(mut self, mutant: Option<crate::mutant::Mutant>) -> Self {
        self.mutant = mutant;
        self
    }

    /// The generation of the plan in force here; 0 = none.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.plan.as_ref().map_or(Generation(0), |p| p.generation)
    }
    /// The plan in force here.
    #[must_use]
    pub fn plan(&self) -> Option<&Arc<Plan>> {
        self.plan.as_ref()
    }
    /// State held, by unit.
    #[must_use]
    pub fn held(&self) -> &BTreeMap<Unit, StateId> {
        &self.held
    }
    /// Reduced gradients not yet applied, by unit.
    #[must_use]
    pub fn prepared(&self) -> &BTreeMap<Unit, Prepared> {
        &self.prepared
    }
    /// It was released and takes no further input.
    #[must_use]
    pub fn exited(&self) -> bool {
        self.exited
    }

    /// The present level.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            generation: self.generation(),
            fenced: self.fenced,
            phase: self.phase,
            based: self.base.is_some(),
            connected: self.met(self.plan.as_deref(), &self.peers),
            next: self.next.as_ref().map_or(Generation(0), |p| p.generation),
            next_connected: self.met(self.next.as_deref(), &self.next_peers),
            at: self.at,
            draining: self.draining,
        }
    }

    /// All members of the plan are connected.
    fn met(&self, plan: Option<&Plan>, peers: &BTreeSet<WorkerId>) -> bool {
        let me = self.config.id;
        plan.is_some_and(|p| !p.has(me) || p.members().iter().all(|w| *w == me || peers.contains(w)))
    }

    fn tell(&self, effects: &mut Vec<MemberEffect>) {
        effects.push(MemberEffect::Report(Report::Status(self.status())));
    }

    fn suspect(&self, about: WorkerId, link: bool, effects: &mut Vec<MemberEffect>) {
        effects.push(MemberEffect::Report(Report::Suspect {
            generation: self.generation(),
            about,
            link,
        }));
    }

    fn finished(&self) -> bool {
        self.at.step >= self.config.last_step
    }

    /// Ids are compared whole: a step number identifies nothing.
    fn same(&self, a: StateId, b: StateId) -> bool {
        a == b || (bug!(self, StepIsIdentity) && a.step == b.step)
    }

    /// Takes one input; what must follow is appended to `effects`.
    pub fn handle(&mut self, now: Time, input: MemberInput, effects: &mut Vec<MemberEffect>) {
        if self.exited {
            return;
        }
        match input {
            MemberInput::Tick => self.tick(now, effects),
            MemberInput::Stream => {
                let told = self.history.iter();
                effects.extend(told.map(|d| MemberEffect::Report(Report::Committed { decision: *d })));
                self.tell(effects);
            }
            MemberInput::Order { term, order } => {
                if term >= self.term {
                    self.term = term;
                    self.order(now, order, effects);
                }
            }
            MemberInput::Connected { generation, peer } => self.connected(now, generation, peer, effects),
            MemberInput::Closed { generation, peer } => self.closed(generation, peer, effects),
            MemberInput::Peer {
                generation,
                from,
                message,
            } => {
                self.peer(now, generation, from, message, effects);
            }
            MemberInput::Fetched {
                generation,
                unit,
                id,
                decision,
                ..
            } => {
                if generation == self.generation() {
                    self.fetched(now, unit, id, decision, effects);
                }
            }
            MemberInput::FetchProgress {
                generation,
                from,
                unit,
            } => {
                self.fetch_progress(now, generation, from, unit);
            }
            MemberInput::FetchFailed {
                generation,
                from,
                unit,
            } => {
                let asked = self.fetches.get(&unit).is_some_and(|f| f.from == from);
                if generation == self.generation() && asked {
                    self.fetches.remove(&unit);
                    self.load(now, effects);
                }
            }
            MemberInput::Prepared {
                generation,
                step,
                units,
            } => {
                self.on_prepared(now, generation, step, &units, effects);
            }
            MemberInput::Stopped { prepared } => self.on_stopped(now, &prepared, effects),
            MemberInput::Applied { id } => self.on_applied(now, id, effects),
            MemberInput::Loaded { unit, id } => self.on_loaded(now, unit, id, effects),
            MemberInput::StepFailed { generation, about } => self.on_step_failed(generation, about, effects),
            MemberInput::Drain => {
                self.draining = true;
                self.tell(effects);
            }
        }
    }

    fn tick(&mut self, now: Time, effects: &mut Vec<MemberEffect>) {
        self.load(now, effects);
        if now >= self.beat_at {
            self.beat_at = now.after(self.config.timing.heartbeat);
            self.tell(effects);
        }
        self.watch(now, effects);
    }

    /// Suspects somebody where nothing moves. Who is dead is found by a fence, never by an accusation.
    fn watch(&mut self, now: Time, effects: &mut Vec<MemberEffect>) {
        let Some(plan) = self.plan.clone() else { return };
        let me = self.config.id;
        let applying = matches!(self.engine, Engine::Applying { .. });
        let (waits, deadline) = match self.phase {
            Phase::Loading => (self.base.is_some(), self.config.timing.connect_deadline),
            Phase::Running => (!self.finished(), Duration::from_nanos(plan.deadline_ns)),
            _ => return,
        };
        if !waits || applying || now <= self.progress_at.after(deadline) {
            return;
        }
        self.progress_at = now;
        let unmet = plan
            .members()
            .into_iter()
            .find(|w| *w != me && !self.peers.contains(w));
        match unmet.or_else(|| self.lacking_from(&plan)) {
            Some(peer) if self.phase == Phase::Loading => self.suspect(peer, true, effects),
            _ => self.suspect(me, false, effects),
        }
    }
}
