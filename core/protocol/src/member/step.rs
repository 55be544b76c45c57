//! A step: run, prepared, the norm exchange, apply, commit.

use super::{Engine, HISTORY, Member, MemberEffect};
use crate::message::{Norms, PeerMessage, Phase, Prepared, Ran, Report, Time};
use std::collections::BTreeMap;
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, Generation, Plan, StateId, Step, Unit, WorkerId};

impl Member {
    pub(super) fn run(&mut self, effects: &mut Vec<MemberEffect>) {
        let Some(plan) = self.plan.clone() else { return };
        if self.phase == Phase::Running && !self.finished() && self.engine == Engine::Idle {
            let step = self.at.step;
            self.engine = Engine::Running {
                generation: plan.generation,
                step,
            };
            effects.push(MemberEffect::Run { plan, step });
        }
    }

    pub(super) fn on_prepared(
        &mut self,
        now: Time,
        generation: Generation,
        step: Step,
        units: &[(Unit, UnitNorm)],
        effects: &mut Vec<MemberEffect>,
    ) {
        // an engine that is being stopped says the same again with Stopped
        if self.engine != (Engine::Running { generation, step }) {
            return;
        }
        let Some(plan) = self.plan.clone() else { return };
        self.engine = Engine::Idle;
        self.note_prepared(generation, step, units);
        self.ran = Some(Ran {
            generation,
            step,
            norm_put_in: !bug!(NormNotNoted),
        });
        let me = self.config.id;
        let owned: Vec<(Unit, UnitNorm)> = units
            .iter()
            .copied()
            .filter(|(u, _)| plan.holders(*u).first() == Some(&me))
            .collect();
        let norms = Norms {
            step,
            owned,
            armed: self.armed,
            save: self.save_after.is_some_and(|after| self.put_at <= after),
        };
        for to in plan.members().into_iter().filter(|w| *w != me) {
            let message = PeerMessage::Norm(norms.clone());
            effects.push(MemberEffect::Send {
                generation,
                to,
                message,
            });
        }
        self.norms.insert((step, me), norms);
        self.conclude(now, effects);
    }

    fn note_prepared(&mut self, run_gen: Generation, step: Step, units: &[(Unit, UnitNorm)]) {
        self.prepared = units
            .iter()
            .map(|(u, norm)| {
                (
                    *u,
                    Prepared {
                        run_gen,
                        step,
                        norm: *norm,
                    },
                )
            })
            .collect();
    }

    pub(super) fn peer(
        &mut self,
        now: Time,
        generation: Generation,
        from: WorkerId,
        message: PeerMessage,
        effects: &mut Vec<MemberEffect>,
    ) {
        match message {
            PeerMessage::Fetch { unit } => self.asked(generation, from, unit, effects),
            PeerMessage::Norm(norms) => {
                let Some(plan) = self.plan.as_ref() else { return };
                let lax = bug!(SkipFenceCheck) && self.phase == Phase::Running;
                if (plan.generation != generation && !lax) || (!bug!(NormOfStranger) && !plan.has(from)) {
                    return;
                }
                // peers run at most one step ahead
                let here = if self.phase == Phase::Running {
                    Some(self.at)
                } else {
                    self.base
                };
                let near = |at: StateId| norms.step == at.step || norms.step == at.step.next();
                if bug!(NormOfAnyStep) || here.is_some_and(near) {
                    self.norms.insert((norms.step, from), norms);
                    self.conclude(now, effects);
                }
            }
        }
    }

    /// Once everyone's norms are in, everyone was prepared: the step is decided.
    fn conclude(&mut self, _now: Time, effects: &mut Vec<MemberEffect>) {
        let Some(plan) = self.plan.clone() else { return };
        let (generation, step) = (plan.generation, self.at.step);
        let put_in = self.ran
            == Some(Ran {
                generation,
                step,
                norm_put_in: true,
            });
        if self.phase != Phase::Running || self.engine != Engine::Idle || !put_in {
            return;
        }
        let Some(decision) = self.decide(&plan) else {
            return;
        };
        let units: Vec<Unit> = self.prepared.keys().copied().collect();
        effects.push(MemberEffect::Apply {
            decision,
            units: units.clone(),
        });
        self.engine = Engine::Applying {
            decision,
            units,
            commit: true,
        };
    }

    /// The sum of all parts in unit order. None while a norm is missing (or where the parts do not add up to the model, which
    /// only a broken peer can cause: the plan's deadline then ends the generation).
    fn decide(&self, plan: &Plan) -> Option<Decision> {
        let members = plan.members();
        let said: Option<Vec<&Norms>> = members
            .iter()
            .map(|w| self.norms.get(&(self.at.step, *w)))
            .collect();
        let said = if bug!(CommitWithoutAllNorms) {
            members
                .iter()
                .filter_map(|w| self.norms.get(&(self.at.step, *w)))
                .collect()
        } else {
            said?
        };
        let parts: BTreeMap<Unit, UnitNorm> = said.iter().flat_map(|n| n.owned.iter().copied()).collect();
        if !bug!(CommitWithoutAllUnits) && !parts.keys().copied().eq(plan.layout.all_units()) {
            return None;
        }
        let armed = said.first().map_or(Generation(0), |n| n.armed);
        let agreed =
            armed != Generation(0) && (bug!(SwitchIfOneIsArmed) || said.iter().all(|n| n.armed == armed));
        let mut switch = agreed.then_some(armed);
        if bug!(SwitchAlone) {
            switch = (self.armed != Generation(0)).then_some(self.armed);
        }
        let parts: Vec<UnitNorm> = parts.into_values().collect();
        Some(Decision::conclude(self.at, plan.generation, &parts, switch))
    }

    pub(super) fn on_applied(&mut self, now: Time, id: StateId, effects: &mut Vec<MemberEffect>) {
        let Engine::Applying {
            decision,
            units,
            commit,
        } = &self.engine
        else {
            return;
        };
        if decision.id != id {
            return;
        }
        let (decision, commit) = (*decision, *commit);
        for unit in units.clone() {
            self.held.insert(unit, decision.id);
            self.prepared.remove(&unit);
        }
        self.engine = Engine::Idle;
        if !bug!(ForgetOwnDecision) {
            self.decision = Some(decision);
        }
        self.progress_at = now;
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(decision);
        effects.push(MemberEffect::Report(Report::Committed { decision }));
        if commit {
            self.committed(now, decision, effects);
        } else {
            self.settle(now, effects);
            self.relay(effects);
            self.serve(effects);
            self.load(now, effects);
        }
    }

    fn committed(&mut self, now: Time, decision: Decision, effects: &mut Vec<MemberEffect>) {
        let generation = self.generation();
        self.at = decision.id;
        self.ran = Some(Ran {
            generation,
            step: decision.id.step,
            norm_put_in: false,
        });
        if !bug!(KeepGradientsAfterCommit) {
            self.prepared.clear();
        }
        let parent = decision.parent.step;
        let wanted = self.norms.iter().any(|((step, _), n)| *step == parent && n.save);
        self.norms.retain(|(step, _), _| *step > parent);
        let due = |n: u64| wanted || decision.id.step.0.is_multiple_of(n.max(1)) || self.finished();
        if self.config.checkpoint_every.is_some_and(due) {
            self.put_held(effects);
        }
        if bug!(ExitAtEnd) && self.finished() {
            return self.exit(effects);
        }
        if !bug!(RunOnAfterFence) && (self.pending_fence.is_some() || self.pending_plan.is_some()) {
            return self.settle(now, effects);
        }
        match self.next.take() {
            Some(next)
                if decision.switch == Some(next.generation)
                    || (bug!(SwitchToAnyChange) && decision.switch.is_some()) =>
            {
                self.switch(now, next, decision.id, effects);
            }
            next => self.next = next,
        }
        self.tell(effects);
        self.run(effects);
    }

    /// The holders of a unit share the writing: each unit has one writer. At the end all write, since one that dies then has
    /// no next checkpoint to make up for it.
    pub(super) fn put_held(&mut self, effects: &mut Vec<MemberEffect>) {
        self.put_at = self.at.step;
        let all = self.finished();
        let mine = |unit: &Unit| {
            let holders = self.plan.as_ref().map(|p| p.holders(*unit)).unwrap_or_default();
            holders.get(unit.index() % holders.len().max(1)) == Some(&self.config.id)
        };
        let current = self.held.iter().filter(|(_, id)| **id == self.at);
        let current = current.filter(|(unit, _)| all || mine(unit));
        effects.extend(current.map(|(unit, id)| MemberEffect::Put { id: *id, unit: *unit }));
    }

    pub(super) fn on_stopped(
        &mut self,
        now: Time,
        prepared: &[(Unit, UnitNorm)],
        effects: &mut Vec<MemberEffect>,
    ) {
        if let Engine::Stopping { generation, step } = self.engine {
            self.engine = Engine::Idle;
            self.note_prepared(generation, step, prepared);
            self.settle(now, effects);
        }
    }

    pub(super) fn on_step_failed(
        &mut self,
        generation: Generation,
        about: Option<WorkerId>,
        effects: &mut Vec<MemberEffect>,
    ) {
        if let Engine::Running {
            generation: run,
            step,
        } = self.engine
            && run == generation
        {
            self.engine = Engine::Failed { generation, step };
            self.suspect(about.unwrap_or(self.config.id), false, effects);
        }
    }
}
