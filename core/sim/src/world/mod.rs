//! The world: what happens next, and to whom.

mod coordinators;
mod faults;
mod network;
mod stats;
mod workers;

pub use stats::Stats;

use crate::check::{Ghosts, Violation, broken};
use crate::effects_digest::EffectsDigest;
use crate::engine::Engine;
use crate::net::{Channel, Ms, Node, Queue};
use crate::rng::Rng;
use faults::Fault;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;
use varuna_plan::state::mix;
use varuna_plan::{Generation, Layout, StateId, Step, Unit, WorkerId};
use varuna_protocol::coordinator::CoordinatorInput;
use varuna_protocol::{Coordinator, Member, MemberInput, Mutant, Record, Time};

/// Samples per step.
const BATCH: u64 = 8;
/// After the faults stop the job must end within so many milliseconds of the world.
const PATIENCE: Ms = 40_000;
/// ... and events.
const EVENTS: u64 = 500_000;

#[derive(Debug)]
enum Ev {
    Deliver(Channel),
    Tick(WorkerId),
    TickCoordinator(usize),
    /// The engine begins the step, or goes on.
    Pump(WorkerId, u64),
    /// The engine stops.
    Stop(WorkerId),
    Applied(WorkerId, StateId),
    Adopted(WorkerId, Unit, StateId),
    Stream(WorkerId),
    Cas(usize, u64, Box<Record>),
    CasReply(usize, bool, Box<Record>),
    Read(usize),
    ReadReply(usize, Box<Record>),
    List(usize),
    Put(StateId, Unit, u64),
    Get(WorkerId, Generation, StateId, Unit),
    GotShard(WorkerId, Generation, Unit, StateId, u64),
    Fault(Fault),
    Kill(WorkerId),
    /// A leader's host has seen the end of a worker's process.
    Gone(usize, WorkerId),
    NewCoordinator,
    Heal,
}

struct Worker {
    member: Member,
    engine: Engine,
    alive: bool,
    paused: Ms,
    /// Which coordinator its stream goes to.
    coordinator: Option<usize>,
    stream: u64,
    /// Generations whose dials are accepted.
    open: BTreeSet<Generation>,
    /// Dials that were not yet accepted.
    dials: BTreeSet<(Generation, WorkerId)>,
    /// Numbers the engine's runs, so that a late event of an older one is ignored.
    runs: u64,
}

struct Leader {
    machine: Coordinator,
    alive: bool,
    paused: Ms,
    streams: BTreeMap<WorkerId, u64>,
}

/// One schedule.
pub struct World {
    layout: Layout,
    cap: u32,
    last_step: Step,
    checkpoint_every: u64,
    /// Checkpoints are also made by the clock.
    save_every: Option<Duration>,
    /// The job needs a checkpoint of its last step.
    final_checkpoint: bool,
    mutant: Option<Mutant>,
    rng: Rng,
    now: Ms,
    seq: u64,
    heap: BinaryHeap<Reverse<(Ms, u64)>>,
    events: BTreeMap<u64, Ev>,
    channels: BTreeMap<Channel, Queue>,
    /// Connections that were reset.
    dead: BTreeSet<(WorkerId, WorkerId, Generation)>,
    blocked: BTreeMap<(Node, Node), Ms>,
    workers: Vec<Worker>,
    leaders: Vec<Leader>,
    record: Record,
    shards: BTreeMap<(StateId, Unit), u64>,
    manifests: BTreeSet<StateId>,
    healed: Option<Ms>,
    /// Of a hundred messages, so many are slow.
    slow: u64,
    /// Some schedules aim: whoever just committed, accepted or received is hit, so many in 200 times.
    aim: u64,
    shots: u32,
    /// One schedule in six hits those who have just rolled forward or fetched, while others are paused.
    aim_load: bool,
    /// Only joins happen: no recovery may be needed.
    calm: bool,
    ghosts: Ghosts,
    hash: u64,
    effects: EffectsDigest,
    /// Prints every delivered message.
    pub trace: bool,
    /// What happened so far.
    pub stats: Stats,
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
        let segments = small(rng.range(2, 4));
        let cap = small(rng.range(u64::from(segments.div_ceil(2)), u64::from(segments)));
        let layout = Layout {
            segments,
            tied: rng.chance(50),
        };
        let last_step = Step(rng.range(4, 16));
        let checkpoint_every = rng.range(1, 6);
        let final_checkpoint = rng.chance(75);
        let workers = rng.range(2, 6).max(u64::from(segments.div_ceil(cap)));
        let slow = rng.pick(&[0, 3, 10]).unwrap_or(0);
        let mut world = World {
            layout,
            cap,
            last_step,
            checkpoint_every,
            final_checkpoint,
            save_every: Rng(mix(seed, 77)).chance(50).then(|| Duration::from_millis(150)),
            mutant,
            rng,
            now: 0,
            seq: 0,
            heap: BinaryHeap::new(),
            events: BTreeMap::new(),
            channels: BTreeMap::new(),
            dead: BTreeSet::new(),
            blocked: BTreeMap::new(),
            workers: Vec::new(),
            leaders: Vec::new(),
            record: Record::default(),
            shards: BTreeMap::new(),
            manifests: BTreeSet::from([StateId::INITIAL]),
            healed: None,
            slow,
            aim: 0,
            shots: 0,
            aim_load: false,
            calm: false,
            ghosts: Ghosts::default(),
            hash: seed,
            effects: EffectsDigest::default(),
            trace: false,
            stats: Stats::default(),
        };
        world.add_leader();
        for _ in 0..workers {
            world.add_worker();
        }
        world.schedule_faults(seed);
        world
    }

    fn min_workers(&self) -> usize {
        self.layout.segments.div_ceil(self.cap) as usize
    }

    fn bug(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn time(&self) -> Time {
        Time(self.now * 1_000_000)
    }

    fn at(&mut self, time: Ms, event: Ev) {
        self.seq += 1;
        self.heap.push(Reverse((time, self.seq)));
        self.events.insert(self.seq, event);
    }

    fn after(&mut self, low: Ms, high: Ms, event: Ev) {
        let time = self.now + self.rng.range(low, high);
        self.at(time, event);
    }

    /// Runs to the end of the job.
    ///
    /// # Errors
    /// The invariant that was broken.
    pub fn run(&mut self) -> Result<(), Violation> {
        while let Some(Reverse((time, number))) = self.heap.pop() {
            self.now = self.now.max(time);
            let Some(event) = self.events.remove(&number) else {
                continue;
            };
            self.stats.events += 1;
            self.hash = mix(self.hash, mix(self.now, number));
            self.step(event)?;
            if self.record.done {
                self.stats.done = 1;
                return self.finish();
            }
            if let Some(healed) = self.healed
                && (self.now > healed + PATIENCE || self.stats.events > EVENTS)
            {
                return broken(
                    'f',
                    format!("no end {} ms after the faults stopped", self.now - healed),
                );
            }
        }
        broken('f', "nothing left to happen".into())
    }

    /// Only joins happen in this schedule.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.calm
    }

    /// Goes on, after the job's end, until the coordinator has ended.
    ///
    /// # Errors
    /// (f) where somebody is left behind.
    pub fn run_until_released(&mut self) -> Result<(), Violation> {
        let since = self.now;
        while let Some(Reverse((time, number))) = self.heap.pop() {
            self.now = self.now.max(time);
            if let Some(event) = self.events.remove(&number) {
                self.step(event)?;
            }
            if self.leaders.iter().any(|l| l.machine.ended()) {
                let left = self.workers.iter().filter(|w| w.alive && w.stream > 0).count();
                return if left == 0 {
                    Ok(())
                } else {
                    broken('f', format!("{left} workers were left behind"))
                };
            }
            if self.now > since + PATIENCE {
                break;
            }
        }
        broken('f', "the coordinator did not end".into())
    }

    /// A hash over all that happened: equal for equal seeds.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.hash
    }

    /// A number over all effects of the protocol's machines: who, when, what. It does not depend on names in the code, nor on
    /// sentences for people.
    #[must_use]
    pub fn effects_digest(&self) -> u64 {
        self.effects.0
    }

    fn finish(&mut self) -> Result<(), Violation> {
        let last = self.last_step;
        let saved = self.manifests.iter().rev().find(|m| m.step == last).copied();
        let reported = self.ghosts.newest_at(last).filter(|_| !self.final_checkpoint);
        let reached = saved.or(reported);
        let Some(reached) = reached else {
            return broken('c', "done without the last step".into());
        };
        if let Some(healed) = self.healed {
            self.stats.recovery_max = self.now - healed;
        }
        self.ghosts.ancestry(reached)
    }

    fn step(&mut self, event: Ev) -> Result<(), Violation> {
        match event {
            Ev::Deliver(channel) => self.deliver(channel),
            Ev::Tick(w) => {
                if let Some(until) = self.asleep(w) {
                    self.at(until + 1, Ev::Tick(w));
                    return Ok(());
                }
                self.after(20, 40, Ev::Tick(w));
                self.redial(w);
                self.member(w, MemberInput::Tick)
            }
            Ev::TickCoordinator(c) => self.tick_leader(c),
            Ev::Pump(..) | Ev::Stop(_) | Ev::Applied(..) | Ev::Adopted(..) => self.engine_event(event),
            Ev::Stream(w) => self.connect_stream(w),
            Ev::Gone(c, worker) => {
                self.leaders[c].streams.remove(&worker);
                self.tell_leader(c, Ev::Gone(c, worker), CoordinatorInput::ProcessEnded { worker })
            }
            Ev::Cas(..)
            | Ev::CasReply(..)
            | Ev::Read(_)
            | Ev::ReadReply(..)
            | Ev::List(_)
            | Ev::Put(..)
            | Ev::Get(..)
            | Ev::GotShard(..) => self.store_event(event),
            Ev::Kill(w) => {
                self.crash(w);
                let live = self
                    .workers
                    .iter()
                    .filter(|s| s.alive && !s.member.status().draining)
                    .count();
                let cut = usize::from(self.blocked.values().any(|t| *t == Ms::MAX));
                if self.healed.is_some() && live < self.min_workers() + cut {
                    self.add_worker();
                }
                Ok(())
            }
            Ev::NewCoordinator => {
                self.add_leader();
                Ok(())
            }
            Ev::Fault(fault) => self.fault(fault),
            Ev::Heal => {
                self.heal();
                Ok(())
            }
        }
    }

    /// Until when the worker is stopped (SIGSTOP), if it is. The dead sleep for ever.
    fn asleep(&self, w: WorkerId) -> Option<Ms> {
        let worker = &self.workers[index(w)];
        (worker.alive && worker.paused > self.now).then_some(worker.paused)
    }

    fn blocked_until(&self, from: Node, to: Node) -> Option<Ms> {
        self.blocked.get(&(from, to)).copied().filter(|t| *t > self.now)
    }

    /// Prints where everybody stands.
    pub fn dump(&self) {
        let r = &self.record;
        println!(
            "{:?} cap {} last {} record v{} t{} highest {} done {}",
            self.layout, self.cap, self.last_step, r.version, r.term, r.highest, r.done
        );
        for plan in [&r.plan, &r.next].into_iter().flatten() {
            println!("plan {plan:?}");
        }
        for (i, leader) in self.leaders.iter().enumerate() {
            println!(
                "coordinator {i} alive {} {}",
                leader.alive,
                leader.machine.snapshot().mode
            );
        }
        for (i, w) in self.workers.iter().enumerate().filter(|(_, w)| w.alive) {
            println!(
                "worker {i} to {:?} {:?} {:?}",
                w.coordinator,
                w.member.status(),
                w.member.held()
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

fn index(w: WorkerId) -> usize {
    usize::try_from(w.0).unwrap_or(usize::MAX)
}

fn small(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
