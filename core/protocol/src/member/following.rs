//! Following: a newcomer takes a copy of each of its units while their holders train, and then applies the reduced gradients of the steps
//! after it. This module knows what was sent and what was taken, on both sides. It never decides what is at the base: state ids do.

use super::transfers::Transfers;
use super::{Member, MemberEffect};
use crate::message::{Following, Phase, Time};
use std::collections::{BTreeMap, BTreeSet};
use varuna_plan::{Decision, Generation, StateId, Unit, WorkerId};

/// Gradients of one unit that may wait on their way to one follower, and in its engine. A state is three times its gradient, so that a link
/// that keeps up with the run has no more of them waiting behind a copy.
const WAITING_MAX: u32 = 4;

/// Whom this worker sends copies and gradients to.
#[derive(Default)]
pub(super) struct Followers {
    /// They need a copy.
    asks: BTreeSet<(WorkerId, Unit)>,
    /// The copy that is on its way to each.
    copies: BTreeMap<WorkerId, Unit>,
    /// Units that were copied, and how many of their gradients are on the way.
    gradients: BTreeMap<(WorkerId, Unit), u32>,
}

impl Followers {
    /// A peer asks to follow a unit; `in_order`: it holds what it was sent.
    pub(super) fn ask(&mut self, from: WorkerId, unit: Unit, in_order: bool) {
        let copying = self.copies.get(&from) == Some(&unit);
        let known = in_order && self.gradients.contains_key(&(from, unit));
        if !copying && !known {
            self.gradients.remove(&(from, unit));
            self.asks.insert((from, unit));
        }
    }

    /// The copies to be made of the present state: one is on its way to each follower.
    fn next_copies(&mut self, can: impl Fn(WorkerId, Unit) -> bool) -> Vec<(WorkerId, Unit)> {
        let mut next = Vec::new();
        for (to, unit) in &self.asks {
            if !self.copies.contains_key(to) && can(*to, *unit) {
                self.copies.insert(*to, *unit);
                self.gradients.insert((*to, *unit), 0);
                next.push((*to, *unit));
            }
        }
        for copied in &next {
            self.asks.remove(copied);
        }
        next
    }

    /// The gradients to be sent of the present step. A unit of which too many wait is not followed any more: the follower asks anew.
    fn next_gradients(&mut self) -> Vec<(WorkerId, Unit)> {
        if !bug!(ForwardWithoutBound) {
            self.gradients.retain(|_, waiting| *waiting < WAITING_MAX);
        }
        self.gradients.values_mut().for_each(|waiting| *waiting += 1);
        self.gradients.keys().copied().collect()
    }

    /// A copy was sent to the end.
    pub(super) fn copy_sent(&mut self, to: WorkerId, unit: Unit) {
        if self.copies.get(&to) == Some(&unit) {
            self.copies.remove(&to);
        }
    }

    /// A gradient was sent to the end.
    fn gradient_sent(&mut self, to: WorkerId, unit: Unit) {
        if let Some(waiting) = self.gradients.get_mut(&(to, unit)) {
            *waiting = waiting.saturating_sub(1);
        }
    }

    /// The peer was sent all gradients of the unit after its copy.
    pub(super) fn has(&self, to: WorkerId, unit: Unit) -> bool {
        self.gradients.contains_key(&(to, unit))
    }

    /// Some of them are still on their way.
    fn is_sending(&self, to: WorkerId, unit: Unit) -> bool {
        self.gradients
            .get(&(to, unit))
            .is_some_and(|waiting| *waiting > 0)
    }

    /// The connection to the peer is closed.
    pub(super) fn lose(&mut self, peer: WorkerId) {
        self.asks.retain(|(to, _)| *to != peer);
        self.copies.remove(&peer);
        self.gradients.retain(|(to, _), _| *to != peer);
    }

    /// Asks, and what is on its way.
    pub(super) fn len(&self) -> usize {
        self.asks.len() + self.copies.len() + self.gradients.len()
    }
}

/// A unit that this worker follows.
#[derive(Clone, Copy, PartialEq, Debug)]
struct FollowedUnit {
    /// The state that it is at once the engine has done what it was given.
    at: StateId,
    /// A gradient has come after the copy.
    stepped: bool,
    /// What the engine was given and has not done.
    in_engine: u32,
}

/// What becomes of a gradient that has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Arrived {
    Taken,
    /// It was taken before, or lies before the copy.
    Old,
    /// Something before it is missing.
    Gap,
}

/// The units that this worker follows.
#[derive(Default)]
pub(super) struct Followed {
    units: BTreeMap<Unit, FollowedUnit>,
}

impl Followed {
    /// The state that the unit is followed at.
    pub(super) fn at(&self, unit: Unit) -> Option<StateId> {
        self.units.get(&unit).map(|u| u.at)
    }

    /// The engine takes a copy over.
    fn copied(&mut self, unit: Unit, at: StateId) {
        let in_engine = 1 + self.units.get(&unit).map_or(0, |u| u.in_engine);
        let unit_now = FollowedUnit {
            at,
            stepped: false,
            in_engine,
        };
        self.units.insert(unit, unit_now);
    }

    /// A gradient has arrived: it is taken only where it leads on from what is followed.
    fn gradient(&mut self, unit: Unit, decision: &Decision) -> Arrived {
        let Some(followed) = self.units.get_mut(&unit) else {
            return Arrived::Gap;
        };
        if decision.id <= followed.at && !bug!(ApplyForwardedOutOfOrder) {
            return Arrived::Old;
        }
        let next = decision.parent == followed.at || bug!(ApplyForwardedOutOfOrder);
        if !next || followed.in_engine >= WAITING_MAX {
            self.units.remove(&unit);
            return Arrived::Gap;
        }
        followed.at = decision.id;
        followed.stepped = true;
        followed.in_engine += 1;
        Arrived::Taken
    }

    /// The engine has done something that it was given for the unit.
    pub(super) fn done(&mut self, unit: Unit) {
        if let Some(followed) = self.units.get_mut(&unit) {
            followed.in_engine = followed.in_engine.saturating_sub(1);
        }
    }

    /// What came was damaged: it needs another copy.
    pub(super) fn lose(&mut self, unit: Unit) {
        self.units.remove(&unit);
    }

    /// All these units have come on by a gradient, and none is more than a step behind another.
    pub(super) fn has_caught_up(&self, units: &[Unit]) -> bool {
        let followed: Vec<&FollowedUnit> = units.iter().filter_map(|u| self.units.get(u)).collect();
        let steps = || followed.iter().map(|u| u.at.step.0);
        let together = steps().min().zip(steps().max()).is_some_and(|(a, b)| b - a <= 1);
        followed.len() == units.len() && followed.iter().all(|u| u.stepped) && together
    }

    /// Units followed.
    pub(super) fn len(&self) -> usize {
        self.units.len()
    }
}

impl Member {
    /// What the level says of following.
    pub(super) fn following(&self) -> Following {
        if !self.config.follows {
            return Following::Unable;
        }
        let joining = self.current.as_ref().filter(|c| c.follows());
        let caught_up = joining.is_some_and(|c| c.followed.has_caught_up(&c.plan.units(self.config.id)));
        if caught_up {
            Following::CaughtUp
        } else {
            Following::Able
        }
    }

    /// A newcomer asks to follow a unit.
    pub(super) fn asked_to_follow(
        &mut self,
        generation: Generation,
        from: WorkerId,
        unit: Unit,
        held: Option<StateId>,
        effects: &mut Vec<MemberEffect>,
    ) {
        let me = self.config.id;
        if let Some(change) = self.change_to(generation) {
            let plan = &change.plan;
            let gives = plan.sources.get(unit.index()).is_some_and(|s| s.contains(&me));
            if plan.following && plan.has(from) && gives {
                change.followers.ask(from, unit, held.is_some());
            }
        }
        // After the switch the last gradient may be on its way: then the whole state need not follow it.
        let current = self.current_in(generation);
        let brought = current.is_some_and(|c| held.is_some() && c.followers.is_sending(from, unit));
        if !brought {
            self.asked(generation, from, unit, effects);
        }
    }

    /// Copies the state that was just committed for those who follow.
    pub(super) fn copy_for_followers(&mut self, effects: &mut Vec<MemberEffect>) {
        let (at, decision) = (self.at, self.holdings.decision);
        let Some(change) = &mut self.change else { return };
        let (peers, holdings) = (&change.connections, &self.holdings);
        let generation = change.plan.generation;
        let can = |to: WorkerId, unit: Unit| peers.has(to) && holdings.is_at(unit, Some(at));
        for (to, unit) in change.followers.next_copies(can) {
            effects.push(MemberEffect::Copy {
                generation,
                to,
                unit,
                id: at,
                decision,
            });
        }
    }

    /// Sends the gradients of the step that was just concluded to those who follow. It comes before the optimizer, which scales them in place.
    pub(super) fn forward_gradients(&mut self, decision: Decision, effects: &mut Vec<MemberEffect>) {
        let Some(change) = &mut self.change else { return };
        let generation = change.plan.generation;
        let forward = |(to, unit)| MemberEffect::Forward {
            generation,
            to,
            unit,
            decision,
        };
        effects.extend(change.followers.next_gradients().into_iter().map(forward));
    }

    /// A gradient was sent to the end.
    pub(super) fn forwarded(&mut self, generation: Generation, to: WorkerId, unit: Unit) {
        if let Some(change) = self.change_to(generation) {
            change.followers.gradient_sent(to, unit);
        } else if let Some(current) = self.current_in(generation) {
            current.followers.gradient_sent(to, unit);
        }
    }

    /// Whether this is a copy of a unit that is followed, and not the base: that is the state that the plan's own switch leads to.
    pub(super) fn is_copy(&self, id: StateId, decision: Option<Decision>) -> bool {
        let switches = |c: &Decision| c.id == id && c.switch == Some(self.generation());
        let here = self.current.as_ref().filter(|c| c.follows());
        here.is_some_and(|c| {
            c.base
                .map_or(!decision.as_ref().is_some_and(switches), |base| base != id)
        })
    }

    /// A copy of a unit has arrived.
    pub(super) fn copied(
        &mut self,
        now: Time,
        from: WorkerId,
        unit: Unit,
        (id, decision): (StateId, Option<Decision>),
        effects: &mut Vec<MemberEffect>,
    ) {
        let me = self.config.id;
        let Some(current) = &mut self.current else { return };
        let here = self.adopting.get(&unit).or(self.holdings.units.get(&unit));
        let at_base = current.base.is_some() && here.copied() == current.base;
        let older = current.followed.at(unit).is_some_and(|at| at >= id);
        if from == me || at_base || older || !current.plan.units(me).contains(&unit) {
            return;
        }
        current.progress_at = now;
        current.followed.copied(unit, id);
        self.learn(decision.filter(|d| d.id == id));
        self.replace(unit, id);
        self.keep_following(now, from, unit);
        effects.push(MemberEffect::Adopt { unit, id });
    }

    /// The reduced gradient of a step has arrived, for a unit that this worker follows.
    pub(super) fn gradient_arrived(
        &mut self,
        now: Time,
        (from, unit): (WorkerId, Unit),
        decision: Decision,
        effects: &mut Vec<MemberEffect>,
    ) {
        let generation = self.generation();
        let open = self.phase() == Phase::Loading && !self.waiting.has_fence();
        let here = self.current.as_mut().filter(|c| open && c.follows());
        let Some(current) = here else { return };
        current.progress_at = now;
        let switched = decision.switch == Some(generation) && current.base.is_none();
        if switched {
            current.base = Some(decision.id);
        }
        if let Some(transfers) = current.transfers() {
            transfers.progress(now, from);
        }
        if current.followed.gradient(unit, &decision) == Arrived::Taken {
            self.learn(Some(decision));
            self.replace(unit, decision.id);
            self.keep_following(now, from, unit);
            effects.push(MemberEffect::ApplyForwarded { unit, decision });
        }
        if switched {
            self.tell(effects);
            self.load(now, effects);
        } else {
            self.tell_change(effects);
        }
    }

    /// What is followed is on its way from there: nobody else is asked for it meanwhile.
    fn keep_following(&mut self, now: Time, from: WorkerId, unit: Unit) {
        if let Some(transfers) = self.current.as_mut().and_then(super::InPlan::transfers) {
            Transfers::keep(transfers, now, from, unit);
        }
    }

    /// A decision that came with state. Units come from several sources: the newest one counts.
    fn learn(&mut self, decision: Option<Decision>) {
        let newer = |d: &Decision| self.holdings.decision.is_none_or(|known| d.id > known.id);
        if let Some(decision) = decision.filter(newer) {
            self.holdings.decision = Some(decision);
        }
    }
}
