//! The agent: drives the protocol's [`Member`] with the coordinator's stream, the peers, the engine and the clock.
//!
//! It decides nothing: events go to the state machine, and its effects are carried out in their order. Three sources of events
//! meet here: the coordinator's stream ([`uplink`]), the peers' connections (`transport::tcp`) and the engine ([`engine_thread`]).

pub mod engine_thread;
mod inputs;
pub mod uplink;

use crate::checkpoints::Checkpoints;
use crate::engine::{Engine, EngineError, Lap, StepTimings};
use crate::state::UnitState;
use crate::transport::Link;
use crate::transport::tcp::{Mesh, PeerEvent};
use engine_thread::{Command, Event};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, Sender};
use uplink::UplinkEvent;
use varuna_plan::{Generation, StateId, Unit, WorkerId};
use varuna_protocol::member::{Member, MemberConfig, MemberEffect, MemberInput};
use varuna_protocol::{Report, Time};
use varuna_wire::Upward;

/// How often the state machine sees the clock.
const TICK: Duration = Duration::from_millis(20);
/// A worker that trains nothing ends after this time without a coordinator, to free its resources.
const ORPHAN: Duration = Duration::from_secs(30 * 60);

/// Why a worker ends before it is released.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The device or libtorch failed; this worker's state cannot be trusted.
    #[error("the engine failed: {0}")]
    Engine(#[from] EngineError),
    /// The engine's thread has ended.
    #[error("the engine's thread has ended; see the message before this one")]
    EngineGone,
    /// The engine's thread did not start.
    #[error("cannot start the engine's thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The coordinator will never take this worker.
    #[error("the coordinator refused this worker: {0}")]
    Refused(String),
    /// No coordinator was found for a long time.
    #[error("no coordinator for {} minutes, and nothing to train: this worker ends", ORPHAN.as_secs() / 60)]
    Orphan,
    /// The coordinator runs another job now.
    #[error("the coordinator runs another job now (was {before}, is {now})")]
    OtherJob {
        /// Hash of the job that this worker trains.
        before: String,
        /// Hash of the coordinator's.
        now: String,
    },
}

/// An event from another task or thread of this worker.
pub enum AgentEvent {
    /// Of the engine's thread.
    Engine(Event),
    /// Of a connection to a peer.
    Peer(PeerEvent),
    /// Of the checkpoint store.
    Store(StoreEvent),
}

/// Progress of reading one unit from the checkpoint store.
pub enum StoreEvent {
    /// A part of it arrived.
    Progress(Unit),
    /// All of it is here.
    Loaded(Unit, StateId, UnitState),
    /// It could not be read. True: no other try can succeed.
    Failed(Unit, StateId, bool),
}

/// What [`run`] needs.
pub struct AgentParts {
    /// Identity and deadlines.
    pub member: MemberConfig,
    /// The engine, without state.
    pub engine: Engine,
    /// Connections to peers; their events go to `events`.
    pub mesh: Mesh,
    /// The queue of events of mesh, engine and store.
    pub events: (Sender<AgentEvent>, Receiver<AgentEvent>),
    /// The stream to the coordinator, already up.
    pub uplink: (Sender<Upward>, Receiver<UplinkEvent>),
    /// Hash of the job.
    pub job_hash: String,
    /// None: the job has no checkpoints.
    pub checkpoints: Option<Checkpoints>,
    /// Tokens of this worker's job in one sample, for metrics.
    pub tokens_per_sample: u64,
}

struct Agent {
    me: WorkerId,
    member: Member,
    engine: SyncSender<Command>,
    mesh: Mesh,
    checkpoints: Option<Checkpoints>,
    /// Units that are being read from the store.
    loading: BTreeSet<(StateId, Unit)>,
    events: Sender<AgentEvent>,
    reports: Sender<Upward>,
    attached: bool,
    job_hash: String,
    /// The data plane of the running step.
    running: Option<Arc<dyn Link>>,
    /// Units that arrived and wait until the member adopts them.
    staged: BTreeMap<(Unit, StateId), UnitState>,
    timings: Option<(Generation, varuna_plan::Step, StepTimings, Vec<Lap>)>,
    samples: u64,
    tokens_per_sample: u64,
    start: Instant,
    last_attached: Instant,
    released: bool,
}

/// Runs the worker until it is released.
///
/// # Errors
/// Why it had to end before.
pub async fn run(parts: AgentParts, mut drain: Receiver<()>) -> Result<(), AgentError> {
    let (events, mut inbox) = parts.events;
    let from_engine = events.clone();
    let engine = engine_thread::start(parts.engine, move |event| {
        // If this fails the agent has ended; the thread then ends with its command queue.
        let _ = from_engine.blocking_send(AgentEvent::Engine(event));
    })?;
    let (reports, mut uplink) = parts.uplink;
    let mut agent = Agent {
        me: parts.member.id,
        member: Member::new(parts.member),
        engine,
        mesh: parts.mesh,
        checkpoints: parts.checkpoints,
        loading: BTreeSet::new(),
        events,
        reports,
        attached: true,
        job_hash: parts.job_hash,
        running: None,
        staged: BTreeMap::new(),
        timings: None,
        samples: 0,
        tokens_per_sample: parts.tokens_per_sample,
        start: Instant::now(),
        last_attached: Instant::now(),
        released: false,
    };
    agent.feed(MemberInput::Stream)?;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !agent.released {
        tokio::select! {
            event = inbox.recv() => match event {
                Some(AgentEvent::Engine(event)) => agent.on_engine_event(event)?,
                Some(AgentEvent::Peer(event)) => agent.on_peer_event(event)?,
                Some(AgentEvent::Store(event)) => agent.on_store_event(event)?,
                None => return Err(AgentError::EngineGone),
            },
            Some(event) = uplink.recv() => agent.on_coordinator_event(event)?,
            Some(()) = drain.recv() => agent.feed(MemberInput::Drain)?,
            _ = ticks.tick() => agent.tick()?,
        }
    }
    Ok(())
}

impl Agent {
    fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn tick(&mut self) -> Result<(), AgentError> {
        if self.attached {
            self.last_attached = Instant::now();
        } else if self.running.is_none() && self.last_attached.elapsed() > ORPHAN {
            return Err(AgentError::Orphan);
        }
        self.feed(MemberInput::Tick)
    }

    /// Gives one input to the state machine and carries out the effects in order, and those of the inputs that they cause.
    fn feed(&mut self, input: MemberInput) -> Result<(), AgentError> {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let mut effects = Vec::new();
            self.member.handle(self.now(), input, &mut effects);
            for effect in effects {
                inputs.extend(self.carry_out(effect)?);
            }
        }
        Ok(())
    }

    fn command(&self, command: Command) -> Result<(), AgentError> {
        // A full queue means an engine that is stuck; waiting for it here would hide that from the coordinator.
        self.engine.try_send(command).map_err(|_| AgentError::EngineGone)
    }

    fn carry_out(&mut self, effect: MemberEffect) -> Result<Option<MemberInput>, AgentError> {
        match effect {
            MemberEffect::Accepted(plan) => self.mesh.open(plan.generation, &plan.secret),
            MemberEffect::Connect {
                generation,
                peer,
                address,
            } => self.mesh.dial(generation, peer, &address),
            MemberEffect::Disconnect { generation } => self.mesh.close(generation),
            MemberEffect::Send {
                generation,
                to,
                message,
            } => self.mesh.send_message(generation, to, &message),
            MemberEffect::Serve {
                generation,
                to,
                unit,
                id,
                decision,
            } => {
                self.command(Command::Export {
                    to,
                    generation,
                    unit,
                    id,
                    decision,
                })?;
            }
            MemberEffect::Report(report) => self.report(report),
            MemberEffect::Load {
                id: StateId::INITIAL,
                unit,
            } => self.command(Command::Initialise { unit })?,
            MemberEffect::Load { id, unit } => self.read(id, unit),
            MemberEffect::Put { id, unit } if self.checkpoints.is_some() => {
                self.command(Command::Snapshot { unit, id })?;
            }
            MemberEffect::Put { .. } => {}
            MemberEffect::Adopt { unit, id } => match self.staged.remove(&(unit, id)) {
                Some(state) => self.command(Command::Adopt { unit, id, state })?,
                None => tracing::error!(%unit, %id, "the member adopts a unit that has not arrived"),
            },
            MemberEffect::Run { plan, step } => return self.run_step(plan, step),
            MemberEffect::Abort => {
                if let Some(link) = self.running.take() {
                    link.abort();
                }
                self.command(Command::Quiesce)?;
            }
            MemberEffect::Apply { decision, units } => self.command(Command::Apply { decision, units })?,
            MemberEffect::Free { keep } => {
                self.staged.clear();
                self.command(Command::Free { keep })?;
            }
            MemberEffect::Exit => self.released = true,
        }
        Ok(None)
    }

    /// Starts to read a unit from the store, unless that is under way. The member asks again until it has the unit.
    fn read(&mut self, id: StateId, unit: Unit) {
        let Some(checkpoints) = self.checkpoints.clone() else {
            tracing::error!(%id, %unit, "cannot read a unit from a checkpoint: the job has no spec.checkpoint");
            return;
        };
        if !self.loading.insert((id, unit)) {
            return;
        }
        let events = self.events.clone();
        tokio::spawn(async move {
            // A full queue holds progress enough; a closed one means that the agent has ended.
            let progress = || drop(events.try_send(AgentEvent::Store(StoreEvent::Progress(unit))));
            let read = checkpoints.load(unit, id, progress).await;
            let event = match read {
                Ok(state) => StoreEvent::Loaded(unit, id, state),
                Err(error) => {
                    tracing::warn!(%error, "a unit cannot be read from its checkpoint");
                    StoreEvent::Failed(unit, id, error.is_final())
                }
            };
            let _ = events.send(AgentEvent::Store(event)).await;
        });
    }

    fn run_step(
        &mut self,
        plan: Arc<varuna_plan::Plan>,
        step: varuna_plan::Step,
    ) -> Result<Option<MemberInput>, AgentError> {
        let generation = plan.generation;
        let Some(link) = self.mesh.link(generation) else {
            return Ok(Some(MemberInput::StepFailed {
                generation,
                about: None,
            }));
        };
        self.samples = plan
            .shape
            .place(self.me)
            .map_or(0, |(i, _)| plan.shape.pipelines[i].samples.len());
        self.running = Some(Arc::clone(&link));
        self.command(Command::Run { plan, step, link })?;
        Ok(None)
    }

    fn report(&self, report: Report) {
        if let Report::Suspect {
            generation,
            about,
            link,
        } = &report
        {
            tracing::info!(%generation, %about, link, "suspects a peer");
        }
        if let Report::Committed { decision } = &report {
            tracing::debug!(step = %decision.id.step, loss = decision.loss, "committed");
        }
        self.send(Upward::Report(report));
    }

    fn send(&self, message: Upward) {
        if self.attached && self.reports.try_send(message).is_err() {
            tracing::warn!("the queue to the coordinator is full; a report is dropped");
        }
    }
}
