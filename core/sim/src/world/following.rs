//! Newcomers that follow: transfers to them leave their worker in order, and their engines apply them in order.

use super::network::{Data, Ms};
use super::{Result, Schedule, Timer};
use crate::check::Origin;
use crate::engine::Held;
use crate::host::{Host, Link};
use std::collections::BTreeMap;
use varuna_plan::{Decision, StateId, Unit, WorkerId};
use varuna_protocol::{MemberEffect, MemberInput, Prepared};

/// When the last of the operations that must stay in order is done.
#[derive(Default)]
pub(super) struct Order {
    /// Copies and gradients leave the worker one after the other.
    sent: Ms,
    /// When the engine will have done its last operation, by unit.
    units: BTreeMap<Unit, Ms>,
}

impl Host<Schedule> {
    /// When the engine will have done another operation for a unit, which takes at most `longest`, after all earlier operations for the
    /// unit.
    pub(super) fn engine_time(&mut self, w: WorkerId, unit: Unit, longest: Ms) -> Ms {
        let at = self.now() + self.env.rng.range(1, longest);
        let last = self.members[w].local.follow.units.entry(unit).or_default();
        *last = at.max(*last);
        *last
    }

    /// What a member sends to newcomers and keepers that follow it.
    pub(super) fn send_for_followers(&mut self, w: WorkerId, effect: MemberEffect) {
        match effect {
            MemberEffect::Copy {
                generation,
                to,
                unit,
                id,
                decision,
            } => self.copy_to_follower((w, to, generation), (unit, id), decision),
            MemberEffect::Forward {
                generation,
                to,
                unit,
                decision,
            } => self.forward((w, to, generation), unit, decision),
            MemberEffect::ForwardPrepared {
                generation,
                to,
                unit,
                prepared,
            } => {
                self.maybe_die_alone(w);
                self.forward_prepared((w, to, generation), unit, prepared);
            }
            _ => {}
        }
    }

    /// Copies the state of this moment. The copy takes time, and training does not wait for it.
    fn copy_to_follower(&mut self, link: Link, (unit, id): (Unit, StateId), decision: Option<Decision>) {
        let Some(Held { state, .. }) = self.members[link.0].local.engine.held.get(&unit).copied() else {
            return;
        };
        self.env.stats.reach("following: a copy is made");
        let state = Data::State {
            unit,
            id,
            state,
            decision,
        };
        let slow = self.env.rng.chance(self.env.unreliable.transfers);
        let longest = if slow { 500 } else { 40 };
        self.send_in_order(link, longest, state);
    }

    fn forward(&mut self, link: Link, unit: Unit, decision: Decision) {
        let Some(bits) = self.members[link.0].local.engine.gradient(unit) else {
            return;
        };
        let slow = self.env.rng.chance(self.env.unreliable.transfers);
        let longest = if slow { 150 } else { 12 };
        self.send_in_order(link, longest, Data::Gradient { unit, bits, decision });
    }

    fn forward_prepared(&mut self, link: Link, unit: Unit, prepared: Prepared) {
        let Some(bits) = self.members[link.0].local.engine.gradient(unit) else {
            return;
        };
        let slow = self.env.rng.chance(self.env.unreliable.transfers);
        let longest = if slow { 150 } else { 12 };
        self.send_in_order(link, longest, Data::PreparedGradient { unit, bits, prepared });
    }

    fn send_in_order(&mut self, link: Link, longest: Ms, data: Data) {
        let time = self.now() + self.env.rng.range(1, longest);
        let order = &mut self.members[link.0].local.follow;
        order.sent = order.sent.max(time);
        let at = order.sent;
        self.at(at, Timer::Follow(link, data));
    }

    /// A gradient has arrived: the member decides whether it wants it.
    pub(super) fn gradient_arrives(&mut self, (from, to, generation): Link, gradient: Data) -> Result {
        let engine = &mut self.members[to].local.engine;
        let input = match gradient {
            Data::Gradient { unit, bits, decision } => {
                let of = (unit, decision.id.run_gen, decision.parent.step);
                engine.gradients.insert(of, bits);
                MemberInput::Gradient {
                    generation,
                    from,
                    unit,
                    decision,
                }
            }
            Data::PreparedGradient { unit, bits, prepared } => {
                let of = (unit, prepared.run_gen, prepared.step);
                engine.arrived = Some((of, bits));
                MemberInput::PreparedGradient {
                    generation,
                    from,
                    unit,
                    prepared,
                }
            }
            _ => return Ok(()),
        };
        self.member(to, input)
    }

    /// A copy or a gradient was sent completely.
    pub(super) fn send_to_follower(&mut self, link: Link, data: Data) {
        let (w, to, generation) = link;
        let (unit, sent) = match &data {
            Data::State { unit, .. } => (*unit, Timer::Served(w, generation, to, *unit)),
            Data::Gradient { unit, .. } | Data::PreparedGradient { unit, .. } => {
                (*unit, Timer::Forwarded(w, generation, to, *unit))
            }
            _ => return,
        };
        if !self.members[w].alive || !self.members[w].open.contains(&generation) {
            return;
        }
        let damaged = self.env.rng.chance(self.env.unreliable.damaged_transfers);
        let data = if damaged { Data::Damaged { unit } } else { data };
        self.send_data(w, to, generation, data);
        self.after_random(1, 8, sent);
    }

    pub(super) fn applied_forwarded(&mut self, w: WorkerId, unit: Unit, decision: Decision) -> Result {
        let engine = &mut self.members[w].local.engine;
        if engine.apply_forwarded(unit, &decision) {
            self.env.stats.reach("following: a gradient is applied");
            if let Some(held) = engine.held.get(&unit) {
                self.env
                    .checker
                    .set(w, unit, held.id, held.state, Origin::Forwarded)?;
            }
            self.maybe_crash(w, true);
        }
        let id = decision.id;
        self.member(w, MemberInput::Loaded { unit, id })
    }
}
