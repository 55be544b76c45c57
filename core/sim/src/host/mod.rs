//! The shipped [`Coordinator`] and [`Member`](varuna_protocol::Member) machines on simulated time.
//!
//! The host owns the clock, the processes and their connections. It gives the machines their inputs and carries out the effects that mean
//! the same in every environment. How long things take, what engines and the store do, and which faults happen is decided by an
//! [`Environment`]: the checker's (`crate::world`) or a trace's (`crate::replay`).
//!
//! The order of events follows a common rule: an event gets its number when it is scheduled. An environment that draws a random delay draws
//! it just before that.

mod members;
mod queue;

pub(crate) use members::{MemberHost, Members};

use queue::Queue;
use std::collections::BTreeMap;
use varuna_plan::{Generation, WorkerId};
use varuna_protocol::{
    Coordinator, CoordinatorEffect, CoordinatorInput, Hello, MemberEffect, MemberInput, Order, PeerMessage,
    Report, Time,
};

/// One direction of a connection. Connections between peers belong to a generation. Streams between a worker and a coordinator (given by
/// its index) are numbered by the worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Channel {
    Peer(WorkerId, WorkerId, Generation),
    Up(WorkerId, usize, u64),
    Down(usize, WorkerId, u64),
}

/// A message on a channel; `D` is the environment's own data.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Message<D> {
    /// The sender's end is closed.
    Closed,
    Peer(PeerMessage),
    Report(Report),
    /// An order, with the coordinator's term.
    Order(u64, Order),
    Data(D),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Process {
    Worker(WorkerId),
    Coordinator(usize),
}

/// A scheduled event of the host; `T` is the environment's own event.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "few wait at a time, and a box for each would cost more than the copy"
)]
pub(crate) enum Event<T> {
    Tick(Process),
    /// The worker looks for a coordinator.
    OpenStream(WorkerId),
    /// The store or the platform has an answer for a coordinator.
    Coordinator(usize, CoordinatorInput),
    Environment(T),
}

/// What a worker finds when it looks for a coordinator.
pub(crate) enum Found {
    Coordinator(usize),
    /// No coordinator that it can reach: it tries again at this time.
    Nothing {
        again_at: u64,
    },
    /// The worker is dead.
    Dead,
}

/// A link: sender, receiver, generation.
pub(crate) type Link = (WorkerId, WorkerId, Generation);

type Done<E> = Result<(), <E as Environment>::Error>;

/// What differs between simulated worlds. Functions take the whole host, since most of them schedule events.
pub(crate) trait Environment: Sized {
    /// Nanoseconds in a unit of the host's clock.
    const UNIT_NS: u64;
    /// Id of the first worker; later ones count up.
    const FIRST_WORKER: u64;
    /// The data that the environment keeps for a worker.
    type Worker;
    type Event;
    type Data;
    type Error;

    /// Time until the process's next tick; none if it never ticks again.
    fn tick_after(host: &mut Host<Self>, process: Process) -> Option<u64>;
    /// A coordinator has handled a tick.
    fn ticked(_host: &mut Host<Self>) -> Done<Self> {
        Ok(())
    }
    fn find_coordinator(host: &mut Host<Self>, worker: WorkerId) -> Found;
    fn hello(host: &Host<Self>, worker: WorkerId) -> Hello;
    /// Sends a message; it arrives through [`Host::deliver`].
    fn send(host: &mut Host<Self>, channel: Channel, message: Message<Self::Data>);
    /// Dials again a peer that has not accepted.
    fn redial(host: &mut Host<Self>, worker: WorkerId, generation: Generation, peer: WorkerId);
    /// A message from a peer arrives. Messages for the member are passed on to [`Host::receive_from_peer`].
    fn from_peer(host: &mut Host<Self>, link: Link, message: Message<Self::Data>) -> Done<Self>;
    /// Carries out the member effects that the host does not: all except reports and messages to peers.
    fn member_effect(host: &mut Host<Self>, worker: WorkerId, effect: MemberEffect) -> Done<Self>;
    /// Carries out the coordinator effects that the host does not: all except orders.
    fn coordinator_effect(host: &mut Host<Self>, c: usize, effect: CoordinatorEffect) -> Done<Self>;
    /// An event of the environment's own.
    fn event(host: &mut Host<Self>, event: Self::Event) -> Done<Self>;
    /// How far a process's clock is ahead of the host's.
    fn clock_ahead(&self, _process: Process) -> u64 {
        0
    }
    /// Lets a process's machine handle an input.
    fn run_machine(&self, _process: Process, handle: impl FnOnce()) {
        handle();
    }
    /// Called with every effect before it is carried out.
    fn observe_member(&mut self, _now: u64, _worker: WorkerId, _effect: &MemberEffect) {}
    /// Called with every effect before it is carried out.
    fn observe_coordinator(&mut self, _now: u64, _c: usize, _effect: &CoordinatorEffect) {}
}

/// A coordinator's process.
pub(crate) struct CoordinatorHost {
    pub(crate) machine: Coordinator,
    pub(crate) alive: bool,
    /// Stopped (SIGSTOP) until then.
    pub(crate) paused: u64,
    /// The newest stream of each worker.
    pub(crate) streams: BTreeMap<WorkerId, u64>,
}

/// All processes, and what happens to them.
pub(crate) struct Host<E: Environment> {
    pub(crate) queue: Queue<Event<E::Event>>,
    pub(crate) members: Members<E::Worker>,
    pub(crate) coordinators: Vec<CoordinatorHost>,
    pub(crate) env: E,
}

impl<E: Environment> Host<E> {
    pub(crate) fn new(env: E) -> Self {
        Self {
            queue: Queue::new(),
            members: Members::new(E::FIRST_WORKER),
            coordinators: Vec::new(),
            env,
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.queue.now()
    }

    /// The present time by the clock of a process.
    fn time(&self, process: Process) -> Time {
        Time((self.now() + self.env.clock_ahead(process)) * E::UNIT_NS)
    }

    pub(crate) fn at(&mut self, time: u64, event: E::Event) {
        self.queue.at(time, Event::Environment(event));
    }

    pub(crate) fn after(&mut self, delay: u64, event: E::Event) {
        self.queue.after(delay, Event::Environment(event));
    }

    pub(crate) fn add_coordinator(&mut self, machine: Coordinator) -> usize {
        self.coordinators.push(CoordinatorHost {
            machine,
            alive: true,
            paused: 0,
            streams: BTreeMap::new(),
        });
        self.coordinators.len() - 1
    }

    /// Until when a process is stopped, if it is. A dead process is stopped for ever.
    pub(crate) fn paused_until(&self, process: Process) -> Option<u64> {
        let (alive, paused) = match process {
            Process::Worker(w) => (self.members[w].alive, self.members[w].paused),
            Process::Coordinator(c) => (self.coordinators[c].alive, self.coordinators[c].paused),
        };
        (alive && paused > self.now()).then_some(paused)
    }

    pub(crate) fn step(&mut self, event: Event<E::Event>) -> Done<E> {
        match event {
            Event::Tick(process) => self.tick(process),
            Event::OpenStream(worker) => self.open_stream(worker),
            Event::Coordinator(c, input) => {
                if let CoordinatorInput::ProcessEnded { worker } = &input {
                    self.coordinators[c].streams.remove(worker);
                }
                if let Some(until) = self.paused_until(Process::Coordinator(c)) {
                    self.queue.at(until + 1, Event::Coordinator(c, input));
                    return Ok(());
                }
                self.coordinator(c, input)
            }
            Event::Environment(event) => E::event(self, event),
        }
    }

    fn tick(&mut self, process: Process) -> Done<E> {
        if let Some(until) = self.paused_until(process) {
            self.queue.at(until + 1, Event::Tick(process));
            return Ok(());
        }
        let Some(delay) = E::tick_after(self, process) else {
            return Ok(());
        };
        self.queue.after(delay, Event::Tick(process));
        match process {
            Process::Worker(w) => {
                for (generation, peer) in self.members[w].dials.clone() {
                    E::redial(self, w, generation, peer);
                }
                self.member(w, MemberInput::Tick)
            }
            Process::Coordinator(c) => {
                self.coordinator(c, CoordinatorInput::Tick)?;
                E::ticked(self)
            }
        }
    }

    fn open_stream(&mut self, w: WorkerId) -> Done<E> {
        let c = match E::find_coordinator(self, w) {
            Found::Nothing { again_at } => {
                self.queue.at(again_at, Event::OpenStream(w));
                return Ok(());
            }
            Found::Dead => return Ok(()),
            Found::Coordinator(c) => c,
        };
        let hello = E::hello(self, w);
        let worker = &mut self.members[w];
        worker.stream += 1;
        worker.coordinator = Some(c);
        self.coordinators[c].streams.insert(w, worker.stream);
        self.coordinator(c, CoordinatorInput::StreamUp { from: w, hello })?;
        self.member(w, MemberInput::Stream)
    }

    /// Gives a coordinator an input and carries out what follows.
    pub(crate) fn coordinator(&mut self, c: usize, input: CoordinatorInput) -> Done<E> {
        let now = self.time(Process::Coordinator(c));
        let CoordinatorHost { machine, alive, .. } = &mut self.coordinators[c];
        if !*alive {
            return Ok(());
        }
        let mut effects = Vec::new();
        self.env.run_machine(Process::Coordinator(c), || {
            machine.handle(now, input, &mut effects)
        });
        let term = machine.term();
        for effect in effects {
            self.env.observe_coordinator(self.queue.now(), c, &effect);
            if let CoordinatorEffect::Send { to, order } = effect {
                let stream = self.coordinators[c].streams.get(&to).copied().unwrap_or(0);
                E::send(self, Channel::Down(c, to, stream), Message::Order(term, order));
            } else {
                E::coordinator_effect(self, c, effect)?;
            }
        }
        Ok(())
    }

    /// Gives a member an input and carries out what follows.
    pub(crate) fn member(&mut self, w: WorkerId, input: MemberInput) -> Done<E> {
        let now = self.time(Process::Worker(w));
        let MemberHost { machine, alive, .. } = &mut self.members[w];
        if !*alive || machine.exited() {
            return Ok(());
        }
        let mut effects = Vec::new();
        self.env
            .run_machine(Process::Worker(w), || machine.handle(now, input, &mut effects));
        for effect in effects {
            self.env.observe_member(self.queue.now(), w, &effect);
            self.carry_out(w, effect)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, w: WorkerId, effect: MemberEffect) -> Done<E> {
        let worker = &mut self.members[w];
        match effect {
            MemberEffect::Report(report) => {
                if let Some(c) = worker.coordinator {
                    let channel = Channel::Up(w, c, worker.stream);
                    E::send(self, channel, Message::Report(report));
                }
                return Ok(());
            }
            MemberEffect::Send {
                generation,
                to,
                message,
            } => {
                if worker.open.contains(&generation) {
                    E::send(self, Channel::Peer(w, to, generation), Message::Peer(message));
                }
                return Ok(());
            }
            MemberEffect::Accepted(ref plan) => {
                worker.open.insert(plan.generation);
            }
            MemberEffect::Connect { generation, peer, .. } => {
                worker.dials.insert((generation, peer));
            }
            MemberEffect::Disconnect { generation } => {
                worker.open.remove(&generation);
                worker.dials.retain(|(g, _)| *g != generation);
            }
            _ => {}
        }
        E::member_effect(self, w, effect)
    }

    /// A connection that the worker opened was accepted.
    pub(crate) fn connected(&mut self, w: WorkerId, generation: Generation, peer: WorkerId) -> Done<E> {
        self.members[w].dials.remove(&(generation, peer));
        self.member(w, MemberInput::Connected { generation, peer })
    }

    /// A message arrives. One that comes on an old stream is dropped.
    pub(crate) fn deliver(&mut self, channel: Channel, message: Message<E::Data>) -> Done<E> {
        match (channel, message) {
            (Channel::Peer(from, to, generation), message) => {
                E::from_peer(self, (from, to, generation), message)
            }
            (Channel::Up(from, c, stream), message) => {
                if self.coordinators[c].streams.get(&from) != Some(&stream) {
                    return Ok(());
                }
                let input = match message {
                    Message::Report(report) => CoordinatorInput::Report { from, report },
                    _ => CoordinatorInput::StreamDown { from },
                };
                self.coordinator(c, input)
            }
            (Channel::Down(_, to, stream), Message::Order(term, order))
                if stream == self.members[to].stream =>
            {
                self.member(to, MemberInput::Order { term, order })
            }
            _ => Ok(()),
        }
    }

    /// Tells a member what came from a peer.
    pub(crate) fn receive_from_peer(&mut self, link: Link, message: Message<E::Data>) -> Done<E> {
        let (from, to, generation) = link;
        let input = match message {
            Message::Closed => MemberInput::Closed {
                generation,
                peer: from,
            },
            Message::Peer(message) => MemberInput::Peer {
                generation,
                from,
                message,
            },
            Message::Data(_) | Message::Report(_) | Message::Order(..) => return Ok(()),
        };
        self.member(to, input)
    }
}
