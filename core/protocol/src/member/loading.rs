//! Entering a plan: connections, roll-forward, transfer of state, until everything is at the base.

use super::connections::Connections;
use super::holdings::same;
use super::in_plan::{InPlan, PlannedChange, Stage};
use super::transfers::TransferAction;
use super::{Member, MemberEffect};
use crate::message::{PeerMessage, Phase, Suspicion, Time};
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::{Base, Decision, Generation, Plan, StateId, Unit, WorkerId};

impl Member {
    /// Enters a plan that this worker has just accepted; the earlier one has already been left.
    pub(super) fn enter(
        &mut self,
        now: Time,
        plan: Arc<Plan>,
        base: Option<StateId>,
        effects: &mut Vec<MemberEffect>,
    ) {
        effects.push(MemberEffect::Accepted(plan.clone()));
        let connections = Connections::dialling(self.config.id, &plan, effects);
        let entered = InPlan::enter(now, self.config.id, plan, base, connections);
        self.begin_loading(now, entered, effects);
    }

    /// The switch of a planned change: the connections of the plan that is left stay open until Go.
    pub(super) fn switch(
        &mut self,
        now: Time,
        change: PlannedChange,
        base: StateId,
        effects: &mut Vec<MemberEffect>,
    ) {
        let mut change = change;
        change.serving.forget(|to, unit| change.followers.has(to, unit));
        let stage = if change.plan.has(self.config.id) {
            Stage::Loading(change.asked)
        } else {
            Stage::Source
        };
        let entered = InPlan {
            stage,
            serving: change.serving,
            followers: change.followers,
            followed: change.followed,
            left: Some(self.generation()),
            ..InPlan::enter(now, self.config.id, change.plan, Some(base), change.connections)
        };
        self.begin_loading(now, entered, effects);
    }

    fn begin_loading(&mut self, now: Time, entered: InPlan, effects: &mut Vec<MemberEffect>) {
        if bug!(FreeBeforeGo) {
            let mine = entered.plan.units(self.config.id);
            self.holdings.units.retain(|u, _| mine.contains(u));
            effects.push(MemberEffect::Free { keep: mine });
        }
        self.current = Some(entered);
        self.advanced_at = now;
        self.relay(effects);
        self.serve(effects);
        self.load(now, effects);
    }

    /// If links are bad, puts the units that are at the base into the store, so that peers without a link to this worker can load them
    /// there.
    pub(super) fn relay(&mut self, effects: &mut Vec<MemberEffect>) {
        if let Some(current) = self.current.as_ref().filter(|c| c.plan.relay) {
            let at_base = self.holdings.units_at(current.base);
            effects.extend(at_base.map(|(unit, id)| MemberEffect::SaveUnit { id, unit }));
        }
    }

    /// Asks for the units that are missing. The worker is Ready once none is.
    pub(super) fn load(&mut self, now: Time, effects: &mut Vec<MemberEffect>) {
        let me = self.config.id;
        let Some(current) = &self.current else { return };
        if current.phase() != Phase::Loading || !self.takes_state() || self.waiting.has_fence() {
            return self.begin_before_go(now, effects);
        }
        let lacking = current.lacking(me, &self.holdings);
        for unit in &lacking {
            if !self.adopting.contains_key(unit) {
                self.obtain(now, *unit, effects);
            }
        }
        let Some(current) = &mut self.current else { return };
        let connected = bug!(ReadyUnconnected) || current.is_connected(me);
        if lacking.is_empty() && current.base.is_some() && connected {
            current.stage = Stage::Ready;
            current.progress_at = now;
            self.report_status(effects);
        }
        self.begin_before_go(now, effects);
    }

    fn obtain(&mut self, now: Time, unit: Unit, effects: &mut Vec<MemberEffect>) {
        let me = self.config.id;
        let Some(current) = &mut self.current else { return };
        let retry = match current.awaits_parameters() {
            true => Duration::MAX,
            false => self.config.timing.fetch_retry,
        };
        let base = current.base;
        let sender = base.and_then(|base| current.plan.parameters_sender(me, unit, base.step));
        let (generation, follows) = (current.plan.generation, current.follows());
        let Stage::Loading(transfers) = &mut current.stage else {
            return;
        };
        let mut sources = current.plan.sources_for(self.config.id, unit);
        sources.retain(|w| !transfers.sends_damaged(*w));
        if let Base::Fixed { id, .. } = current.plan.base {
            if id == StateId::INITIAL {
                self.replace(unit, id);
                effects.push(MemberEffect::Load { generation, id, unit });
                return;
            }
            if (current.plan.relay || sources.is_empty()) && transfers.ask_store(now, retry, unit) {
                effects.push(MemberEffect::Load { generation, id, unit });
            }
        }
        let (based, connections) = (current.base.is_some(), &mut current.connections);
        // A source that sends parameters begins with that once it is asked: so it is asked first, whichever is connected first.
        let awaited = sender.filter(|w| !connections.has(*w) && sources.contains(w));
        if awaited.is_some() && transfers.asked_peer(unit).is_none() && !bug!(AskAnySourceFirst) {
            return;
        }
        match transfers.ask_peer(now, retry, unit, &sources, based, |w| connections.has(w)) {
            Some(TransferAction::Dial(peer)) => connections.dial(peer, &current.plan, effects),
            Some(TransferAction::Fetch(to)) => {
                let held = current.followed.at(unit);
                let message = if follows && !based {
                    PeerMessage::Follow { unit, held }
                } else {
                    PeerMessage::Fetch { unit }
                };
                effects.push(MemberEffect::Send {
                    generation,
                    to,
                    message,
                });
            }
            None => {}
        }
    }

    /// Bytes of a missing unit are arriving.
    pub(super) fn fetch_progress(&mut self, now: Time, generation: Generation, from: WorkerId, unit: Unit) {
        if !self.wants(unit) {
            return;
        }
        let me = self.config.id;
        let Some(current) = self.current_in(generation) else {
            return;
        };
        let Some(transfers) = current.transfers() else {
            return;
        };
        if from != me || transfers.asked_store(unit) {
            transfers.progress(now, from);
            current.progress_at = now;
        }
    }

    /// Whether the unit belongs to this worker's stage, is not at the base, and is not being taken over already.
    fn wants(&self, unit: Unit) -> bool {
        let current = self.current.as_ref();
        current.is_some_and(|c| c.lacking(self.config.id, &self.holdings).contains(&unit))
            && !self.adopting.contains_key(&unit)
    }

    pub(super) fn fetch_failed(
        &mut self,
        now: Time,
        from: WorkerId,
        unit: Unit,
        effects: &mut Vec<MemberEffect>,
    ) {
        if self.spare_damaged(now, (unit, from), effects) {
            return;
        }
        let me = self.config.id;
        let Some(current) = &mut self.current else { return };
        let sources = current.plan.sources_for(me, unit);
        current.followed.lose(unit);
        let Some(transfers) = current.transfers() else {
            return;
        };
        if from == me {
            // The store has no valid shard: this plan's base cannot be reached, so another plan is needed.
            self.suspect(from, Suspicion::Gone, effects);
        } else if transfers.asked_peer(unit) == Some(from) {
            transfers.forget(unit);
            transfers.note_damaged(from);
            // A source that repeatedly sends damaged state is not asked any more. If no other worker has it, another plan is needed.
            let mut others = sources.iter().filter(|w| !transfers.sends_damaged(**w));
            if others.next().is_none() {
                return self.suspect(from, Suspicion::Damaged, effects);
            }
            self.load(now, effects);
        }
    }

    pub(super) fn fetched(
        &mut self,
        now: Time,
        from: WorkerId,
        unit: Unit,
        (id, decision): (StateId, Option<Decision>),
        effects: &mut Vec<MemberEffect>,
    ) {
        if self.phase() == Phase::Running {
            return self.spare_copied(now, (unit, from), id, effects);
        }
        let fenced = self.waiting.has_fence() && !bug!(AdoptBeforeFence);
        let open = self.phase() == Phase::Loading && self.takes_state() && !fenced;
        if open && self.is_copy(id, decision) {
            return self.copied(now, from, unit, (id, decision), effects);
        }
        if !open || !self.wants(unit) {
            return;
        }
        let Some(current) = &mut self.current else { return };
        // a joiner learns the base of a switch from its first source; the store was not asked for it
        let first = current.base.is_none();
        if first && from == self.config.id && !bug!(LearnBaseFromStore) {
            return;
        }
        let base = *current.base.get_or_insert(id);
        if bug!(AdoptAnyState) || same(base, id) {
            current.progress_at = now;
            if !bug!(DecisionDoesNotTravel) && decision.is_some_and(|d| d.id == id) {
                self.holdings.decision = decision;
            }
            if !bug!(FollowOnFromBase) {
                current.followed.lose(unit);
            }
            self.replace(unit, id);
            effects.push(MemberEffect::Adopt { unit, id });
        }
        if first {
            self.report_status(effects);
        }
    }

    /// The engine is about to overwrite the unit.
    pub(super) fn replace(&mut self, unit: Unit, id: StateId) {
        let begun = self.current.as_ref().is_some_and(|c| c.first_step.has_begun());
        match begun && !bug!(ForgetGradientOfFirstStep) {
            true => self.holdings.forget_state(unit),
            false => self.holdings.forget(unit),
        }
        if let Some(transfers) = self.current.as_mut().and_then(InPlan::transfers) {
            transfers.forget(unit);
        }
        self.adopting.insert(unit, id);
    }

    pub(super) fn on_loaded(&mut self, now: Time, unit: Unit, id: StateId, effects: &mut Vec<MemberEffect>) {
        if let Some(current) = &mut self.current {
            current.followed.done(unit);
            current.kept.done(unit);
        }
        if let Some(change) = &mut self.change {
            change.followed.done(unit);
        }
        if self.adopting.get(&unit) != Some(&id) {
            return;
        }
        self.adopting.remove(&unit);
        let base = self.current.as_ref().and_then(|c| c.base);
        let known = base.filter(|b| same(*b, id)).unwrap_or(id);
        self.holdings.units.insert(unit, known);
        self.note_progress(now);
        self.settle(now, effects);
        let rolled = self
            .current
            .as_ref()
            .is_some_and(|c| c.phase() != Phase::Running && !c.plan.units(self.config.id).contains(&unit));
        if rolled {
            self.relay(effects); // a spare copy that has finished a step is at the base now
        }
        self.serve(effects);
        self.load(now, effects);
    }

    /// Notes that a peer asks for a unit. It is answered at the base, before Go, on a connection of that generation.
    pub(super) fn asked(
        &mut self,
        now: Time,
        (generation, from): (Generation, WorkerId),
        unit: Unit,
        effects: &mut Vec<MemberEffect>,
    ) {
        let me = self.config.id;
        let present = self
            .current
            .iter_mut()
            .map(|c| (&c.plan, &mut c.serving, &mut c.connections));
        let next = self
            .change
            .iter_mut()
            .map(|c| (&c.plan, &mut c.serving, &mut c.connections));
        let mut plans = present.chain(next);
        let Some((plan, serving, connections)) = plans.find(|(plan, ..)| plan.generation == generation)
        else {
            return;
        };
        let sources = plan.sources.get(unit.index());
        if plan.has(from) && sources.is_some_and(|s| s.contains(&me)) {
            connections.dial(from, plan, effects);
            serving.ask(from, unit);
            self.serve(effects);
            self.begin_before_go(now, effects);
        }
    }

    /// Answers the requests that can be answered.
    pub(super) fn serve(&mut self, effects: &mut Vec<MemberEffect>) {
        let Some(current) = &mut self.current else { return };
        let running = matches!(current.stage, Stage::Running) && !bug!(ServeWhileRunning);
        if running || current.base.is_none() {
            return;
        }
        let generation = current.generation();
        let (peers, base, holdings) = (&current.connections, current.base, &self.holdings);
        let can = |to: WorkerId, unit: Unit| {
            let held =
                holdings.is_at(unit, base) || (bug!(ServeAnyState) && holdings.units.contains_key(&unit));
            peers.has(to) && held
        };
        for (to, unit) in current.serving.next(current.plan.parameters_first, can) {
            if let Some(id) = holdings.units.get(&unit).copied() {
                effects.push(MemberEffect::Serve {
                    generation,
                    to,
                    unit,
                    id,
                    decision: holdings.decision,
                });
            }
        }
    }

    /// A unit was sent completely: the next one may be sent.
    pub(super) fn served(
        &mut self,
        now: Time,
        generation: Generation,
        to: WorkerId,
        unit: Unit,
        effects: &mut Vec<MemberEffect>,
    ) {
        if let Some(change) = self.change_to(generation) {
            change.followers.copy_sent(to, unit);
        } else if let Some(current) = self.current_in(generation) {
            current.serving.sent(to, unit);
            current.keepers.copy_sent(to, unit);
            self.serve(effects);
            self.begin_before_go(now, effects);
        }
    }
}
