//! The checker's world: what happens next, and to whom.

mod coordinators;
mod disturbances;
mod drawing;
mod fault_list;
mod faults;
mod following;
mod job;
mod lone_loss;
mod network;
mod outages;
mod planners;
mod reached;
mod run;
mod stats;
mod store;
mod unreliable;
mod uploads;
mod watch;
mod workers;
mod written;

pub use fault_list::{Fault, InjectedFault};
pub use run::World;
pub use stats::Stats;

use crate::check::{Checker, Violation};
use crate::effects_digest::EffectsDigest;
use crate::engine::{Engine, UnitState};
use crate::host::{Channel, Environment, Event, Found, Host, Link, Message, Process};
use crate::rng::Rng;
use crate::timeline::Timeline;
use fault_list::Faults;
use job::Job;
use lone_loss::LoneLoss;
use network::{Data, Network};
use outages::CrashLoop;
use std::collections::BTreeMap;
use store::Store;
use unreliable::Unreliable;
use uploads::{Outage, Upload};
use varuna_plan::{Decision, Generation, StateId, Unit, WorkerId};
use varuna_protocol::{CoordinatorEffect, Digests, Hello, MemberEffect, MemberInput, Mutant, Record};

type Result = std::result::Result<(), Violation>;

/// Samples per step.
const BATCH: u64 = 8;
/// An event at a later time.
#[derive(Debug)]
pub(crate) enum Timer {
    Deliver(Channel),
    /// The engine begins the run of this number, or goes on with it.
    Compute(WorkerId, u64),
    /// The engine stops.
    Stop(WorkerId),
    Applied(WorkerId, StateId),
    Adopted(WorkerId, Unit, StateId),
    /// A forwarded gradient is applied.
    AppliedForwarded(WorkerId, Unit, Decision),
    /// A copy or a gradient reaches the connection to a follower.
    Follow(Link, Data),
    /// A gradient was sent to a follower.
    Forwarded(WorkerId, Generation, WorkerId, Unit),
    /// The digests of a state are computed.
    Digested(WorkerId, Digests),
    /// A unit's state was sent to a peer.
    Served(WorkerId, Generation, WorkerId, Unit),
    /// The next part of a state, with the number of parts left.
    Part(Link, Data, u64),
    ComeBack(CrashLoop),
    Write(usize, u64, Box<Record>),
    /// A write that was reported as failed reaches the store.
    LateWrite(u64, Box<Record>),
    Read(usize),
    List(usize),
    Discard(usize, StateId),
    PutShard(Upload),
    GetShard(WorkerId, Generation, StateId, Unit),
    ShardStaged(WorkerId, Generation, Unit, StateId, UnitState),
    /// A fault, its number, and what its details are drawn from.
    Fault(Fault, usize, u64),
    Kill(WorkerId),
    /// A worker is to die alone, if all is quiet; how often that is tried again.
    LoneLoss(u32),
    LoneDeath(WorkerId),
    /// A flapping worker's connections break, with the number of repetitions left.
    Flap(WorkerId, u32),
    /// The worker sees that its stream has ended.
    StreamLost(WorkerId),
    NewCoordinator,
    EndFaults,
}

impl From<Timer> for Event<Timer> {
    fn from(timer: Timer) -> Self {
        Event::Environment(timer)
    }
}

/// The environment's data for a worker.
pub(crate) struct Worker {
    engine: Engine,
    /// Numbers the engine's runs, so that a late event of an older one is ignored.
    runs: u64,
    /// Set if the worker dies in its first step.
    crash_loop: Option<CrashLoop>,
    /// The platform announced that it will leave, correctly or not.
    announced: bool,
    /// The worker computes slowly until this time.
    slow_until: u64,
    /// Shards that the store has not taken yet.
    uploads: usize,
    follow: following::Order,
}

/// One schedule of delays and faults, drawn from a seed.
pub(crate) struct Schedule {
    job: Job,
    mutant: Option<Mutant>,
    rng: Rng,
    network: Network,
    store: Store,
    faults: Faults,
    unreliable: Unreliable,
    outage: Outage,
    lone_loss: LoneLoss,
    /// How far clocks are ahead.
    clocks: BTreeMap<Process, u64>,
    checker: Checker,
    hash: u64,
    effects: EffectsDigest,
    /// The run was given up, with reason.
    lost: bool,
    /// Prints every delivered message.
    print: bool,
    /// The timeline, if it is recorded.
    timeline: Option<Timeline>,
    stats: Stats,
}

impl Schedule {
    /// Whether the schedule runs with this bug.
    fn has(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

impl Environment for Schedule {
    const UNIT_NS: u64 = 1_000_000;
    const FIRST_WORKER: u64 = 0;
    type Worker = Worker;
    type Event = Timer;
    type Data = Data;
    type Error = Violation;

    /// Connections of a worker that has died may still arrive, so it continues ticking.
    fn tick_after(host: &mut Host<Self>, process: Process) -> Option<u64> {
        match process {
            Process::Worker(_) => Some(host.env.rng.range(20, 40)),
            Process::Coordinator(c) => host.coordinators[c].alive.then(|| host.env.rng.range(15, 25)),
        }
    }

    fn find_coordinator(host: &mut Host<Self>, worker: WorkerId) -> Found {
        host.reachable_coordinator(worker)
    }

    fn hello(host: &Host<Self>, worker: WorkerId) -> Hello {
        let name = match host.members[worker].local.crash_loop {
            Some(CrashLoop { number, .. }) => format!("unsound-{number}"),
            None => format!("w{}", worker.0),
        };
        Hello {
            address: format!("worker-{}:1", worker.0),
            name,
            node: String::new(),
            hardware: None,
            memory_bytes: None,
            copies_bytes: None,
            scores: None,
            speed: 1.0,
        }
    }

    fn send(host: &mut Host<Self>, channel: Channel, message: Message<Data>) {
        match channel {
            Channel::Peer(from, to, generation) => host.send_peer(from, to, generation, message),
            Channel::Up(..) if matches!(message, Message::Report(_)) => {
                if host.env.rng.chance(host.env.unreliable.reports) {
                    return;
                }
                if host.env.rng.chance(host.env.unreliable.duplicates) {
                    host.transmit(channel, message.clone());
                }
                host.transmit(channel, message);
            }
            _ => host.transmit(channel, message),
        }
    }

    fn redial(host: &mut Host<Self>, worker: WorkerId, generation: Generation, peer: WorkerId) {
        host.send_data(worker, peer, generation, Data::Dial);
    }

    fn from_peer(host: &mut Host<Self>, link: Link, message: Message<Data>) -> Result {
        host.take_from_peer(link, message)
    }

    fn member_effect(host: &mut Host<Self>, worker: WorkerId, effect: MemberEffect) -> Result {
        host.carry_out_for_member(worker, effect)
    }

    fn coordinator_effect(host: &mut Host<Self>, c: usize, effect: CoordinatorEffect) -> Result {
        host.carry_out_for_coordinator(c, effect)
    }

    fn event(host: &mut Host<Self>, event: Timer) -> Result {
        match event {
            Timer::Deliver(channel) => return host.arrive(channel),
            Timer::Compute(w, _)
            | Timer::Stop(w)
            | Timer::Applied(w, _)
            | Timer::Adopted(w, ..)
            | Timer::AppliedForwarded(w, ..)
            | Timer::Forwarded(w, ..)
            | Timer::Digested(w, _)
            | Timer::Served(w, ..) => {
                return host.engine_event(w, event);
            }
            Timer::Fault(fault, number, seed) => return host.fault(fault, number, seed),
            Timer::Part(link, state, parts) => host.send_part(link, state, parts),
            Timer::Follow(link, data) => host.send_to_follower(link, data),
            Timer::ComeBack(crash_loop) => host.start_worker(Some(crash_loop)),
            Timer::Kill(w) => host.kill(w),
            Timer::LoneLoss(tries) => host.lose_one_alone(tries),
            Timer::LoneDeath(w) => host.die_alone(w),
            Timer::Flap(w, left) => return host.flap(w, left),
            Timer::StreamLost(w) => return host.member(w, MemberInput::StreamDown),
            Timer::NewCoordinator => host.add_coordinator_process(),
            Timer::EndFaults => host.end_faults(),
            _ => return host.store_event(event),
        }
        Ok(())
    }

    /// (k), at each tick of a coordinator.
    fn ticked(host: &mut Host<Self>) -> Result {
        host.check_memory()
    }

    fn clock_ahead(&self, process: Process) -> u64 {
        self.clocks.get(&process).copied().unwrap_or(0)
    }

    fn run_machine(&self, _process: Process, handle: impl FnOnce()) {
        with_mutant(self.mutant, handle);
    }

    fn observe_member(&mut self, now: u64, worker: WorkerId, effect: &MemberEffect) {
        self.effects.member(now, worker, effect);
    }

    fn observe_coordinator(&mut self, now: u64, c: usize, effect: &CoordinatorEffect) {
        self.effects.coordinator(now, c, effect);
    }
}

#[cfg(feature = "mutants")]
use varuna_protocol::with_mutant;

/// No mutant can be switched on in this build.
#[cfg(not(feature = "mutants"))]
fn with_mutant(_: Option<Mutant>, run: impl FnOnce()) {
    run();
}
