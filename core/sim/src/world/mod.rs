//! The checker's world: what happens next, and to whom.

mod faults;
mod job;
mod network;
mod outages;
mod stats;
mod store;
mod unreliable;
mod workers;

pub use stats::Stats;

use crate::check::{Checker, Violation, broken};
use crate::effects_digest::EffectsDigest;
use crate::engine::Engine;
use crate::host::{Channel, Environment, Event, Found, Host, Link, Message, Process};
use crate::rng::Rng;
use faults::{Fault, Faults};
use job::Job;
use network::{Data, Ms, Network};
use outages::CrashLoop;
use std::collections::{BTreeMap, BTreeSet};
use store::Store;
use unreliable::Unreliable;
use varuna_plan::state::mix;
use varuna_plan::{Generation, StateId, Unit, WorkerId};
use varuna_protocol::{CoordinatorEffect, Hello, MemberEffect, Mutant, Record};

type Result = std::result::Result<(), Violation>;

/// Samples per step.
const BATCH: u64 = 8;
/// After the faults stop the job must end within so many milliseconds of the world.
const PATIENCE: Ms = 40_000;
/// ... and so many for each step: one that is evaluated, over a slow network.
const STEP_MAX: Ms = 2_000;
/// ... and events.
const EVENTS: u64 = 1_000_000;

/// What happens later.
#[derive(Debug)]
pub(crate) enum Timer {
    Deliver(Channel),
    /// The engine begins the run of this number, or goes on with it.
    Compute(WorkerId, u64),
    /// The engine stops.
    Stop(WorkerId),
    Applied(WorkerId, StateId),
    Adopted(WorkerId, Unit, StateId),
    /// A unit's state was sent to a peer.
    Served(WorkerId, Generation, WorkerId, Unit),
    /// The next of so many parts of a state.
    Part(Link, Data, u64),
    ComeBack(CrashLoop),
    Write(usize, u64, Box<Record>),
    /// A write that was reported as failed reaches the store.
    LateWrite(u64, Box<Record>),
    Read(usize),
    List(usize),
    PutShard(StateId, Unit, u64),
    GetShard(WorkerId, Generation, StateId, Unit),
    ShardStaged(WorkerId, Generation, Unit, StateId, u64),
    /// A fault, its number, and what its details are drawn from.
    Fault(Fault, usize, u64),
    Kill(WorkerId),
    NewCoordinator,
    EndFaults,
}

impl From<Timer> for Event<Timer> {
    fn from(timer: Timer) -> Self {
        Event::Environment(timer)
    }
}

/// What a worker has besides its member.
pub(crate) struct Worker {
    engine: Engine,
    /// Numbers the engine's runs, so that a late event of an older one is ignored.
    runs: u64,
    /// It dies in its first step.
    crash_loop: Option<CrashLoop>,
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
    checker: Checker,
    hash: u64,
    effects: EffectsDigest,
    /// The run was given up, with reason.
    lost: bool,
    /// Prints every delivered message.
    print: bool,
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

    /// Dials of a worker that has died may still arrive: it goes on ticking.
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
            memory_bytes: None,
            speed: 1.0,
        }
    }

    fn send(host: &mut Host<Self>, channel: Channel, message: Message<Data>) {
        match channel {
            Channel::Peer(from, to, generation) => host.send_peer(from, to, generation, message),
            Channel::Up(..) if matches!(message, Message::Report(_)) => {
                if !host.env.rng.chance(host.env.unreliable.reports) {
                    host.transmit(channel, message);
                }
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
            | Timer::Served(w, ..) => {
                return host.engine_event(w, event);
            }
            Timer::Fault(fault, number, seed) => return host.fault(fault, number, seed),
            Timer::Part(link, state, parts) => host.send_part(link, state, parts),
            Timer::ComeBack(crash_loop) => host.start_worker(Some(crash_loop)),
            Timer::Kill(w) => host.kill(w),
            Timer::NewCoordinator => host.add_coordinator_process(),
            Timer::EndFaults => host.end_faults(),
            _ => return host.store_event(event),
        }
        Ok(())
    }

    fn run_machine(&self, handle: impl FnOnce()) {
        with_mutant(self.mutant, handle);
    }

    fn observe_member(&mut self, now: u64, worker: WorkerId, effect: &MemberEffect) {
        self.effects.member(now, worker, effect);
    }

    fn observe_coordinator(&mut self, now: u64, c: usize, effect: &CoordinatorEffect) {
        self.effects.coordinator(now, c, effect);
    }
}

/// A job under one schedule, and a checker that looks after every event.
pub struct World {
    host: Host<Schedule>,
}

impl World {
    /// The schedule of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::build(seed, None)
    }

    /// The schedule of a seed, with a bug.
    #[cfg(feature = "mutants")]
    #[must_use]
    pub fn with_mutant(seed: u64, mutant: Mutant) -> Self {
        Self::build(seed, Some(mutant))
    }

    fn build(seed: u64, mutant: Option<Mutant>) -> Self {
        let mut rng = Rng(mix(seed, 99));
        let job = Job::draw(&mut rng, seed);
        let workers = rng.range(2, 6).max(job.min_workers() as u64);
        let network = Network {
            slow_percent: rng.pick(&[0, 3, 10]).unwrap_or(0),
            ..Network::default()
        };
        let mut host = Host::new(Schedule {
            job,
            mutant,
            rng,
            network,
            store: Store {
                record: Record::default(),
                shards: BTreeMap::new(),
                manifests: BTreeSet::from([StateId::INITIAL]),
                completed_at: BTreeMap::new(),
                listed: vec![StateId::INITIAL],
                damaged: BTreeSet::new(),
            },
            faults: Faults::default(),
            unreliable: Unreliable::default(),
            checker: Checker::default(),
            hash: seed,
            effects: EffectsDigest::default(),
            lost: false,
            print: false,
            stats: Stats::default(),
        });
        host.add_coordinator_process();
        for _ in 0..workers {
            host.add_worker();
        }
        host.schedule_faults(seed);
        World { host }
    }

    /// Runs to the end of the job.
    ///
    /// # Errors
    /// The invariant that was broken.
    pub fn run(&mut self) -> Result {
        while let Some((number, event)) = self.host.queue.pop() {
            let now = self.host.now();
            self.host.env.stats.events += 1;
            self.host.env.hash = mix(self.host.env.hash, mix(now, number));
            self.host.step(event)?;
            let env = &mut self.host.env;
            if env.store.record.done {
                env.stats.done = 1;
                return self.finish();
            }
            if env.lost {
                env.stats.lost = 1;
                return Ok(());
            }
            if let Some(ended) = env.faults.ended_at
                && (now > ended + PATIENCE + env.job.last_step.0 * STEP_MAX || env.stats.events > EVENTS)
            {
                let seen = format!("no end {} ms after the faults stopped", now - ended);
                return broken('f', seen);
            }
        }
        broken('f', "nothing left to happen".into())
    }

    /// Only joins happen in this schedule: no faults.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.host.env.faults.only_joins
    }

    /// Goes on, after the job's end, until the coordinator has ended.
    ///
    /// # Errors
    /// (f) where somebody is left behind.
    pub fn run_until_released(&mut self) -> Result {
        let since = self.host.now();
        while let Some((_, event)) = self.host.queue.pop() {
            self.host.step(event)?;
            if self.host.coordinators.iter().any(|c| c.machine.ended()) {
                let left = self.host.members.ids(|m| m.alive && m.stream > 0).len();
                return if left == 0 {
                    Ok(())
                } else {
                    broken('f', format!("{left} workers were left behind"))
                };
            }
            if self.host.now() > since + PATIENCE {
                break;
            }
        }
        broken('f', "the coordinator did not end".into())
    }

    /// A hash over all that happened: equal for equal seeds.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.host.env.hash
    }

    /// A number over all effects of the protocol's machines: who, when, what. It does not depend on names in the code, nor on
    /// sentences for people.
    #[must_use]
    pub fn effects_digest(&self) -> u64 {
        self.host.env.effects.0
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.host.env.stats
    }

    /// Prints every message that is delivered from now on.
    pub fn print_messages(&mut self) {
        self.host.env.print = true;
    }

    fn finish(&mut self) -> Result {
        let now = self.host.now();
        let env = &mut self.host.env;
        let last = env.job.last_step;
        let saved = env.store.manifests.iter().rev().find(|m| m.step == last).copied();
        let reported = env.checker.newest_at(last).filter(|_| !env.job.final_checkpoint);
        let Some(reached) = saved.or(reported) else {
            return broken('c', "done without the last step".into());
        };
        if let Some(ended) = env.faults.ended_at {
            env.stats.recovery_max = now - ended;
        }
        env.checker.ancestry(reached)
    }

    /// Prints where everybody stands.
    pub fn dump(&self) {
        let Host {
            members,
            coordinators,
            env,
            ..
        } = &self.host;
        let r = &env.store.record;
        println!(
            "{:?} cap {} last {} record v{} t{} highest {} done {}",
            env.job.layout, env.job.worker_segments, env.job.last_step, r.version, r.term, r.highest, r.done
        );
        for plan in [&r.plan, &r.next].into_iter().flatten() {
            println!("plan {plan:?}");
        }
        for (i, coordinator) in coordinators.iter().enumerate() {
            println!(
                "coordinator {i} alive {} {}",
                coordinator.alive,
                coordinator.machine.snapshot().run.mode
            );
        }
        println!("blocked {:?}", env.network.blocked);
        for (id, w) in members.iter().filter(|(_, w)| w.alive) {
            println!(
                "worker {id} to {:?}, paused until {}: {:?} {:?}",
                w.coordinator,
                w.paused,
                w.machine.status(),
                w.machine.held()
            );
        }
    }
}

#[cfg(feature = "mutants")]
use varuna_protocol::with_mutant;

/// No mutant can be switched on in this build.
#[cfg(not(feature = "mutants"))]
fn with_mutant(_: Option<Mutant>, run: impl FnOnce()) {
    run();
}
