//! Members on nodes: how they come and go, and their connections.

use super::{COORDINATOR, Replay, Result, Timer, Worker};
use crate::host::{Channel, Event, Host, Message, Process};
use crate::replay::ledger::{Activity, Cause};
use crate::replay::net::{Content, Route, UnitTransfer};
use std::time::Duration;
use varuna_plan::{Generation, Step, Unit, WorkerId};
use varuna_protocol::{CoordinatorInput, MemberConfig, MemberEffect, MemberTiming, Timing};

/// A last step that no trace reaches.
pub(super) const LAST_STEP: Step = Step(u64::MAX / 4);
/// Transfers to followers share links with the training's own traffic. By assumption, this fraction of the rate is left for them.
pub(super) const BESIDE_TRAINING: f64 = 0.5;

impl Host<Replay<'_>> {
    pub(super) fn join(&mut self, node: &str) {
        let id = self.members.next_id();
        let config = MemberConfig {
            follows: true,
            parameters_first: self.env.setup.parameters_first,
            id,
            layout: self.env.setup.layout,
            last_step: LAST_STEP,
            // Regular checkpoints are made by the replay, because the machines know only few of the trace's steps. Ordered checkpoints are
            // made by the machines.
            checkpoint_every: self.env.setup.checkpoint_steps.map(|_| LAST_STEP.0),
            compare_every: None,
            timing: MemberTiming::default(),
        };
        let local = Worker {
            node: node.to_owned(),
            drained: false,
            job: None,
            prepared: Vec::new(),
        };
        self.members.start(config, local);
        self.env.nodes.insert(node.to_owned(), id);
        let latency = self.env.latency_ns;
        self.queue.after(latency, Event::OpenStream(id));
        self.queue.after(latency, Event::Tick(Process::Worker(id)));
    }

    /// The node is gone: its peers and the coordinator see its connections close after the detection time.
    pub(super) fn leave(&mut self, node: &str) {
        let Some(w) = self.env.nodes.remove(node) else {
            return;
        };
        if self.members.alive(w).is_none() {
            return; // it was released in time
        }
        let detect = nanoseconds(self.env.setup.parts.detect_ms);
        let trains = self.env.in_force.as_ref().is_some_and(|p| p.has(w));
        if trains && matches!(self.env.account.ledger.activity, Activity::Running { .. }) {
            self.turn(Activity::Paused(Cause::Detect));
        }
        if trains {
            // Its share of a checkpoint in upload is lost with it.
            let real = self.real();
            self.env.saved.retain(|_, s| s.available_ns <= real);
        }
        self.end_worker(w, detect);
        if let Some(ms) = self.env.setup.parts.gone_ms {
            let gone = CoordinatorInput::ProcessEnded { worker: w };
            self.queue
                .after(nanoseconds(ms), Event::Coordinator(COORDINATOR, gone));
        }
    }

    /// Ends the process; connected processes notice after `delay`.
    fn end_worker(&mut self, w: WorkerId, delay: u64) {
        if let Some(worker) = self.members.alive_mut(w) {
            worker.alive = false;
        }
        self.close_links(w, delay, |_| true);
        let stream = Channel::Up(w, COORDINATOR, self.members[w].stream);
        self.after(delay, Timer::Deliver(stream, Message::Closed));
        self.wake();
    }

    /// The next node that should announce that it will leave: when it announces it, its name, and when it leaves. A coordinator that hears
    /// of it earlier would do nothing before its time for following begins.
    pub(super) fn next_notice(&self) -> Option<(u64, String, u64)> {
        if self.env.setup.notice_s <= 0.0 {
            return None;
        }
        let following = u64::try_from(Timing::default().following.as_nanos()).unwrap_or(u64::MAX);
        let lead = nanoseconds(self.env.setup.notice_s * 1e3).min(following);
        let untold = |moment: &crate::replay::trace::Moment| {
            moment.leaves.iter().find_map(|node| {
                let id = self.env.nodes.get(node)?;
                let worker = self.members.get(*id)?;
                let told = worker.local.drained || !worker.alive;
                (!told).then(|| (moment.at_ns.saturating_sub(lead), node.clone(), moment.at_ns))
            })
        };
        let ahead = self.env.trace.moments.get(self.env.next_moment..).unwrap_or(&[]);
        let horizon = ahead.first()?.at_ns.saturating_add(lead);
        ahead.iter().take_while(|m| m.at_ns <= horizon).find_map(untold)
    }

    /// The coordinator is told that a node will leave, and when.
    pub(super) fn announce(&mut self, node: &str, at: u64) -> Result {
        let leaves_in = Duration::from_nanos(at.saturating_sub(self.real()));
        if let Some(w) = self.env.nodes.get(node).copied()
            && let Some(worker) = self.members.alive_mut(w)
        {
            worker.local.drained = true;
            let leaves_in = Some(leaves_in);
            self.coordinator(COORDINATOR, CoordinatorInput::Notice { worker: w, leaves_in })?;
            self.judge_plan(false);
        }
        Ok(())
    }

    /// Whether the peers have connected, and neither has closed the connection or died.
    pub(super) fn linked(&self, generation: Generation, a: WorkerId, b: WorkerId) -> bool {
        self.env.links.contains(&(generation, a.min(b), a.max(b)))
    }

    /// Closes connections of a worker; the other ends notice after `delay`.
    fn close_links(&mut self, w: WorkerId, delay: u64, which: impl Fn(Generation) -> bool) {
        let now = self.now();
        let cut = |(g, from, to): &Route| which(*g) && (*from == Some(w) || *to == w);
        self.env.transfers.cut(now, cut);
        let links = self.env.links.iter();
        let own = links.filter(|(g, a, b)| which(*g) && (*a == w || *b == w));
        for link in own.copied().collect::<Vec<_>>() {
            self.env.links.remove(&link);
            let (generation, a, b) = link;
            let peer = if a == w { b } else { a };
            let closed = Timer::Deliver(Channel::Peer(w, peer, generation), Message::Closed);
            self.after(delay, closed);
        }
    }

    pub(super) fn carry_out_for_member(&mut self, w: WorkerId, effect: MemberEffect) -> Result {
        let latency = self.env.latency_ns;
        match effect {
            MemberEffect::Accepted(plan) => {
                self.env.plans.insert(plan.generation, plan);
            }
            MemberEffect::Connect { generation, peer, .. } => {
                let connect = nanoseconds(self.env.setup.parts.connect_ms);
                self.after(connect.max(latency), Timer::Dial(generation, w, peer));
            }
            MemberEffect::Disconnect { generation } => {
                self.close_links(w, latency, |g| g == generation);
                self.wake();
            }
            MemberEffect::Serve {
                generation,
                to,
                unit,
                id,
                decision,
            } => {
                self.send((generation, Some(w), to), unit, Content::State(id, decision), 1.0);
            }
            MemberEffect::Copy {
                generation,
                to,
                unit,
                id,
                decision,
            } => self.send(
                (generation, Some(w), to),
                unit,
                Content::State(id, decision),
                BESIDE_TRAINING,
            ),
            MemberEffect::Forward {
                generation,
                to,
                unit,
                decision,
            } => self.send(
                (generation, Some(w), to),
                unit,
                Content::Gradient(decision),
                // After a switch training is stopped, so the whole link is free.
                decision.switch.map_or(BESIDE_TRAINING, |_| 1.0),
            ),
            // Between two steps the links carry no other traffic.
            MemberEffect::ForwardPrepared {
                generation,
                to,
                unit,
                prepared,
            } => self.send(
                (generation, Some(w), to),
                unit,
                Content::PreparedGradient(prepared),
                1.0,
            ),
            MemberEffect::Exit(_) => self.end_worker(w, latency),
            engine => return self.command(w, engine),
        }
        Ok(())
    }

    /// Starts a transfer. `share`: the fraction of the link's rate that is free for it.
    pub(super) fn send(&mut self, route: Route, unit: Unit, content: Content, share: f64) {
        let is_gradient = matches!(content, Content::Gradient(_) | Content::PreparedGradient(_));
        let bytes = match content {
            Content::State(..) => self.state_bytes(unit),
            Content::Parameters => self.parameter_bytes(unit),
            // For a skipped step only the decision would be sent; no step is skipped here.
            Content::Gradient(_) | Content::PreparedGradient(_) => self.gradient_bytes(unit),
        };
        if is_gradient {
            self.env.account.report.gradient_bytes += bytes;
        } else {
            self.env.account.report.moved_bytes += bytes;
        }
        let parcel = UnitTransfer {
            unit,
            content,
            bytes: bytes / share,
        };
        self.env.transfers.send(self.now(), route, parcel);
        if is_gradient {
            self.note_extra_memory(route.2);
        }
        self.wake();
    }

    /// A dial arrives.
    pub(super) fn dialled(&mut self, generation: Generation, from: WorkerId, to: WorkerId) -> Result {
        let dials = self.members.alive(from).map(|x| &x.dials);
        let open = self.members.alive(to).map(|x| &x.open);
        let dials = dials.is_some_and(|d| d.contains(&(generation, to)));
        if !dials || !open.is_some_and(|o| o.contains(&generation)) {
            return Ok(()); // refused, or no longer wanted
        }
        self.env.links.insert((generation, from.min(to), from.max(to)));
        self.connected(from, generation, to)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positive, and far below 2^64"
)]
pub(super) fn nanoseconds(ms: f64) -> u64 {
    (ms * 1e6).round().max(0.0) as u64
}
