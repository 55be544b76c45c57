//! The worker's side of the protocol: what it holds, which generation it is in, when a step is committed.
//!
//! A [`Member`] drives one engine, one set of peer connections and one coordinator stream, all of which are outside of it. It never touches
//! a tensor: it knows state by [`StateId`] only. Two rules are essential. An inventory is sent only after the engine has confirmed that
//! nothing runs, because it is a promise not to commit. An apply is never interrupted.

mod arrivals;
mod config;
mod connections;
mod extra_units;
mod first_step;
mod followed;
mod following;
mod holdings;
mod in_plan;
mod io;
mod keeping;
mod kept;
mod loading;
mod memory;
mod norm_exchange;
mod orders;
mod peers;
mod serving;
mod step;
mod tables;
#[cfg(test)]
mod tests;
mod transfers;

pub use config::{MemberConfig, MemberTiming};
pub use io::{ExitReason, MemberEffect, MemberInput};
pub use tables::MemberTables;

use crate::message::{Phase, Prepared, Report, Status, Suspicion, Time};
use holdings::Holdings;
use in_plan::{InPlan, PlannedChange};
use memory::{Checkpoints, History, Waiting};
use std::collections::BTreeMap;
use std::sync::Arc;
use varuna_plan::{Decision, Generation, Plan, StateId, Step, Unit, WorkerId};

/// A store may make no progress for this many times as long as a link may: it queues and throttles requests, and clients retry them
/// silently, and another plan would read from the same store. Shorter than a launch may take.
const STORE_PATIENCE: u32 = 10;

/// What the engine is busy with.
#[derive(Clone, PartialEq, Debug)]
enum Engine {
    Idle,
    Running {
        generation: Generation,
        step: Step,
    },
    /// It failed by itself; it still has to report which units are reduced.
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

/// The worker's state machine.
pub struct Member {
    config: MemberConfig,
    holdings: Holdings,
    /// The state reached.
    at: StateId,
    /// The run ends when this step is committed: the greatest that this worker knows of.
    last_step: Step,
    /// Highest fence obeyed.
    fenced: Generation,
    /// Greatest term seen.
    term: u64,
    engine: Engine,
    /// Units that the engine is taking over.
    adopting: BTreeMap<Unit, StateId>,
    waiting: Waiting,
    /// The plan in force here.
    current: Option<InPlan>,
    /// A planned change that is being prepared.
    change: Option<PlannedChange>,
    checkpoints: Checkpoints,
    history: History,
    draining: bool,
    exited: bool,
    heartbeat_at: Time,
    /// The status that was last reported.
    reported: Option<Status>,
    /// Since when there is no stream to a coordinator.
    stream_lost_at: Option<Time>,
    /// When a step was last committed or a plan was last entered.
    advanced_at: Time,
}

impl Member {
    /// A member that holds nothing and knows no plan.
    #[must_use]
    pub fn new(config: MemberConfig) -> Self {
        Member {
            last_step: config.last_step,
            config,
            holdings: Holdings::default(),
            at: StateId::INITIAL,
            fenced: Generation(0),
            term: 0,
            engine: Engine::Idle,
            adopting: BTreeMap::new(),
            waiting: Waiting::default(),
            current: None,
            change: None,
            checkpoints: Checkpoints::default(),
            history: History::default(),
            draining: false,
            exited: false,
            heartbeat_at: Time(0),
            reported: None,
            stream_lost_at: None,
            advanced_at: Time(0),
        }
    }

    /// The generation of the plan in force here; 0 = none.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.current.as_ref().map_or(Generation(0), InPlan::generation)
    }
    /// The plan in force here.
    #[must_use]
    pub fn plan(&self) -> Option<&Arc<Plan>> {
        self.current.as_ref().map(|c| &c.plan)
    }
    /// State held, by unit.
    #[must_use]
    pub fn held(&self) -> &BTreeMap<Unit, StateId> {
        &self.holdings.units
    }
    /// Reduced gradients not yet applied, by unit.
    #[must_use]
    pub fn prepared(&self) -> &BTreeMap<Unit, Prepared> {
        &self.holdings.prepared
    }
    /// Whether it was released and takes no further input.
    #[must_use]
    pub fn exited(&self) -> bool {
        self.exited
    }

    /// The present status.
    #[must_use]
    pub fn status(&self) -> Status {
        let (me, current, change) = (self.config.id, self.current.as_ref(), self.change.as_ref());
        Status {
            generation: self.generation(),
            fenced: self.fenced,
            phase: self.phase(),
            based: current.is_some_and(|c| c.base.is_some()),
            connected: current.is_some_and(|c| c.is_connected(me)),
            next: change.map_or(Generation(0), |c| c.plan.generation),
            next_connected: change.is_some_and(|c| c.is_connected(me)),
            at: self.at,
            draining: self.draining,
            last_step: self.last_step,
            following: self.following(),
            keeping: self.keeping(),
            parameters_first: self.config.parameters_first,
        }
    }

    fn phase(&self) -> Phase {
        self.current.as_ref().map_or(Phase::Idle, InPlan::phase)
    }

    /// The planned change for which it is armed; 0 = none.
    fn armed(&self) -> Generation {
        let armed = self.change.as_ref().filter(|c| c.armed);
        armed.map_or(Generation(0), |c| c.plan.generation)
    }

    /// The plan in force, if it has this generation.
    fn current_in(&mut self, generation: Generation) -> Option<&mut InPlan> {
        self.current.as_mut().filter(|c| c.generation() == generation)
    }

    /// The planned change, if it leads to this generation.
    fn change_to(&mut self, generation: Generation) -> Option<&mut PlannedChange> {
        self.change.as_mut().filter(|c| c.plan.generation == generation)
    }

    fn note_progress(&mut self, now: Time) {
        if let Some(current) = &mut self.current {
            current.progress_at = now;
        }
    }

    fn report_status(&mut self, effects: &mut Vec<MemberEffect>) {
        let status = self.status();
        self.reported = Some(status);
        effects.push(MemberEffect::Report(Report::Status(status)));
    }

    /// Reports the status if it has changed since the last report. The step alone is no reason: it is known from commits, which one member
    /// reports for all, and from heartbeats. Otherwise each step would cost the coordinator a message from every worker, and a launch one
    /// from every worker for each of its peers.
    fn report_status_change(&mut self, effects: &mut Vec<MemberEffect>) {
        let status = self.status();
        let known = |reported: Status| {
            Status {
                at: status.at,
                ..reported
            } == status
        };
        let finished = self.finished();
        if finished || bug!(TellEveryStep) || !self.reported.is_some_and(known) {
            self.report_status(effects);
        }
    }

    fn suspect(&self, about: WorkerId, why: Suspicion, effects: &mut Vec<MemberEffect>) {
        effects.push(MemberEffect::Report(Report::Suspect {
            generation: self.generation(),
            about,
            why,
        }));
    }

    fn finished(&self) -> bool {
        self.at.step >= self.last_step
    }

    /// Handles one input at the time `now`, and appends what the driver must do to `effects`.
    pub fn handle(&mut self, now: Time, input: MemberInput, effects: &mut Vec<MemberEffect>) {
        if self.exited {
            return;
        }
        match input {
            MemberInput::Tick => self.tick(now, effects),
            MemberInput::Stream => {
                self.stream_lost_at = None;
                self.report_status(effects);
            }
            MemberInput::StreamDown => self.stream_lost_at = self.stream_lost_at.or(Some(now)),
            MemberInput::Order { term, order } => {
                if term >= self.term || bug!(ObeyLowerTerm) {
                    self.term = term;
                    self.order(now, order, effects);
                }
            }
            MemberInput::Connected { generation, peer } => self.connected(now, generation, peer, effects),
            MemberInput::Closed { generation, peer } => self.closed(now, generation, peer, effects),
            MemberInput::Damaged { generation, from } => self.damaged(generation, from, effects),
            MemberInput::Peer {
                generation,
                from,
                message,
            } => self.peer(now, (generation, from), message, effects),
            MemberInput::Fetched { .. }
            | MemberInput::FetchProgress { .. }
            | MemberInput::FetchFailed { .. }
            | MemberInput::Served { .. }
            | MemberInput::NotCopied(..)
            | MemberInput::Forwarded { .. }
            | MemberInput::Gradient { .. }
            | MemberInput::PreparedGradient { .. } => self.transfer(now, input, effects),
            MemberInput::Prepared {
                generation,
                step,
                units,
                store_busy,
            } => {
                self.on_prepared(generation, step, &units, store_busy, now, effects);
            }
            MemberInput::Stopped { prepared } => self.on_stopped(now, &prepared, effects),
            MemberInput::Applied { id } => self.on_applied(now, id, effects),
            MemberInput::Loaded { unit, id } => self.on_loaded(now, unit, id, effects),
            MemberInput::StepFailed { generation, about } => self.on_step_failed(generation, about, effects),
            MemberInput::StepLacks(generation, what) => self.on_step_lacks(generation, what, effects),
            MemberInput::Digested(digests) => effects.push(MemberEffect::Report(Report::Digests(digests))),
            MemberInput::Drain => {
                self.draining = true;
                self.report_status(effects);
            }
        }
    }

    fn tick(&mut self, now: Time, effects: &mut Vec<MemberEffect>) {
        self.load(now, effects);
        self.follow_next(now, effects);
        self.keep(now, effects);
        if now >= self.heartbeat_at {
            self.heartbeat_at = now.after(self.config.timing.heartbeat);
            self.report_status(effects);
        }
        self.watch(now, effects);
        self.watch_change(now, effects);
        if let Some(reason) = self.why_to_exit(now) {
            self.exit(reason, effects);
        }
    }

    /// The reason, if any, why the process has to end by itself because nobody else would end it.
    fn why_to_exit(&self, now: Time) -> Option<ExitReason> {
        let timing = self.config.timing;
        let stuck = |since: Time| now > since.after(timing.engine);
        if self.waiting.fence_since().is_some_and(stuck) && !bug!(WaitForStuckEngine) {
            return Some(ExitReason::EngineStuck);
        }
        let alone_since = self.stream_lost_at?.max(self.advanced_at);
        if bug!(StayWithoutCoordinator) {
            None
        } else if self.finished() && now > alone_since.after(timing.finished) {
            Some(ExitReason::Finished)
        } else if now > alone_since.after(timing.orphan) {
            Some(ExitReason::Orphaned)
        } else {
            None
        }
    }

    /// Reports, once, a peer of the planned change that cannot be reached. Otherwise the same change would be proposed again and again.
    fn watch_change(&mut self, now: Time, effects: &mut Vec<MemberEffect>) {
        let (me, deadline) = (self.config.id, self.config.timing.connect_deadline);
        let Some(change) = self.change.as_mut().filter(|_| !bug!(HideDeadLinkOfChange)) else {
            return;
        };
        let late = change.suspect_at.is_some_and(|since| now > since.after(deadline));
        if let Some(about) = change.unmet(me).filter(|_| late) {
            change.suspect_at = None;
            effects.push(MemberEffect::Report(Report::Suspect {
                generation: change.plan.generation,
                about,
                why: Suspicion::Unreachable,
            }));
        }
    }

    /// Reports a suspicion if nothing makes progress. A fence, not an accusation, finds out who is dead.
    fn watch(&mut self, now: Time, effects: &mut Vec<MemberEffect>) {
        let (me, at, finished) = (self.config.id, self.at.step, self.finished());
        // The engine takes as long as it needs: making the initial state of a large unit takes long on a loaded machine.
        let taking_over = !self.adopting.is_empty() && !bug!(SuspectWhileTakingOver);
        let applying = matches!(self.engine, Engine::Applying { .. });
        let failed = matches!(self.engine, Engine::Failed { .. });
        let stopping = matches!(self.engine, Engine::Stopping { .. });
        let deadline_before_go = self.deadline_before_go();
        let Some(current) = self.current.as_mut().filter(|_| !bug!(MemberReportsNoHang)) else {
            return;
        };
        let loading = current.phase() == Phase::Loading;
        let before_go = current.awaits_parameters() && current.unmet(me).is_none();
        let (waits, deadline) = match current.phase() {
            Phase::Loading | Phase::Ready if stopping => return,
            Phase::Loading | Phase::Ready if failed => (true, self.config.timing.connect_deadline),
            // Go has not come, so nobody else would notice that the step hangs.
            Phase::Loading if before_go => (true, deadline_before_go),
            Phase::Ready if before_go => (current.first_step.has_begun(), deadline_before_go),
            // Before its plan's switch nobody can send it state, but all peers can be reached.
            Phase::Loading => {
                let waits =
                    current.base.is_some() || (current.unmet(me).is_some() && !bug!(HideDeadLinkOfChange));
                let times = match current.waits_only_for_store(me, &self.holdings) {
                    true => STORE_PATIENCE,
                    false => 1,
                };
                (waits, self.config.timing.connect_deadline * times)
            }
            Phase::Running => (!finished, current.plan.deadline.of(at, &current.recent)),
            _ => return,
        };
        if !waits || applying || taking_over || now <= current.progress_at.after(deadline) {
            return;
        }
        current.progress_at = now;
        match current.awaited_peer(me, &self.holdings) {
            // Before the first step has been run, a slow link is no dead one.
            Some(peer) if loading && !before_go => self.suspect(peer, Suspicion::Unreachable, effects),
            _ => self.suspect(me, Suspicion::Gone, effects),
        }
    }
}
