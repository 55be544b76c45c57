//! Following: a newcomer, or a member that gains units, takes a copy of each unit while its holders train, and then applies the reduced
//! gradients of the following steps. This module never decides which state is the base: state ids do.

use super::followed::Arrived;
use super::in_plan::PlannedChange;
use super::transfers::{TransferAction, Transfers};
use super::{Member, MemberEffect, MemberInput};
use crate::message::{Following, PeerMessage, Phase, Time};
use std::collections::BTreeSet;
use varuna_plan::{Decision, Generation, StateId, Unit, WorkerId};

impl Member {
    /// The part of the status that is about following.
    pub(super) fn following(&self) -> Following {
        if !self.config.follows {
            return Following::Unable;
        }
        if let Some(joining) = self.current.as_ref().filter(|c| c.follows()) {
            return joining.followed.following(&joining.plan.units(self.config.id));
        }
        let changing = self.change.as_ref().filter(|c| c.plan.following);
        match changing.filter(|c| self.kept_of_gained_in_step(c)) {
            Some(changing) => changing.followed.following(&self.gained(changing)),
            None => Following::Able,
        }
    }

    /// The units that a planned change gives this worker, except those whose spare copy it already keeps.
    fn gained(&self, change: &PlannedChange) -> Vec<Unit> {
        let kept = |unit: Unit| {
            self.current
                .as_ref()
                .is_some_and(|c| c.kept.holder(unit).is_some())
        };
        change
            .gained
            .iter()
            .copied()
            .filter(|unit| !kept(*unit))
            .collect()
    }

    /// Whether the spare copies that this worker keeps of units that a planned change gives it are up to date. These units are not followed
    /// as well, since keeping their copies brings them to the same state.
    fn kept_of_gained_in_step(&self, change: &PlannedChange) -> bool {
        self.current.as_ref().is_none_or(|current| {
            let in_step: BTreeSet<Unit> = current.kept.in_step(self.at).collect();
            let mut kept = change
                .gained
                .iter()
                .filter(|unit| current.kept.holder(**unit).is_some());
            bug!(CaughtUpWithoutKeptCopy) || kept.all(|unit| in_step.contains(unit))
        })
    }

    /// Asks to follow the units that a planned change will give this worker, while the present plan trains.
    pub(super) fn follow_next(&mut self, now: Time, effects: &mut Vec<MemberEffect>) {
        let (me, retry) = (self.config.id, self.config.timing.fetch_retry);
        let trains = self.phase() == Phase::Running && !self.waiting.is_any();
        let Some(change) = self.change.as_ref().filter(|c| trains && c.plan.following) else {
            return;
        };
        let mut units = self.gained(change);
        units.retain(|unit| !self.adopting.contains_key(unit));
        let Some(change) = &mut self.change else { return };
        let generation = change.plan.generation;
        for unit in units {
            let mut sources = change.plan.sources_for(me, unit);
            sources.retain(|w| !change.asked.sends_damaged(*w));
            let connections = &mut change.connections;
            match change
                .asked
                .ask_peer(now, retry, unit, &sources, false, |w| connections.has(w))
            {
                Some(TransferAction::Dial(peer)) => connections.dial(peer, &change.plan, effects),
                Some(TransferAction::Fetch(to)) => {
                    let held = change.followed.at(unit);
                    effects.push(MemberEffect::Send {
                        generation,
                        to,
                        message: PeerMessage::Follow { unit, held },
                    });
                }
                None => {}
            }
        }
    }

    /// Handles state and gradients that arrive on the connections of a planned change, for the units that it will give this worker.
    pub(super) fn followed_arrival(
        &mut self,
        now: Time,
        input: MemberInput,
        effects: &mut Vec<MemberEffect>,
    ) {
        let trains = self.phase() == Phase::Running && !self.waiting.is_any();
        let Some(change) = self.change.as_mut().filter(|_| trains) else {
            return;
        };
        match input {
            MemberInput::FetchProgress { from, .. } => change.asked.progress(now, from),
            MemberInput::FetchFailed { from, unit, .. } if change.asked.asked_peer(unit) == Some(from) => {
                change.followed.lose(unit);
                change.asked.forget(unit);
                change.asked.note_damaged(from);
            }
            MemberInput::Fetched {
                from,
                unit,
                id,
                decision,
                ..
            } => {
                let older = change.followed.at(unit).is_some_and(|at| at >= id);
                if change.gained.contains(&unit) && !older {
                    change.followed.copied(unit, id);
                    change.asked.keep(now, from, unit);
                    self.learn(decision.filter(|d| d.id == id));
                    self.replace(unit, id);
                    effects.push(MemberEffect::Adopt { unit, id });
                }
                self.report_status_change(effects);
            }
            MemberInput::Gradient {
                from, unit, decision, ..
            } => {
                change.asked.progress(now, from);
                if change.followed.gradient(unit, &decision) == Arrived::Taken {
                    change.asked.keep(now, from, unit);
                    self.learn(Some(decision));
                    self.replace(unit, decision.id);
                    effects.push(MemberEffect::ApplyForwarded { unit, decision });
                }
                self.report_status_change(effects);
            }
            _ => {}
        }
    }

    /// A peer asks to follow a unit.
    pub(super) fn asked_to_follow(
        &mut self,
        now: Time,
        (generation, from): (Generation, WorkerId),
        unit: Unit,
        held: Option<StateId>,
        effects: &mut Vec<MemberEffect>,
    ) {
        if self.asked_by_keeper(generation, from, unit, held, effects) {
            return;
        }
        let me = self.config.id;
        if let Some(change) = self.change_to(generation) {
            let plan = &change.plan;
            let gives = plan.sources.get(unit.index()).is_some_and(|s| s.contains(&me));
            if plan.following && plan.has(from) && gives {
                change.followers.ask(from, unit, held.is_some());
            }
        }
        // After the switch the last gradient may still be on its way; then the whole state need not be sent after it.
        let current = self.current_in(generation);
        let brought = current.is_some_and(|c| held.is_some() && c.followers.is_sending(from, unit));
        if !brought {
            self.asked(now, (generation, from), unit, effects);
        }
    }

    /// Copies the state that was just committed for the followers.
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

    /// There was no memory for the copy of a unit.
    pub(super) fn not_copied(&mut self, generation: Generation, to: WorkerId, unit: Unit) {
        if let Some(change) = self.change_to(generation) {
            change.followers.not_copied(to, unit);
        } else if let Some(current) = self.current_in(generation) {
            current.keepers.not_copied(to, unit);
        }
    }

    /// Sends the gradients of the step that was just concluded to the followers. This precedes the optimizer, which scales them in place.
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

    /// A gradient was sent completely.
    pub(super) fn forwarded(&mut self, generation: Generation, to: WorkerId, unit: Unit) {
        if let Some(change) = self.change_to(generation) {
            change.followers.gradient_sent(to, unit);
        } else if let Some(current) = self.current_in(generation) {
            current.followers.gradient_sent(to, unit);
            current.keepers.gradient_sent(to, unit);
        }
    }

    /// Whether this is a copy for following rather than the base, which is the state that the plan's own switch leads to.
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
        self.report_status_change(effects);
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
        let here = self.current.as_mut().filter(|c| open && c.takes_gradients());
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
            self.report_status(effects);
            self.load(now, effects);
        } else {
            self.report_status_change(effects);
        }
    }

    /// Gradients of the followed unit are arriving from this peer, so no other one is asked for it meanwhile.
    fn keep_following(&mut self, now: Time, from: WorkerId, unit: Unit) {
        if let Some(transfers) = self.current.as_mut().and_then(super::InPlan::transfers) {
            Transfers::keep(transfers, now, from, unit);
        }
    }

    /// Takes a decision that came with state. Units come from several sources: the newest decision counts.
    fn learn(&mut self, decision: Option<Decision>) {
        let newer = |d: &Decision| self.holdings.decision.is_none_or(|known| d.id > known.id);
        if let Some(decision) = decision.filter(newer) {
            self.holdings.decision = Some(decision);
        }
    }
}
