//! Messages, connections, engines and the store, all without faults and with the same delay.

use super::{COORDINATOR, Nothing, Scale};
use crate::host::{self, Channel, Environment, Found, Host, Link, Message, Process};
use std::convert::Infallible;
use varuna_plan::state::UnitNorm;
use varuna_plan::{Generation, StateId, WorkerId};
use varuna_protocol::coordinator::Event;
use varuna_protocol::{CoordinatorEffect, CoordinatorInput, Hello, Listing, MemberEffect, MemberInput};

/// Interval of the ticks of coordinator and members (as in the programs), nanoseconds.
const TICK_NS: u64 = 20_000_000;
/// Delay of any message, and of any answer of the store.
const LATENCY_NS: u64 = 1_000_000;
/// Time of a step's forward, backward and reduction.
const STEP_NS: u64 = 100_000_000;

/// An event at a later time.
#[derive(Debug)]
pub(super) enum Timer {
    Deliver(Channel, Message<Infallible>),
    /// A dial arrives at the second worker.
    Dial(Generation, WorkerId, WorkerId),
    /// The second worker's answer to the dial arrives.
    Accepted(Generation, WorkerId, WorkerId),
    /// An engine or a peer's data plane answers a member.
    Answer(WorkerId, MemberInput),
}

impl Environment for Scale<'_> {
    const UNIT_NS: u64 = 1;
    const FIRST_WORKER: u64 = 1;
    type Worker = Nothing;
    type Event = Timer;
    type Data = Infallible;
    type Error = Infallible;

    fn tick_after(host: &mut Host<Self>, process: Process) -> Option<u64> {
        match process {
            Process::Worker(w) => host.members.alive(w).map(|_| TICK_NS),
            Process::Coordinator(_) => Some(TICK_NS),
        }
    }

    fn find_coordinator(host: &mut Host<Self>, worker: WorkerId) -> Found {
        match host.members.alive(worker) {
            Some(_) => Found::Coordinator(COORDINATOR),
            None => Found::Dead,
        }
    }

    fn hello(_: &Host<Self>, worker: WorkerId) -> Hello {
        Hello {
            address: format!("10.0.{}.{}:4000", worker.0 / 256, worker.0 % 256),
            name: format!("worker-{}", worker.0),
            node: format!("node-{}", (worker.0 - 1) / 8),
            hardware: None,
            memory_bytes: None,
            copies_bytes: None,
            scores: None,
            speed: 1.0,
        }
    }

    fn send(host: &mut Host<Self>, channel: Channel, message: Message<Infallible>) {
        host.env.count(&message);
        host.after(LATENCY_NS, Timer::Deliver(channel, message));
    }

    fn redial(host: &mut Host<Self>, worker: WorkerId, generation: Generation, peer: WorkerId) {
        host.after(LATENCY_NS, Timer::Dial(generation, worker, peer));
    }

    fn from_peer(host: &mut Host<Self>, link: Link, message: Message<Infallible>) -> Result<(), Infallible> {
        let (_, to, generation) = link;
        match host.members.alive(to) {
            Some(worker) if worker.open.contains(&generation) => host.receive_from_peer(link, message),
            _ => Ok(()),
        }
    }

    fn member_effect(host: &mut Host<Self>, w: WorkerId, effect: MemberEffect) -> Result<(), Infallible> {
        host.carry_out_for_member(w, effect);
        Ok(())
    }

    fn coordinator_effect(
        host: &mut Host<Self>,
        _: usize,
        effect: CoordinatorEffect,
    ) -> Result<(), Infallible> {
        host.carry_out_for_coordinator(effect);
        Ok(())
    }

    fn event(host: &mut Host<Self>, event: Timer) -> Result<(), Infallible> {
        match event {
            Timer::Deliver(channel, message) => host.deliver(channel, message),
            Timer::Dial(generation, from, to) => {
                let open = |w: WorkerId| {
                    let worker = host.members.alive(w);
                    worker.is_some_and(|w| w.open.contains(&generation))
                };
                if open(to) && open(from) {
                    host.after(LATENCY_NS, Timer::Accepted(generation, from, to));
                }
                Ok(())
            }
            Timer::Accepted(generation, from, to) => {
                let dials = host.members.alive(from).map(|w| &w.dials);
                if dials.is_some_and(|dials| dials.contains(&(generation, to))) {
                    host.env.count.connections += 1;
                    return host.connected(from, generation, to);
                }
                Ok(())
            }
            Timer::Answer(w, input) => host.member(w, input),
        }
    }

    fn run_machine(&self, process: Process, handle: impl FnOnce()) {
        self.time(process, handle);
    }
}

impl Scale<'_> {
    fn count(&mut self, message: &Message<Infallible>) {
        let (meter, count) = (self.meter, &mut self.count);
        match message {
            Message::Report(report) => {
                count.reports += 1;
                count.report_bytes += meter.report_bytes(report);
            }
            Message::Order(term, order) => {
                count.orders += 1;
                count.order_bytes += meter.order_bytes(*term, order);
            }
            Message::Peer(message) => {
                count.peer_messages += 1;
                count.peer_bytes += meter.peer_bytes(message);
            }
            Message::Closed => {}
            Message::Data(never) => match *never {},
        }
    }
}

impl Host<Scale<'_>> {
    fn answer(&mut self, after: u64, worker: WorkerId, input: MemberInput) {
        self.after(after, Timer::Answer(worker, input));
    }

    fn carry_out_for_member(&mut self, w: WorkerId, effect: MemberEffect) {
        match effect {
            MemberEffect::Accepted(plan) => {
                self.env.plans.insert(plan.generation, plan);
            }
            MemberEffect::Connect { generation, peer, .. } => Scale::redial(self, w, generation, peer),
            MemberEffect::Run { plan, step, .. } => {
                let norm = UnitNorm {
                    norm2: 1.0,
                    overflow: false,
                    before: varuna_plan::OptimizerProgress::START,
                    loss: 1.0,
                    eval_loss: None,
                };
                let prepared = MemberInput::Prepared {
                    generation: plan.generation,
                    step,
                    units: plan.units(w).into_iter().map(|u| (u, norm)).collect(),
                    store_busy: false,
                };
                self.answer(STEP_NS, w, prepared);
            }
            MemberEffect::Abort => self.answer(0, w, MemberInput::Stopped { prepared: Vec::new() }),
            MemberEffect::Apply { decision, .. } => {
                self.answer(0, w, MemberInput::Applied { id: decision.id });
            }
            MemberEffect::Load { id, unit, .. } | MemberEffect::Adopt { unit, id } => {
                self.answer(0, w, MemberInput::Loaded { unit, id });
            }
            MemberEffect::Serve {
                generation,
                to,
                unit,
                id,
                decision,
            } => {
                self.answer(2 * LATENCY_NS, w, MemberInput::Served { generation, to, unit });
                let fetched = MemberInput::Fetched {
                    generation,
                    from: w,
                    unit,
                    id,
                    decision,
                };
                self.answer(2 * LATENCY_NS, to, fetched);
            }
            _ => {}
        }
    }

    fn carry_out_for_coordinator(&mut self, effect: CoordinatorEffect) {
        let answer = match effect {
            CoordinatorEffect::Write { expect, record } => {
                let ok = self.env.record.version == expect;
                if ok {
                    let bytes = self.env.meter.record_bytes(&record);
                    self.env.record_bytes = self.env.record_bytes.max(bytes);
                    self.env.record = record.clone();
                }
                CoordinatorInput::Written { ok, record }
            }
            CoordinatorEffect::ReadRecord => CoordinatorInput::Record(self.env.record.clone()),
            CoordinatorEffect::ListCheckpoints => {
                CoordinatorInput::Checkpoints(Listing::fresh(vec![StateId::INITIAL]))
            }
            CoordinatorEffect::Event(event) => return self.note(&event),
            CoordinatorEffect::DiscardCheckpoint { .. }
            | CoordinatorEffect::Finish(_)
            | CoordinatorEffect::Send { .. } => return,
        };
        self.queue
            .after(LATENCY_NS, host::Event::Coordinator(COORDINATOR, answer));
    }

    fn note(&mut self, event: &Event) {
        let env = &mut self.env;
        match event {
            Event::Planned { generation, .. } => env.planned = *generation,
            Event::Running { generation } => env.running = *generation,
            Event::Switched { generation } => env.switched = *generation,
            Event::Committed { .. } => env.steps += 1,
            _ => {}
        }
    }

    /// The worker's process ends; its connections close at once.
    pub(super) fn kill(&mut self, w: WorkerId) {
        let Some(worker) = self.members.alive_mut(w) else {
            return;
        };
        worker.alive = false;
        let (stream, open) = (worker.stream, worker.open.clone());
        self.after(
            LATENCY_NS,
            Timer::Deliver(Channel::Up(w, COORDINATOR, stream), Message::Closed),
        );
        for generation in open {
            let plan = self.env.plans.get(&generation).cloned();
            for peer in plan.iter().flat_map(|p| p.members()).filter(|p| **p != w) {
                let channel = Channel::Peer(w, *peer, generation);
                self.after(LATENCY_NS, Timer::Deliver(channel, Message::Closed));
            }
        }
    }

    /// Starts a worker, whose stream comes up after the delay of a message.
    pub(super) fn start_worker(&mut self, config: varuna_protocol::MemberConfig) {
        let id = self.members.next_id();
        self.members.start(config, Nothing);
        self.queue.after(LATENCY_NS, host::Event::OpenStream(id));
        // Ticks of many workers are spread over the interval.
        let spread = TICK_NS / 997 * (id.0 % 997);
        self.queue.after(spread, host::Event::Tick(Process::Worker(id)));
    }
}
