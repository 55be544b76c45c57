//! Members on nodes: their effects, connections, steps and state.

use super::{Ev, Worker, World};
use crate::replay::ledger::{Activity, Cause};
use crate::replay::net::Parcel;
use std::collections::BTreeSet;
use varuna_plan::{Generation, StateId, Step, Unit, WorkerId};
use varuna_protocol::{
    CoordinatorInput, Hello, Member, MemberConfig, MemberEffect, MemberInput, MemberTiming,
};

/// A run that outlives every trace.
pub(super) const LAST_STEP: Step = Step(u64::MAX / 4);
/// A drained worker's plan must be made, connected and switched to: so much beside the measured parts, the step and the
/// transfer, nanoseconds.
const DRAIN_MARGIN_NS: u64 = 200_000_000;
/// The switch rides on a commit: at most a step, and some to spare.
const DRAIN_STEPS: f64 = 1.1;

pub(super) fn index(w: WorkerId) -> usize {
    usize::try_from(w.0).map_or(usize::MAX, |i| i.wrapping_sub(1))
}

impl World<'_> {
    /// The worker, while it lives.
    pub(super) fn worker(&mut self, w: WorkerId) -> Option<&mut Worker> {
        self.workers.get_mut(index(w)).filter(|x| x.alive)
    }

    pub(super) fn join(&mut self, node: &str) {
        let id = WorkerId(self.workers.len() as u64 + 1);
        let config = MemberConfig {
            id,
            layout: self.setup.planner.costs.layout(),
            last_step: LAST_STEP,
            checkpoint_every: None,
            timing: MemberTiming::default(),
        };
        self.workers.push(Worker {
            member: Member::new(config),
            node: node.to_owned(),
            alive: true,
            drained: false,
            open: BTreeSet::new(),
            dials: BTreeSet::new(),
            job: None,
            prepared: Vec::new(),
        });
        self.nodes.insert(node.to_owned(), id);
        self.after(self.latency_ns, Ev::Stream(id));
        self.after(self.latency_ns, Ev::Tick(id));
    }

    pub(super) fn stream(&mut self, w: WorkerId) {
        let Some(node) = self.worker(w).map(|x| x.node.clone()) else {
            return;
        };
        let hello = Hello {
            address: format!("{node}:1"),
            name: node.clone(),
            node,
            memory_bytes: None,
            speed: 1.0,
        };
        self.lead(CoordinatorInput::StreamUp { from: w, hello });
        self.member(w, MemberInput::Stream);
    }

    /// The node is gone: its peers and the coordinator see its connections close once that is detected.
    pub(super) fn leave(&mut self, node: &str) {
        let Some(w) = self.nodes.remove(node) else {
            return;
        };
        if self.worker(w).is_none() {
            return; // it was released in time
        }
        let detect = nanoseconds(self.setup.parts.detect_ms);
        let trains = self.in_force.as_ref().is_some_and(|p| p.has(w));
        if trains && matches!(self.ledger.activity, Activity::Running { .. }) {
            self.turn(Activity::Standing(Cause::Detect));
        }
        self.end_worker(w, detect);
        if let Some(ms) = self.setup.parts.gone_ms {
            self.after(
                nanoseconds(ms),
                Ev::Leader(CoordinatorInput::ProcessEnded { worker: w }),
            );
        }
    }

    /// Ends the process; whoever is connected hears of it after `delay`.
    fn end_worker(&mut self, w: WorkerId, delay: u64) {
        if let Some(worker) = self.worker(w) {
            worker.alive = false;
        }
        self.net
            .cut(self.now, |(_, from, to)| *from == Some(w) || *to == w);
        let of = |(_, a, b): &&(Generation, WorkerId, WorkerId)| *a == w || *b == w;
        let gone: Vec<_> = self.links.iter().filter(of).copied().collect();
        for link in gone {
            self.links.remove(&link);
            let (generation, a, b) = link;
            let peer = if a == w { b } else { a };
            self.after(
                delay,
                Ev::Member(peer, MemberInput::Closed { generation, peer: w }),
            );
        }
        self.after(delay, Ev::Leader(CoordinatorInput::StreamDown { from: w }));
        self.wake();
    }

    /// The next node that should say that it will go, and when: as late as the change allows, within the notice.
    pub(super) fn next_notice(&self) -> Option<(u64, String)> {
        if self.setup.notice_s <= 0.0 {
            return None;
        }
        let lead = nanoseconds(self.setup.notice_s * 1e3).min(self.drain_lead());
        let untold = |moment: &crate::replay::trace::Moment| {
            moment.leaves.iter().find_map(|node| {
                let id = self.nodes.get(node)?;
                let worker = self.workers.get(index(*id))?;
                let told = worker.drained || !worker.alive;
                (!told).then(|| (moment.at_ns.saturating_sub(lead), node.clone()))
            })
        };
        let ahead = self.trace.moments.get(self.next..).unwrap_or(&[]);
        let horizon = ahead.first()?.at_ns.saturating_add(lead);
        ahead.iter().take_while(|m| m.at_ns <= horizon).find_map(untold)
    }

    /// How long before it goes a worker is drained: time for the steps, the transfer of a largest stage and the rest.
    fn drain_lead(&self) -> u64 {
        let Some(plan) = &self.in_force else {
            return DRAIN_MARGIN_NS;
        };
        let parts = &self.setup.parts;
        let stages = plan.shape.pipelines.iter().flat_map(|p| &p.stages);
        let parameters = |range| self.setup.planner.costs.parameters(range);
        let most = stages.map(|s| parameters(s.segments)).max().unwrap_or(0);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let bytes = most as f64 * parts.state_bytes_per_parameter;
        let rate = parts.bytes_per_ns(self.setup.planner.costs.device.bytes_per_s);
        let transfer_ms = bytes / rate / 1e6;
        nanoseconds(
            DRAIN_STEPS * plan.shape.predicted.step_ms + transfer_ms + parts.plan_ms + parts.connect_ms,
        ) + DRAIN_MARGIN_NS
    }

    pub(super) fn drain(&mut self, node: &str) {
        if let Some(w) = self.nodes.get(node).copied()
            && let Some(worker) = self.worker(w)
        {
            worker.drained = true;
            self.member(w, MemberInput::Drain);
            self.judge_plan(false);
        }
    }

    /// An input that travelled.
    pub(super) fn deliver(&mut self, w: WorkerId, input: MemberInput) {
        let Some(worker) = self.worker(w) else { return };
        let fits = match &input {
            MemberInput::Peer { generation, from, .. } => {
                let (generation, from) = (*generation, *from);
                worker.open.contains(&generation) && self.linked(generation, from, w)
            }
            MemberInput::Closed { generation, .. } => worker.open.contains(generation),
            _ => true,
        };
        if fits {
            self.member(w, input);
        }
    }

    fn linked(&self, generation: Generation, a: WorkerId, b: WorkerId) -> bool {
        self.links.contains(&(generation, a.min(b), a.max(b)))
    }

    /// Gives a member an input and carries out what follows.
    pub(super) fn member(&mut self, w: WorkerId, input: MemberInput) {
        let now = self.time();
        let Some(worker) = self.worker(w) else { return };
        if worker.member.exited() {
            return;
        }
        let mut effects = Vec::new();
        worker.member.handle(now, input, &mut effects);
        for effect in effects {
            self.carry_out(w, effect);
        }
    }

    fn carry_out(&mut self, w: WorkerId, effect: MemberEffect) {
        match effect {
            MemberEffect::Report(report) => {
                self.after(
                    self.latency_ns,
                    Ev::Leader(CoordinatorInput::Report { from: w, report }),
                );
            }
            MemberEffect::Accepted(plan) => {
                if let Some(worker) = self.worker(w) {
                    worker.open.insert(plan.generation);
                }
                self.plans.insert(plan.generation, plan);
            }
            MemberEffect::Connect { generation, peer, .. } => {
                if let Some(worker) = self.worker(w) {
                    worker.dials.insert((generation, peer));
                }
                let connect = nanoseconds(self.setup.parts.connect_ms);
                self.after(connect.max(self.latency_ns), Ev::Dial(generation, w, peer));
            }
            MemberEffect::Disconnect { generation } => self.disconnect(w, generation),
            MemberEffect::Send {
                generation,
                to,
                message,
            } => {
                let from = w;
                let input = MemberInput::Peer {
                    generation,
                    from,
                    message,
                };
                self.after(self.latency_ns, Ev::Member(to, input));
            }
            MemberEffect::Serve {
                generation,
                to,
                unit,
                id,
                decision,
            } => {
                let parcel = self.parcel(unit, id, decision);
                self.net.send(self.now, (generation, Some(w), to), parcel);
                self.wake();
            }
            // checkpoints are the world's own business, relays need bad links
            MemberEffect::Put { .. } | MemberEffect::Free { .. } => {}
            MemberEffect::Exit => self.end_worker(w, self.latency_ns),
            engine => self.command(w, engine),
        }
    }

    pub(super) fn parcel(&self, unit: Unit, id: StateId, decision: Option<varuna_plan::Decision>) -> Parcel {
        Parcel {
            unit,
            id,
            decision,
            bytes: self.bytes.get(unit.index()).copied().unwrap_or(0.0),
        }
    }

    fn disconnect(&mut self, w: WorkerId, generation: Generation) {
        if let Some(worker) = self.worker(w) {
            worker.open.remove(&generation);
            worker.dials.retain(|(g, _)| *g != generation);
        }
        self.net.cut(self.now, |(g, from, to)| {
            *g == generation && (*from == Some(w) || *to == w)
        });
        let of = |(g, a, b): &&(Generation, WorkerId, WorkerId)| *g == generation && (*a == w || *b == w);
        let gone: Vec<_> = self.links.iter().filter(of).copied().collect();
        for link in gone {
            self.links.remove(&link);
            let peer = if link.1 == w { link.2 } else { link.1 };
            self.after(
                self.latency_ns,
                Ev::Member(peer, MemberInput::Closed { generation, peer: w }),
            );
        }
        self.wake();
    }

    pub(super) fn redial(&mut self, w: WorkerId) {
        let dials = self.worker(w).map(|x| x.dials.clone()).unwrap_or_default();
        for (generation, peer) in dials {
            self.after(self.latency_ns, Ev::Dial(generation, w, peer));
        }
    }

    pub(super) fn dialled(&mut self, generation: Generation, from: WorkerId, to: WorkerId) {
        let dials = |x: &mut Worker| x.dials.contains(&(generation, to));
        let open = |x: &mut Worker| x.open.contains(&generation);
        if !self.worker(from).is_some_and(dials) || !self.worker(to).is_some_and(open) {
            return; // refused, or no longer wanted
        }
        if let Some(worker) = self.worker(from) {
            worker.dials.remove(&(generation, to));
        }
        self.links.insert((generation, from.min(to), from.max(to)));
        self.member(from, MemberInput::Connected { generation, peer: to });
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
