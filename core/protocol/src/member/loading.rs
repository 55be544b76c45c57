//! Entering a plan: connections, roll-forward, transfer of state, until everything is at the base.

use super::{Engine, Fetch, Member, MemberEffect};
use crate::message::{PeerMessage, Phase, Time};
use std::collections::BTreeSet;
use std::sync::Arc;
use varuna_plan::{Base, Decision, Generation, Plan, StateId, Unit, WorkerId};

impl Member {
    /// Takes up a plan that this worker has just accepted; an earlier one has been left.
    pub(super) fn enter(
        &mut self,
        now: Time,
        plan: Arc<Plan>,
        base: Option<StateId>,
        effects: &mut Vec<MemberEffect>,
    ) {
        effects.push(MemberEffect::Accepted(plan.clone()));
        self.dial(&plan, effects);
        self.settle_into(now, plan, base, effects);
    }

    /// The switch of a planned change: the connections of the plan that is left stay open until Go.
    pub(super) fn switch(
        &mut self,
        now: Time,
        next: Arc<Plan>,
        base: StateId,
        effects: &mut Vec<MemberEffect>,
    ) {
        let left = self.generation();
        let peers = std::mem::take(&mut self.next_peers);
        self.forget_plan();
        self.previous = Some(left);
        self.peers = peers;
        self.settle_into(now, next, Some(base), effects);
    }

    fn settle_into(
        &mut self,
        now: Time,
        plan: Arc<Plan>,
        base: Option<StateId>,
        effects: &mut Vec<MemberEffect>,
    ) {
        let me = self.config.id;
        self.phase = if plan.has(me) {
            Phase::Loading
        } else {
            Phase::Source
        };
        self.base = base;
        self.progress_at = now;
        // targets of the same unit begin with different sources
        self.turn = plan.members().iter().position(|w| *w == me).unwrap_or(0);
        if bug!(FreeBeforeGo) {
            let mine = plan.units(me);
            self.held.retain(|u, _| mine.contains(u));
            effects.push(MemberEffect::Free { keep: mine });
        }
        self.plan = Some(plan);
        self.relay(effects);
        self.serve(effects);
        self.load(now, effects);
    }

    /// Those that state or gradients may have to travel to or from.
    fn dialled(&self, plan: &Plan) -> BTreeSet<WorkerId> {
        let me = self.config.id;
        let mut peers: BTreeSet<WorkerId> = plan.members().into_iter().collect();
        if plan.has(me) {
            peers.extend(plan.sources.iter().flatten());
        }
        peers.remove(&me);
        peers
    }

    pub(super) fn dial(&self, plan: &Plan, effects: &mut Vec<MemberEffect>) {
        for peer in self.dialled(plan) {
            if let Some(address) = plan.addresses.get(&peer) {
                let address = address.clone();
                effects.push(MemberEffect::Connect {
                    generation: plan.generation,
                    peer,
                    address,
                });
            }
        }
    }

    pub(super) fn connected(
        &mut self,
        now: Time,
        generation: Generation,
        peer: WorkerId,
        effects: &mut Vec<MemberEffect>,
    ) {
        if self.next.as_ref().is_some_and(|p| p.generation == generation) {
            if self.next_peers.insert(peer) {
                self.tell(effects);
            }
        } else if self.plan.is_some() && generation == self.generation() && self.peers.insert(peer) {
            self.serve(effects);
            self.load(now, effects);
            self.tell(effects);
        }
    }

    pub(super) fn closed(&mut self, generation: Generation, peer: WorkerId, effects: &mut Vec<MemberEffect>) {
        if self.next.as_ref().is_some_and(|p| p.generation == generation) {
            if self.next_peers.remove(&peer) {
                self.tell(effects);
            }
            return;
        }
        let Some(plan) = &self.plan else { return };
        if plan.generation != generation {
            return;
        }
        self.peers.remove(&peer);
        // a source may leave as soon as Go is given, which it may hear before this worker does
        let needed = match self.phase {
            Phase::Running => plan.has(peer) && !self.finished(),
            Phase::Ready => plan.has(peer),
            Phase::Loading => plan.involves(peer),
            Phase::Idle | Phase::Source => false,
        };
        if needed && !bug!(IgnoreClosedPeer) {
            self.suspect(peer, false, effects);
        }
    }

    /// Where links are bad the store is the way round.
    pub(super) fn relay(&mut self, effects: &mut Vec<MemberEffect>) {
        if !self.plan.as_ref().is_some_and(|p| p.relay) {
            return;
        }
        let at_base = self.held.iter().filter(|(_, id)| Some(**id) == self.base);
        effects.extend(at_base.map(|(unit, id)| MemberEffect::Put { id: *id, unit: *unit }));
    }

    fn has_at_base(&self, unit: Unit) -> bool {
        let held = self.held.get(&unit);
        held.is_some_and(|id| self.base.is_some_and(|base| self.same(*id, base)))
    }

    /// Asks for what is lacking; Ready once nothing is.
    pub(super) fn load(&mut self, now: Time, effects: &mut Vec<MemberEffect>) {
        let Some(plan) = self.plan.clone() else { return };
        if self.phase != Phase::Loading || self.engine != Engine::Idle || self.pending_fence.is_some() {
            return;
        }
        let units = plan.units(self.config.id);
        let lacking: Vec<Unit> = units.into_iter().filter(|u| !self.has_at_base(*u)).collect();
        for unit in &lacking {
            if !self.adopting.contains_key(unit) {
                self.obtain(now, &plan, *unit, effects);
            }
        }
        if lacking.is_empty()
            && self.base.is_some()
            && (bug!(ReadyUnconnected) || self.met(Some(&plan), &self.peers))
        {
            self.phase = Phase::Ready;
            self.progress_at = now;
            self.tell(effects);
        }
    }

    fn obtain(&mut self, now: Time, plan: &Plan, unit: Unit, effects: &mut Vec<MemberEffect>) {
        let retry = self.config.timing.fetch_retry;
        let sources = self.sources(plan, unit);
        if let Base::Fixed { id, .. } = plan.base {
            if id == StateId::INITIAL {
                self.replace(unit, id);
                effects.push(MemberEffect::Load { id, unit });
                return;
            }
            let due = self
                .shards_asked
                .get(&unit)
                .is_none_or(|at| now >= at.after(retry));
            if (plan.relay || sources.is_empty()) && due {
                self.shards_asked.insert(unit, now);
                effects.push(MemberEffect::Load { id, unit });
            }
        }
        let present = self.fetches.get(&unit).copied();
        if present.is_some_and(|f| now < f.asked_at.after(retry)) {
            return;
        }
        let open: Vec<WorkerId> = sources.into_iter().filter(|w| self.peers.contains(w)).collect();
        let from = match present {
            // before the switch nobody can answer; asking others too would bring the unit several times
            Some(fetch) if self.base.is_none() && open.contains(&fetch.from) => fetch.from,
            _ if open.is_empty() => return,
            _ => {
                self.turn += 1;
                open[self.turn % open.len()]
            }
        };
        self.fetches.insert(unit, Fetch { from, asked_at: now });
        let message = PeerMessage::Fetch { unit };
        effects.push(MemberEffect::Send {
            generation: plan.generation,
            to: from,
            message,
        });
    }

    fn sources(&self, plan: &Plan, unit: Unit) -> Vec<WorkerId> {
        let listed = plan.sources.get(unit.index()).map_or(&[][..], Vec::as_slice);
        listed.iter().copied().filter(|w| *w != self.config.id).collect()
    }

    /// The source of the first unit that is lacking.
    pub(super) fn lacking_from(&self, plan: &Plan) -> Option<WorkerId> {
        let unit = plan
            .units(self.config.id)
            .into_iter()
            .find(|u| !self.has_at_base(*u))?;
        let asked = self.fetches.get(&unit).map(|f| f.from);
        asked.or_else(|| self.sources(plan, unit).first().copied())
    }

    /// Bytes of a unit that is lacking are arriving. The other units asked of the same worker queue behind it on one
    /// connection: they are on their way too, and must not be asked for again meanwhile.
    pub(super) fn fetch_progress(&mut self, now: Time, generation: Generation, from: WorkerId, unit: Unit) {
        if generation != self.generation() || self.phase != Phase::Loading || !self.wants(unit) {
            return;
        }
        if from == self.config.id && !self.shards_asked.contains_key(&unit) {
            return;
        }
        self.progress_at = now;
        for fetch in self.fetches.values_mut().filter(|f| f.from == from) {
            fetch.asked_at = now;
        }
    }

    /// The unit belongs to this worker's stage, is not at the base and is not being taken over.
    fn wants(&self, unit: Unit) -> bool {
        let plan = self.plan.as_ref();
        plan.is_some_and(|p| p.units(self.config.id).contains(&unit))
            && !self.has_at_base(unit)
            && !self.adopting.contains_key(&unit)
    }

    pub(super) fn fetch_failed(
        &mut self,
        now: Time,
        from: WorkerId,
        unit: Unit,
        effects: &mut Vec<MemberEffect>,
    ) {
        if from == self.config.id && self.phase == Phase::Loading {
            // The store has no sound shard: there is no way to this plan's base, another one must be found.
            self.suspect(from, false, effects);
        } else if self.fetches.get(&unit).is_some_and(|f| f.from == from) {
            self.fetches.remove(&unit);
            self.load(now, effects);
        }
    }

    pub(super) fn fetched(
        &mut self,
        now: Time,
        unit: Unit,
        id: StateId,
        decision: Option<Decision>,
        effects: &mut Vec<MemberEffect>,
    ) {
        if self.phase != Phase::Loading
            || self.engine != Engine::Idle
            || (self.pending_fence.is_some() && !bug!(AdoptBeforeFence))
            || !self.wants(unit)
        {
            return;
        }
        // a joiner learns the base of a switch from its first source
        let first = self.base.is_none();
        let base = *self.base.get_or_insert(id);
        if bug!(AdoptAnyState) || self.same(base, id) {
            if !bug!(DecisionDoesNotTravel) && decision.is_some_and(|d| d.id == id) {
                self.decision = decision;
            }
            self.replace(unit, id);
            self.progress_at = now;
            effects.push(MemberEffect::Adopt { unit, id });
        }
        if first {
            self.tell(effects);
        }
    }

    /// The engine is about to overwrite the unit.
    fn replace(&mut self, unit: Unit, id: StateId) {
        if !bug!(KeepReplacedState) {
            self.held.remove(&unit);
        }
        self.prepared.remove(&unit);
        self.fetches.remove(&unit);
        self.adopting.insert(unit, id);
    }

    pub(super) fn on_loaded(&mut self, now: Time, unit: Unit, id: StateId, effects: &mut Vec<MemberEffect>) {
        if self.adopting.get(&unit) != Some(&id) {
            return;
        }
        self.adopting.remove(&unit);
        let known = self.base.filter(|b| self.same(*b, id)).unwrap_or(id);
        self.held.insert(unit, known);
        self.progress_at = now;
        self.settle(now, effects);
        self.serve(effects);
        self.load(now, effects);
    }

    /// Remembers who wants a unit; it is answered at the base, before Go, on a connection of that generation.
    pub(super) fn asked(
        &mut self,
        generation: Generation,
        from: WorkerId,
        unit: Unit,
        effects: &mut Vec<MemberEffect>,
    ) {
        let plans = [&self.plan, &self.next];
        let plan = plans.into_iter().flatten().find(|p| p.generation == generation);
        let listed = |p: &Plan| {
            p.sources
                .get(unit.index())
                .is_some_and(|s| s.contains(&self.config.id))
        };
        if plan.is_some_and(|p| p.has(from) && listed(p)) {
            self.asks.insert((generation, from, unit));
            self.serve(effects);
        }
    }

    /// Answers the asks that can be answered.
    pub(super) fn serve(&mut self, effects: &mut Vec<MemberEffect>) {
        if self.plan.is_none()
            || (self.phase == Phase::Running && !bug!(ServeWhileRunning))
            || self.base.is_none()
        {
            return;
        }
        let here = self.generation();
        let ready = |(g, to, unit): &&(Generation, WorkerId, Unit)| {
            *g == here && self.peers.contains(to) && (bug!(ServeAnyState) || self.has_at_base(*unit))
        };
        let served: Vec<(Generation, WorkerId, Unit)> = self.asks.iter().filter(ready).copied().collect();
        for ask in served {
            self.asks.remove(&ask);
            let (generation, to, unit) = ask;
            if let Some(id) = self.held.get(&unit).copied() {
                effects.push(MemberEffect::Serve {
                    generation,
                    to,
                    unit,
                    id,
                    decision: self.decision,
                });
            }
        }
    }
}
