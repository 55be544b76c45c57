//! The worker's side of the protocol: what it holds, which generation it is in, when a step is committed.
//!
//! A [`Member`] drives one engine, one set of peer connections and one coordinator stream, all outside of it. It never
//! touches a tensor: it knows state by [`StateId`] only. Two rules carry everything: an inventory leaves only when the engine
//! has said that nothing runs (it is a promise not to commit), and an apply is never interrupted.

mod io;
mod loading;
mod orders;
mod step;
#[cfg(test)]
mod tests;

pub use io::{MemberConfig, MemberEffect, MemberInput, MemberTiming};

use crate::message::{Norms, Phase, Prepared, Ran, Report, Status, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::{Decision, Generation, Plan, StateId, Step, Unit, WorkerId};

/// Commits that are told again on a new stream, so that a coordinator that was away misses none.
const HISTORY: usize = 4096;

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
    // checkpoints
    /// A checkpoint beyond this step is wanted.
    save_after: Option<Step>,
    /// Step of the last state that was put.
    put_at: Step,
}

impl Member {
    /// A member that holds nothing and knows no plan.
    #[must_use]
    pub fn new(config: MemberConfig) -> Self {
        Member {
            config,
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
            save_after: None,
            put_at: Step(0),
        }
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
        a == b || (bug!(StepIsIdentity) && a.step == b.step)
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
                if term >= self.term || bug!(ObeyLowerTerm) {
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
                if generation == self.generation() || bug!(TakeUnitOfAnyGeneration) {
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
            } if generation == self.generation() || bug!(FetchFailedInAnyGeneration) => {
                self.fetch_failed(now, from, unit, effects)
            }
            MemberInput::FetchFailed { .. } => {}
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
        if bug!(MemberReportsNoHang) {
            return;
        }
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
