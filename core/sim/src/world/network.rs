//! Channels: delivery with delay, in order, through partitions.

use super::{Ev, World, index};
use crate::check::Violation;
use crate::net::{Channel, Load, Ms, Node};
use varuna_plan::{Generation, WorkerId};
use varuna_protocol::{CoordinatorInput, MemberInput, Mutant};

impl World {
    fn delay(&mut self) -> Ms {
        if self.rng.chance(self.slow) {
            self.rng.range(1, 200)
        } else {
            self.rng.range(1, 8)
        }
    }

    pub(super) fn send(&mut self, channel: Channel, load: Load) {
        let delay = self.delay();
        let queue = self.channels.entry(channel).or_default();
        let time = (self.now + delay).max(queue.last);
        queue.last = time;
        queue.items.push_back(load);
        self.at(time, Ev::Deliver(channel));
    }

    /// On a connection that was not reset.
    pub(super) fn send_peer(&mut self, from: WorkerId, to: WorkerId, generation: Generation, load: Load) {
        if index(to) < self.workers.len() && !self.dead.contains(&(from.min(to), from.max(to), generation)) {
            self.send(Channel::Peer(from, to, generation), load);
        }
    }

    pub(super) fn deliver(&mut self, channel: Channel) -> Result<(), Violation> {
        let (from, to) = channel.ends();
        let (alive, paused) = match to {
            Node::Worker(w) => (self.workers[index(w)].alive, self.workers[index(w)].paused),
            Node::Coordinator(c) => (self.leaders[c].alive, self.leaders[c].paused),
            Node::Store => (false, 0),
        };
        let hold = self.blocked_until(from, to).unwrap_or(0).max(paused);
        if alive && hold > self.now {
            if hold != Ms::MAX {
                self.at(hold + 1, Ev::Deliver(channel));
            }
            return Ok(());
        }
        let Some(load) = self.channels.get_mut(&channel).and_then(|q| q.items.pop_front()) else {
            return Ok(());
        };
        if !alive {
            return Ok(());
        }
        if self.trace {
            println!("{:6} {channel:?} {load:?}", self.now);
        }
        match (channel, load) {
            (Channel::Peer(from, to, generation), load) => self.peer(from, to, generation, load),
            (Channel::Up(from, c, number), load) => {
                if self.leaders[c].streams.get(&from) != Some(&number) {
                    return Ok(()); // not its newest stream
                }
                match load {
                    Load::Report(report) => self.leader(c, CoordinatorInput::Report { from, report }),
                    _ => self.leader(c, CoordinatorInput::StreamDown { from }),
                }
            }
            (Channel::Down(_, to, number), Load::Order(term, order)) => {
                if number == self.workers[index(to)].stream {
                    return self.member(to, MemberInput::Order { term, order });
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn peer(
        &mut self,
        from: WorkerId,
        to: WorkerId,
        generation: Generation,
        load: Load,
    ) -> Result<(), Violation> {
        let lax = self.bug(Mutant::SkipFenceCheck);
        let worker = &mut self.workers[index(to)];
        let open = worker.open.contains(&generation);
        if !open && (load == Load::Dial || !lax) {
            return Ok(()); // refused, or closed
        }
        match load {
            Load::Dial => {
                self.send_peer(to, from, generation, Load::Accepted);
                Ok(())
            }
            Load::Accepted => {
                worker.dials.remove(&(generation, from));
                self.member(
                    to,
                    MemberInput::Connected {
                        generation,
                        peer: from,
                    },
                )
            }
            Load::Closed => {
                self.break_step(from, to, generation)?;
                self.member(
                    to,
                    MemberInput::Closed {
                        generation,
                        peer: from,
                    },
                )
            }
            Load::Message(message) => self.member(
                to,
                MemberInput::Peer {
                    generation,
                    from,
                    message,
                },
            ),
            Load::Forward { .. } | Load::Backward { .. } | Load::Reduce { .. } => {
                self.mail(from, to, generation, load)
            }
            Load::StateBegins { unit } => self.member(
                to,
                MemberInput::FetchProgress {
                    generation,
                    from,
                    unit,
                },
            ),
            Load::State {
                unit,
                id,
                bits,
                decision,
            } => {
                worker.engine.staged.insert((unit, id), bits);
                self.member(
                    to,
                    MemberInput::Fetched {
                        generation,
                        from,
                        unit,
                        id,
                        decision,
                    },
                )
            }
            Load::Report(_) | Load::Order(..) => Ok(()),
        }
    }

    /// Tensors for the engine.
    fn mail(
        &mut self,
        from: WorkerId,
        to: WorkerId,
        generation: Generation,
        load: Load,
    ) -> Result<(), Violation> {
        let engine = &mut self.workers[index(to)].engine;
        match load {
            Load::Forward { step, bits } => engine.forward(generation, step, bits),
            Load::Backward { step, bits } => engine.backward(generation, step, bits),
            Load::Reduce { step, unit, part } => engine.part(generation, step, unit, from, part),
            _ => {}
        }
        self.pump(to)
    }

    /// An engine that waits for a peer whose connection closes fails by itself; one that computes does not notice.
    fn break_step(&mut self, about: WorkerId, w: WorkerId, generation: Generation) -> Result<(), Violation> {
        let waits = self.rng.chance(50);
        let job = self.workers[index(w)].engine.job.as_mut();
        let Some(job) = job.filter(|j| !j.over && j.plan.generation == generation && j.plan.has(about))
        else {
            return Ok(());
        };
        if !waits {
            return Ok(());
        }
        job.over = true;
        self.member(
            w,
            MemberInput::StepFailed {
                generation,
                about: Some(about),
            },
        )
    }

    pub(super) fn redial(&mut self, w: WorkerId) {
        let dials: Vec<_> = self.workers[index(w)].dials.iter().copied().collect();
        for (generation, peer) in dials {
            self.send_peer(w, peer, generation, Load::Dial);
        }
    }

    pub(super) fn connect_stream(&mut self, w: WorkerId) -> Result<(), Violation> {
        let Some(c) = self.newest_leader() else {
            self.after(30, 60, Ev::Stream(w));
            return Ok(());
        };
        if !self.workers[index(w)].alive {
            return Ok(());
        }
        let (here, there) = (Node::Worker(w), Node::Coordinator(c));
        let wait = self.workers[index(w)].paused.max(self.leaders[c].paused);
        let cut = self
            .blocked_until(here, there)
            .max(self.blocked_until(there, here))
            .unwrap_or(0);
        if wait.max(cut) > self.now {
            self.at(wait.max(cut).saturating_add(5), Ev::Stream(w));
            return Ok(());
        }
        let worker = &mut self.workers[index(w)];
        worker.stream += 1;
        worker.coordinator = Some(c);
        self.leaders[c].streams.insert(w, worker.stream);
        let hello = varuna_protocol::Hello {
            address: format!("worker-{}:1", w.0),
            name: format!("w{}", w.0),
            node: String::new(),
            memory_bytes: None,
            speed: 1.0,
        };
        self.leader(c, CoordinatorInput::StreamUp { from: w, hello })?;
        self.member(w, MemberInput::Stream)
    }
}
