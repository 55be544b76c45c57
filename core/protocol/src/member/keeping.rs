//! Spare copies (ADR 27), on both sides: the only holder of a unit sends its gradient to the unit's keeper as soon as it has run a step,
//! and the keeper reports that it is prepared only once it has the gradient. So a step is committed only if the keeper can finish it.

use super::followed::Arrived;
use super::in_plan::Stage;
use super::kept::Kept;
use super::{Engine, Member, MemberEffect};
use crate::message::{Keeping, PeerMessage, Phase, Prepared, Time};
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, Generation, StateId, Step, Unit, WorkerId};

impl Member {
    /// Units whose spare copy on this worker is up to date: losing their holder would lose no committed step.
    #[must_use]
    pub fn spare_units_in_step(&self) -> Vec<Unit> {
        let running = self.current.as_ref().filter(|c| c.phase() == Phase::Running);
        running.map_or_else(Vec::new, |c| c.kept.in_step(self.at).collect())
    }

    /// The part of the status that is about these copies.
    pub(super) fn keeping(&self) -> Keeping {
        let running = self.current.as_ref().filter(|c| c.phase() == Phase::Running);
        match running {
            _ if !self.config.follows => Keeping::Unable,
            Some(current) if current.kept.all_in_step(self.at) => Keeping::InStep,
            _ => Keeping::Able,
        }
    }

    /// How many times a spare copy was given up under the present plan, because a gradient was late, damaged or missing.
    #[must_use]
    pub fn spare_copies_given_up(&self) -> u32 {
        self.current.as_ref().map_or(0, |c| c.kept.given_up())
    }

    /// The spare copies that stay at Go: those that are at the base.
    pub(super) fn spares_at_base(&self) -> Vec<Unit> {
        let Some(current) = self.current.as_ref().filter(|_| self.config.follows) else {
            return Vec::new();
        };
        let kept = current.plan.kept_by(self.config.id).into_iter();
        kept.map(|(unit, _)| unit)
            .filter(|u| self.holdings.is_at(*u, current.base))
            .collect()
    }

    /// The plan has started: asks for the copies that this worker is to keep.
    pub(super) fn begin_keeping(&mut self, now: Time, effects: &mut Vec<MemberEffect>) {
        let me = self.config.id;
        if let Some(current) = self.current.as_mut().filter(|_| self.config.follows) {
            let held = |unit: Unit| self.holdings.units.get(&unit).copied();
            current.kept = Kept::under(&current.plan, me, held);
        }
        self.ask_for_copies(now, effects);
    }

    /// Asks for copies at intervals, and gives up copies that a step has waited for too long.
    pub(super) fn keep(&mut self, now: Time, effects: &mut Vec<MemberEffect>) {
        let Some(current) = &self.current else { return };
        let late = current.kept.wait_until.is_some_and(|until| now > until);
        if late && !bug!(WaitForGradientForEver) {
            for unit in self.awaited() {
                self.lose_copy(now, unit);
            }
            self.pass_on(effects);
        }
        self.ask_for_copies(now, effects);
    }

    fn ask_for_copies(&mut self, now: Time, effects: &mut Vec<MemberEffect>) {
        let (retry, at) = (self.config.timing.fetch_retry, self.at);
        let open = !self.waiting.is_any();
        let running = self
            .current
            .as_mut()
            .filter(|c| open && c.phase() == Phase::Running);
        let Some(current) = running else { return };
        let generation = current.generation();
        for (to, unit, held) in current.kept.asks(now, retry, at) {
            effects.push(MemberEffect::Send {
                generation,
                to,
                message: PeerMessage::Follow { unit, held },
            });
        }
    }

    /// A keeper asks for a copy. False if the worker that asks is no keeper.
    pub(super) fn asked_by_keeper(
        &mut self,
        generation: Generation,
        from: WorkerId,
        unit: Unit,
        held: Option<StateId>,
        effects: &mut Vec<MemberEffect>,
    ) -> bool {
        let (me, at, follows) = (self.config.id, self.at, self.config.follows);
        let computes = matches!(self.engine, Engine::Running { .. });
        // A step that was run before Go can be over before the first keeper asks.
        let idle = self.engine == Engine::Idle && !bug!(KeepersMissFirstStep);
        let reduced = self.holdings.prepared.get(&unit).copied();
        let reduced = reduced.filter(|p| idle && (p.run_gen, p.step) == (generation, at.step));
        let Some(current) = self.current_in(generation).filter(|_| follows) else {
            return false;
        };
        let plan = &current.plan;
        if plan.keeper(unit) != Some(from) || plan.owner(unit) != Some(me) {
            return false;
        }
        let running = matches!(current.stage, Stage::Running);
        // If the keeper has the state that this step begins with, and the step's gradient is still to come, it is missing nothing.
        let begins_with = match current.stage {
            Stage::Running => Some(at).filter(|_| computes),
            Stage::Loading(_) | Stage::Ready => current.base,
            Stage::Source => None,
        };
        if held.is_some() && held == begins_with {
            current.keepers.admit(from, unit);
        } else if let Some(prepared) = reduced.filter(|_| running && held == Some(at)) {
            if current.keepers.admit_late(from, unit) {
                effects.push(MemberEffect::ForwardPrepared {
                    generation,
                    to: from,
                    unit,
                    prepared,
                });
            }
        } else {
            current.keepers.ask(from, unit, held.is_some());
        }
        true
    }

    /// Sends the gradients of the step that was just run to the keepers. This precedes the norms: a worker that commits may rely on the
    /// gradients having been sent.
    pub(super) fn forward_prepared(
        &mut self,
        generation: Generation,
        step: Step,
        units: &[(Unit, UnitNorm)],
        effects: &mut Vec<MemberEffect>,
    ) {
        let Some(current) = &mut self.current else { return };
        for (to, unit) in current.keepers.next_gradients() {
            let norm = units.iter().find(|(u, _)| *u == unit);
            let prepared = |norm: UnitNorm| Prepared {
                run_gen: generation,
                step,
                norm,
            };
            effects.extend(norm.map(|(_, norm)| MemberEffect::ForwardPrepared {
                generation,
                to,
                unit,
                prepared: prepared(*norm),
            }));
        }
    }

    /// Copies the state that was just committed for keepers that need it.
    pub(super) fn copy_for_keepers(&mut self, effects: &mut Vec<MemberEffect>) {
        let (at, decision) = (self.at, self.holdings.decision);
        let running = self.current.as_mut().filter(|c| c.phase() == Phase::Running);
        let Some(current) = running else { return };
        let (peers, holdings, generation) = (&current.connections, &self.holdings, current.plan.generation);
        let can = |to: WorkerId, unit: Unit| peers.has(to) && holdings.is_at(unit, Some(at));
        for (to, unit) in current.keepers.next_copies(can) {
            effects.push(MemberEffect::Copy {
                generation,
                to,
                unit,
                id: at,
                decision,
            });
        }
    }

    /// The kept units that are up to date but whose gradient of the present step is missing: the commit waits for these.
    fn awaited(&self) -> Vec<Unit> {
        let Some(current) = &self.current else {
            return Vec::new();
        };
        let lacking = |unit: &Unit| !self.holdings.waiting.contains_key(unit);
        current.kept.in_step(self.at).filter(lacking).collect()
    }

    /// Whether this worker may report that it is prepared, as far as its spare copies are concerned.
    pub(super) fn can_finish_for_others(&self) -> bool {
        bug!(CommitBeforeKeeperCanFinish) || self.awaited().is_empty()
    }

    /// A step was run on this worker: from now on it waits for gradients of spare copies, for as long as the step took, since stages finish
    /// a step one after the other and each takes only a part of it. So a step takes at most twice as long, which is within its deadline of
    /// four times the observed time.
    pub(super) fn wait_for_gradients(&mut self, now: Time) {
        if let Some(current) = &mut self.current {
            let took = now.since(current.step_began_at);
            current.kept.wait_until = Some(now.after(self.config.timing.spare_wait.max(took)));
        }
    }

    /// The next step begins. Its wait starts only after it was run here, so no gradient counts as late before that, however long the step
    /// takes.
    pub(super) fn wait_is_over(&mut self) {
        if let Some(current) = &mut self.current {
            current.kept.wait_until = None;
        }
    }

    /// The gradient of a step has arrived from a unit's only holder.
    pub(super) fn gradient_before_decision(
        &mut self,
        now: Time,
        (unit, from): (Unit, WorkerId),
        prepared: Prepared,
        effects: &mut Vec<MemberEffect>,
    ) {
        let (waiting, retry) = (self.holdings.waiting_for(unit), self.config.timing.fetch_retry);
        let running = self.current.as_mut().filter(|c| c.phase() == Phase::Running);
        let Some(current) = running else { return };
        let step = prepared.step;
        match current.kept.gradient((now, retry), (unit, from), step, waiting) {
            Arrived::Taken => {
                self.holdings.waiting.entry(unit).or_default().push_back(prepared);
                effects.push(MemberEffect::KeepGradient { unit, step });
                self.bring_up_spares(effects);
            }
            Arrived::Gap => self.lose_copy(now, unit),
            Arrived::Old => return,
        }
        self.pass_on(effects);
    }

    /// Applies the gradients whose decisions are now known on this worker.
    pub(super) fn bring_up_spares(&mut self, effects: &mut Vec<MemberEffect>) {
        let Some(current) = self.current.as_mut().filter(|_| !self.waiting.is_any()) else {
            return;
        };
        for (unit, mut at) in current.kept.states() {
            while let Some(decision) = self.history.from(at)
                && self.holdings.take_gradient(unit, &decision)
            {
                at = decision.id;
                current.kept.leads_to(unit, at);
                self.adopting.insert(unit, at);
                effects.push(MemberEffect::ApplyForwarded { unit, decision });
            }
        }
    }

    /// Finishes a step for the units of which this worker only keeps a spare copy.
    pub(super) fn roll_spares_forward(&mut self, decision: Decision, effects: &mut Vec<MemberEffect>) {
        let units: Vec<Unit> = self.holdings.waiting.keys().copied().collect();
        for unit in units {
            let parent = self.holdings.is_at(unit, Some(decision.parent));
            if parent && self.holdings.take_gradient(unit, &decision) {
                self.adopting.insert(unit, decision.id);
                effects.push(MemberEffect::ApplyForwarded { unit, decision });
            }
        }
    }

    /// A copy of a unit has arrived while this worker trains.
    pub(super) fn spare_copied(
        &mut self,
        now: Time,
        (unit, from): (Unit, WorkerId),
        id: StateId,
        effects: &mut Vec<MemberEffect>,
    ) {
        let (waiting, open) = (self.holdings.waiting_for(unit), !self.waiting.is_any());
        let clock = (now, self.config.timing.fetch_retry);
        let Some(current) = self.current.as_mut().filter(|_| open) else {
            return;
        };
        if current.kept.copied(clock, (unit, from), id, waiting) {
            self.replace(unit, id);
            effects.push(MemberEffect::Adopt { unit, id });
        }
    }

    /// Data of a unit arrived damaged. False if this worker keeps no copy of the unit from that peer.
    pub(super) fn spare_damaged(
        &mut self,
        now: Time,
        (unit, from): (Unit, WorkerId),
        effects: &mut Vec<MemberEffect>,
    ) -> bool {
        let running = self.current.as_ref().filter(|c| c.phase() == Phase::Running);
        let kept = running.is_some_and(|c| c.kept.holder(unit) == Some(from));
        if kept {
            self.lose_copy(now, unit);
            self.pass_on(effects);
        }
        kept
    }

    /// Gives up the copy: it is no longer updated, and steps do not wait for it. What is held stays, at its present state.
    fn lose_copy(&mut self, now: Time, unit: Unit) {
        self.holdings.waiting.remove(&unit);
        if let Some(current) = &mut self.current {
            current.kept.lose(now, self.config.timing.fetch_retry, unit);
        }
    }
}
