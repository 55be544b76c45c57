//! The network: channels deliver with delay, in order, through partitions, and lose their tail when cut.

use super::{Result, Schedule, Timer};
use crate::engine::{Contribution, Engine, Held, UnitState};
use crate::host::{Channel, Event, Found, Host, Link, Message};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use varuna_plan::{Decision, Generation, StateId, Step, Unit, WorkerId};
use varuna_protocol::{MemberInput, Mutant, Prepared};

/// Milliseconds of the world.
pub(super) type Ms = u64;

/// An endpoint of a link that can be cut.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Node {
    Worker(WorkerId),
    Coordinator(usize),
    Store,
}

/// Data that peers exchange besides the protocol's messages.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Data {
    Dial,
    Accepted,
    Forward {
        step: Step,
        bits: u64,
    },
    Backward {
        step: Step,
        bits: u64,
    },
    /// The parameters of a unit's owner, for a worker that computes with the unit and does not hold it.
    Parameters {
        step: Step,
        unit: Unit,
        held: Held,
    },
    /// The contribution of a holder, passed on along the ring.
    Reduce {
        step: Step,
        unit: Unit,
        of: WorkerId,
        part: Contribution,
    },
    StateBegins {
        unit: Unit,
    },
    State {
        unit: Unit,
        id: StateId,
        state: UnitState,
        decision: Option<Decision>,
    },
    /// The reduced gradient of a step, forwarded to a follower.
    Gradient {
        unit: Unit,
        bits: u64,
        decision: Decision,
    },
    /// The reduced gradient of a step that is not decided, for a spare copy.
    PreparedGradient {
        unit: Unit,
        bits: u64,
        prepared: Prepared,
    },
    /// State, or a gradient, whose digest is not the sender's.
    Damaged {
        unit: Unit,
    },
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) items: VecDeque<Message<Data>>,
    /// When the last one arrives.
    pub(super) last: Ms,
}

#[derive(Default)]
pub(super) struct Network {
    pub(super) channels: BTreeMap<Channel, Queue>,
    /// Connections that were reset, the lesser worker first.
    pub(super) reset: BTreeSet<(WorkerId, WorkerId, Generation)>,
    /// Links that are cut, until when.
    pub(super) blocked: BTreeMap<(Node, Node), Ms>,
    /// Percentage of slow messages.
    pub(super) slow_percent: u64,
}

fn ends(channel: Channel) -> (Node, Node) {
    match channel {
        Channel::Peer(a, b, _) => (Node::Worker(a), Node::Worker(b)),
        Channel::Up(w, c, _) => (Node::Worker(w), Node::Coordinator(c)),
        Channel::Down(c, w, _) => (Node::Coordinator(c), Node::Worker(w)),
    }
}

impl Engine {
    /// Takes what a peer sends within a step.
    fn take_tensor(&mut self, generation: Generation, tensor: Data) {
        match tensor {
            Data::Forward { step, bits } => self.forward(generation, step, bits),
            Data::Backward { step, bits } => self.backward(generation, step, bits),
            Data::Parameters { step, unit, held } => self.parameters(generation, step, unit, held),
            Data::Reduce { step, unit, of, part } => self.part(generation, step, unit, of, part),
            _ => {}
        }
    }
}

/// Longest delay of a message,
const DELAY_MAX: Ms = 8;
/// and of a slow one.
const SLOW_DELAY_MAX: Ms = 200;

impl Network {
    pub(super) fn longest_delay(&self) -> Ms {
        if self.slow_percent > 0 {
            SLOW_DELAY_MAX
        } else {
            DELAY_MAX
        }
    }
}

impl Host<Schedule> {
    fn message_delay(&mut self) -> Ms {
        if self.env.rng.chance(self.env.network.slow_percent) {
            self.env.rng.range(1, SLOW_DELAY_MAX)
        } else {
            self.env.rng.range(1, DELAY_MAX)
        }
    }

    pub(super) fn transmit(&mut self, channel: Channel, message: Message<Data>) {
        let delay = self.message_delay();
        let now = self.now();
        let queue = self.env.network.channels.entry(channel).or_default();
        let time = (now + delay).max(queue.last);
        queue.last = time;
        queue.items.push_back(message);
        self.at(time, Timer::Deliver(channel));
    }

    /// Sends a message on a connection that was not reset.
    pub(super) fn send_peer(&mut self, from: WorkerId, to: WorkerId, of: Generation, message: Message<Data>) {
        let reset = self.env.network.reset.contains(&(from.min(to), from.max(to), of));
        if self.members.get(to).is_some() && !reset {
            self.transmit(Channel::Peer(from, to, of), message);
        }
    }

    pub(super) fn send_data(&mut self, from: WorkerId, to: WorkerId, of: Generation, data: Data) {
        self.send_peer(from, to, of, Message::Data(data));
    }

    pub(super) fn blocked_until(&self, from: Node, to: Node) -> Option<Ms> {
        let until = self.env.network.blocked.get(&(from, to)).copied();
        until.filter(|t| *t > self.now())
    }

    /// The first message of the channel arrives, or waits until the link and the receiver can take it.
    pub(super) fn arrive(&mut self, channel: Channel) -> Result {
        let (from, to) = ends(channel);
        let (alive, paused) = match to {
            Node::Worker(w) => (self.members[w].alive, self.members[w].paused),
            Node::Coordinator(c) => (self.coordinators[c].alive, self.coordinators[c].paused),
            Node::Store => (false, 0),
        };
        let hold = self.blocked_until(from, to).unwrap_or(0).max(paused);
        if alive && hold > self.now() {
            if hold != Ms::MAX {
                self.at(hold + 1, Timer::Deliver(channel));
            }
            return Ok(());
        }
        let queue = self.env.network.channels.get_mut(&channel);
        let Some(message) = queue.and_then(|q| q.items.pop_front()) else {
            return Ok(());
        };
        if !alive {
            return Ok(());
        }
        if self.env.print {
            println!("{:6} {channel:?} {message:?}", self.now());
        }
        self.deliver(channel, message)
    }

    pub(super) fn take_from_peer(&mut self, link: Link, message: Message<Data>) -> Result {
        let (from, to, generation) = link;
        let any = self.env.has(Mutant::SkipFenceCheck) && message != Message::Data(Data::Dial);
        if !any && !self.members[to].open.contains(&generation) {
            return Ok(()); // refused, or closed
        }
        let engine = &mut self.members[to].local.engine;
        let input = match message {
            Message::Data(Data::Dial) => {
                self.send_data(to, from, generation, Data::Accepted);
                return Ok(());
            }
            Message::Data(Data::Accepted) => return self.connected(to, generation, from),
            Message::Data(Data::StateBegins { unit }) => MemberInput::FetchProgress {
                generation,
                from,
                unit,
            },
            Message::Data(Data::State {
                unit,
                id,
                state,
                decision,
            }) => {
                engine.staged.insert((unit, id), state);
                MemberInput::Fetched {
                    generation,
                    from,
                    unit,
                    id,
                    decision,
                }
            }
            Message::Data(gradient @ (Data::Gradient { .. } | Data::PreparedGradient { .. })) => {
                return self.gradient_arrives(link, gradient);
            }
            Message::Data(Data::Damaged { unit }) => MemberInput::FetchFailed {
                generation,
                from,
                unit,
            },
            Message::Data(tensor) => {
                engine.take_tensor(generation, tensor);
                return self.compute(to);
            }
            message => {
                if message == Message::Closed {
                    self.break_step(link)?;
                }
                return self.receive_from_peer(link, message);
            }
        };
        self.member(to, input)
    }

    /// An engine that waits for a peer fails by itself if the connection closes; one that computes does not notice.
    fn break_step(&mut self, (about, w, generation): Link) -> Result {
        let waits = self.env.rng.chance(50);
        let job = self.members[w].local.engine.job.as_mut();
        let broken = job.filter(|j| !j.over && j.plan.generation == generation && j.plan.has(about));
        let Some(job) = broken.filter(|_| waits) else {
            return Ok(());
        };
        job.over = true;
        let about = Some(about);
        self.member(w, MemberInput::StepFailed { generation, about })
    }

    /// The member's end of all connections of the generation closes.
    pub(super) fn disconnect(&mut self, w: WorkerId, generation: Generation) {
        self.members[w].local.engine.close(generation);
        let own = |c: &&Channel| matches!(c, Channel::Peer(a, _, g) if *a == w && *g == generation);
        let channels = self.env.network.channels.keys();
        for channel in channels.filter(own).copied().collect::<Vec<_>>() {
            if let Channel::Peer(_, to, _) = channel {
                self.send_peer(w, to, generation, Message::Closed);
            }
        }
    }

    /// The newest coordinator, once both processes run and nothing is cut between them.
    pub(super) fn reachable_coordinator(&mut self, w: WorkerId) -> Found {
        let Some(c) = self.newest_coordinator() else {
            let again_at = self.now() + self.env.rng.range(30, 60);
            return Found::Nothing { again_at };
        };
        if !self.members[w].alive {
            return Found::Dead;
        }
        let (here, there) = (Node::Worker(w), Node::Coordinator(c));
        let cut = self
            .blocked_until(here, there)
            .max(self.blocked_until(there, here));
        let paused = self.members[w].paused.max(self.coordinators[c].paused);
        let wait = paused.max(cut.unwrap_or(0));
        if wait > self.now() {
            let again_at = wait.saturating_add(5);
            return Found::Nothing { again_at };
        }
        Found::Coordinator(c)
    }

    /// Schedules an event at a random time from now.
    pub(super) fn after_random(&mut self, low: Ms, high: Ms, event: impl Into<Event<Timer>>) {
        let delay = self.env.rng.range(low, high);
        self.queue.after(delay, event.into());
    }
}
