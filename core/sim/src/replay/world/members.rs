//! Members on nodes: how they come and go, and their connections.

use super::{COORDINATOR, Replay, Result, Timer, Worker};
use crate::host::{Channel, Event, Host, Message, Process};
use crate::replay::ledger::{Activity, Cause};
use crate::replay::net::{Parcel, Route};
use varuna_plan::{Generation, StateId, Step, Unit, WorkerId};
use varuna_protocol::{CoordinatorInput, MemberConfig, MemberEffect, MemberInput, MemberTiming};

/// A run that outlives every trace.
pub(super) const LAST_STEP: Step = Step(u64::MAX / 4);
/// A drained worker's plan must be made, connected and switched to: so much beside the measured parts, the step and the
/// transfer, nanoseconds.
const DRAIN_MARGIN_NS: u64 = 200_000_000;
/// The switch rides on a commit: at most a step, and some to spare.
const DRAIN_STEPS: f64 = 1.1;

impl Host<Replay<'_>> {
    pub(super) fn join(&mut self, node: &str) {
        let id = self.members.next_id();
        let config = MemberConfig {
            follows: false,
            id,
            layout: self.env.setup.planner.costs.layout(),
            last_step: LAST_STEP,
            checkpoint_every: None,
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

    /// The node is gone: its peers and the coordinator see its connections close once that is detected.
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
            self.turn(Activity::Standing(Cause::Detect));
        }
        self.end_worker(w, detect);
        if let Some(ms) = self.env.setup.parts.gone_ms {
            let gone = CoordinatorInput::ProcessEnded { worker: w };
            self.queue
                .after(nanoseconds(ms), Event::Coordinator(COORDINATOR, gone));
        }
    }

    /// Ends the process; whoever is connected hears of it after `delay`.
    fn end_worker(&mut self, w: WorkerId, delay: u64) {
        if let Some(worker) = self.members.alive_mut(w) {
            worker.alive = false;
        }
        self.close_links(w, delay, |_| true);
        let stream = Channel::Up(w, COORDINATOR, self.members[w].stream);
        self.after(delay, Timer::Deliver(stream, Message::Closed));
        self.wake();
    }

    /// The next node that should say that it will go, and when: as late as the change allows, within the notice.
    pub(super) fn next_notice(&self) -> Option<(u64, String)> {
        if self.env.setup.notice_s <= 0.0 {
            return None;
        }
        let lead = nanoseconds(self.env.setup.notice_s * 1e3).min(self.drain_lead());
        let untold = |moment: &crate::replay::trace::Moment| {
            moment.leaves.iter().find_map(|node| {
                let id = self.env.nodes.get(node)?;
                let worker = self.members.get(*id)?;
                let told = worker.local.drained || !worker.alive;
                (!told).then(|| (moment.at_ns.saturating_sub(lead), node.clone()))
            })
        };
        let ahead = self.env.trace.moments.get(self.env.next_moment..).unwrap_or(&[]);
        let horizon = ahead.first()?.at_ns.saturating_add(lead);
        ahead.iter().take_while(|m| m.at_ns <= horizon).find_map(untold)
    }

    /// How long before it goes a worker is drained: time for the steps, the transfer of a largest stage and the rest.
    fn drain_lead(&self) -> u64 {
        let Some(plan) = &self.env.in_force else {
            return DRAIN_MARGIN_NS;
        };
        let parts = &self.env.setup.parts;
        let stages = plan.shape.pipelines.iter().flat_map(|p| &p.stages);
        let parameters = |range| self.env.setup.planner.costs.parameters(range);
        let most = stages.map(|s| parameters(s.segments)).max().unwrap_or(0);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let bytes = most as f64 * parts.state_bytes_per_parameter;
        let rate = parts.bytes_per_ns(self.env.setup.planner.costs.device.bytes_per_s);
        let transfer_ms = bytes / rate / 1e6;
        nanoseconds(
            DRAIN_STEPS * plan.shape.predicted.step_ms + transfer_ms + parts.plan_ms + parts.connect_ms,
        ) + DRAIN_MARGIN_NS
    }

    pub(super) fn drain(&mut self, node: &str) -> Result {
        if let Some(w) = self.env.nodes.get(node).copied()
            && let Some(worker) = self.members.alive_mut(w)
        {
            worker.local.drained = true;
            self.member(w, MemberInput::Drain)?;
            self.judge_plan(false);
        }
        Ok(())
    }

    /// The peers have connected, and neither has closed the connection or died.
    pub(super) fn linked(&self, generation: Generation, a: WorkerId, b: WorkerId) -> bool {
        self.env.links.contains(&(generation, a.min(b), a.max(b)))
    }

    /// Closes connections of a worker; their other ends hear of it after `delay`.
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
                let parcel = self.parcel(unit, id, decision);
                self.env
                    .transfers
                    .send(self.now(), (generation, Some(w), to), parcel);
                self.wake();
            }
            MemberEffect::Exit(_) => self.end_worker(w, latency),
            engine => return self.command(w, engine),
        }
        Ok(())
    }

    pub(super) fn parcel(&self, unit: Unit, id: StateId, decision: Option<varuna_plan::Decision>) -> Parcel {
        Parcel {
            unit,
            id,
            decision,
            bytes: self.env.unit_bytes.get(unit.index()).copied().unwrap_or(0.0),
        }
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
