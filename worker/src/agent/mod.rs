//! The agent: drives the protocol's [`Member`] with the coordinator's stream, the peers, the engine and the clock.
//!
//! It decides nothing: events go to the state machine, and its effects are carried out in their order. Three sources of events
//! meet here: the coordinator's stream ([`uplink`]), the peers' connections (`transport::tcp`) and the engine ([`engine_thread`]).

mod arrivals;
mod commands;
mod effects;
pub mod engine_thread;
mod first_step;
mod follower_sender;
mod inputs;
mod running;
mod serving;
mod step_reports;
mod store_reads;
pub mod uplink;

use crate::checkpoints::{Buffers, Checkpoints};
use crate::engine::{Compute, EngineError};
use crate::state::UnitState;
use crate::transport::data_plane::DataPlane;
use crate::transport::tcp::PeerEvent;
use arrivals::Arrivals;
use commands::{Commands, EngineGone};
use engine_thread::{Command, Event, Recipient};
use first_step::FirstStep;
use follower_sender::FollowerSender;
use running::RunningLink;
use serving::Serving;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
pub use step_reports::MemoryTaken;
use step_reports::StepReports;
use store_reads::StoreReads;
use tokio::sync::mpsc::{Receiver, Sender};
use uplink::UplinkEvent;
use varuna_checkpoint::CheckpointError;
use varuna_frames::RunKey;
use varuna_plan::{StateId, Unit, WorkerId};
use varuna_protocol::member::{ExitReason, Member, MemberConfig, MemberInput};
use varuna_protocol::{Digests, Time};
use varuna_wire::Upward;

/// How often the state machine sees the clock.
const TICK: Duration = Duration::from_millis(20);

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
    #[error(
        "no coordinator for a long time, and nothing was committed meanwhile: this worker ends, to free its resources"
    )]
    Orphan,
    /// What runs on the device does not end.
    #[error(
        "the device does not end what it was told to stop: this worker ends, since nobody can tell what it does"
    )]
    DeviceStuck,
    /// The engine was told to stop and does not.
    #[error("the engine does not stop: this worker ends, since nobody can tell what it does")]
    EngineStuck,
    /// This worker reads a shard as damaged that is sound: what it reads and computes cannot be trusted.
    #[error("this worker ends: {0}")]
    Misread(CheckpointError),
    /// The job's checkpoint was trained on other data than this worker has, and the coordinator, which has none, cannot know that.
    #[error("this worker ends: {0}")]
    OtherData(CheckpointError),
    /// The coordinator is of another run.
    #[error("the coordinator is of another run (was {before}, is {now})")]
    OtherRun {
        /// Identity of the run that this worker is of.
        before: String,
        /// Identity of the coordinator's.
        now: String,
    },
}

/// An event from another task or thread of this worker.
pub enum AgentEvent {
    /// An event of the engine's thread.
    Engine(Event),
    /// An event of a connection to a peer.
    Peer(PeerEvent),
    /// An event of the checkpoint store.
    Store(StoreEvent),
    /// This worker alone reads a shard as damaged.
    Misread(CheckpointError),
    /// The job's checkpoint was trained on other data.
    OtherData(CheckpointError),
    /// The digests of a state are computed.
    Digested(Digests),
    /// A unit was not copied for a peer that follows it or keeps its spare copy.
    NotCopied(Recipient),
    /// There was no room for such a copy beside others: it can be made later.
    NoRoom(Recipient),
}

/// Progress of reading one unit from the checkpoint store.
pub enum StoreEvent {
    /// A part of it arrived.
    Progress(Unit, StateId),
    /// All of it is here.
    Loaded(Unit, StateId, UnitState),
    /// The unit could not be read. True: no other try can succeed.
    Failed(Unit, StateId, bool),
}

/// The arguments of [`run`].
pub struct AgentParts<E> {
    /// Identity and deadlines.
    pub member: MemberConfig,
    /// The engine, without state.
    pub engine: E,
    /// The number of threads with which libtorch computes on the host.
    pub threads: u32,
    /// Connections to peers; their events go to `events`.
    pub mesh: Box<dyn DataPlane>,
    /// The queue of events of mesh, engine and store.
    pub events: (Sender<AgentEvent>, Receiver<AgentEvent>),
    /// The stream to the coordinator, already up.
    pub uplink: (Sender<Upward>, Receiver<UplinkEvent>),
    /// The run, from which the secrets of generations are derived.
    pub run: RunKey,
    /// The job's checkpoints; none if it has none.
    pub checkpoints: Option<Checkpoints>,
    /// The memory of copies for peers, that of the checkpoints' copies too.
    pub copies: Arc<Buffers>,
    /// Tokens of this worker's job in one sample, for metrics.
    pub tokens_per_sample: u64,
    /// Memory that was taken, also for metrics.
    pub memory_taken: MemoryTaken,
}

struct Agent {
    me: WorkerId,
    member: Member,
    engine: Commands<Command>,
    mesh: Arc<dyn DataPlane>,
    followers: FollowerSender,
    checkpoints: Option<Checkpoints>,
    loading: StoreReads,
    serving: Serving,
    events: Sender<AgentEvent>,
    reports: Sender<Upward>,
    attached: bool,
    run: RunKey,
    running: RunningLink,
    first_step: FirstStep,
    arrivals: Arrivals,
    step_reports: StepReports,
    start: Instant,
    exit: Option<ExitReason>,
}

/// Runs the worker until it is released.
///
/// # Errors
/// Why it had to end before.
pub async fn run<E: Compute>(parts: AgentParts<E>, mut drain: Receiver<()>) -> Result<(), AgentError> {
    let (events, mut inbox) = parts.events;
    let (me, adopter) = (parts.member.id, parts.engine.adopter());
    let from_engine = events.clone();
    let engine = engine_thread::start(parts.engine, parts.threads, move |event| {
        // If this fails the agent has ended; the thread then ends with its command queue.
        let _ = from_engine.blocking_send(AgentEvent::Engine(event));
    })?;
    let (reports, mut uplink) = parts.uplink;
    let mesh: Arc<dyn DataPlane> = Arc::from(parts.mesh);
    let mut agent = Agent {
        me,
        member: Member::new(parts.member),
        engine: Commands::new(engine),
        followers: FollowerSender::new(Arc::clone(&mesh), events.clone(), parts.copies),
        mesh,
        checkpoints: parts.checkpoints,
        loading: StoreReads::default(),
        serving: Serving::default(),
        events,
        reports,
        attached: true,
        run: parts.run,
        running: RunningLink::default(),
        first_step: FirstStep::new(me, adopter),
        arrivals: Arrivals::default(),
        step_reports: StepReports::new(parts.tokens_per_sample, parts.memory_taken),
        start: Instant::now(),
        exit: None,
    };
    agent.feed(MemberInput::Stream)?;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        match agent.exit {
            None => {}
            Some(ExitReason::Released | ExitReason::Finished) => return Ok(()),
            Some(ExitReason::Orphaned) => return Err(AgentError::Orphan),
            Some(ExitReason::EngineStuck) => return Err(AgentError::EngineStuck),
        }
        tokio::select! {
            event = inbox.recv() => match event {
                Some(AgentEvent::Engine(event)) => agent.on_engine_event(event)?,
                Some(AgentEvent::Peer(event)) => agent.on_peer_event(event)?,
                Some(AgentEvent::Store(event)) => agent.on_store_event(event)?,
                Some(AgentEvent::Misread(error)) => return Err(AgentError::Misread(error)),
                Some(AgentEvent::OtherData(error)) => return Err(AgentError::OtherData(error)),
                Some(AgentEvent::Digested(digests)) => agent.feed(MemberInput::Digested(digests))?,
                Some(AgentEvent::NotCopied(recipient)) => agent.copy_left_off(recipient)?,
                Some(AgentEvent::NoRoom(recipient)) => agent.copy_without_room(recipient)?,
                None => return Err(AgentError::EngineGone),
            },
            Some(event) = uplink.recv() => agent.on_coordinator_event(event)?,
            Some(()) = drain.recv() => agent.feed(MemberInput::Drain)?,
            _ = ticks.tick() => agent.tick()?,
        }
    }
}

impl Agent {
    fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Gives one input to the state machine and carries out the effects in order, and those of the inputs that they cause.
    fn feed(&mut self, input: MemberInput) -> Result<(), AgentError> {
        let flushed = self.engine.flush();
        flushed.map_err(|EngineGone| AgentError::EngineGone)?;
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

    fn command(&mut self, command: Command) -> Result<(), AgentError> {
        self.engine
            .push(command)
            .map_err(|EngineGone| AgentError::EngineGone)
    }

    fn send(&self, message: Upward) {
        if self.attached && self.reports.try_send(message).is_err() {
            tracing::warn!("the queue to the coordinator is full; a report is dropped");
        }
    }
}
