//! The steps of a training step on a member: run, prepared, norm exchange, apply, commit.

use super::in_plan::InPlan;
use super::norm_exchange::NormExchange;
use super::{Engine, ExitReason, Member, MemberEffect};
use crate::message::{Conclusion, Lack, Norms, PeerMessage, Phase, Ran, Report, Suspicion, Time};
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, Generation, StateId, Step, Unit, WorkerId};

impl Member {
    pub(super) fn run(&mut self, effects: &mut Vec<MemberEffect>) {
        let Some(current) = &self.current else { return };
        if current.phase() == Phase::Running && !self.finished() && self.engine == Engine::Idle {
            let (plan, step) = (current.plan.clone(), self.at.step);
            let deadline = plan.deadline.of(step, &current.recent);
            self.engine = Engine::Running {
                generation: plan.generation,
                step,
            };
            effects.push(MemberEffect::Run { plan, step, deadline });
        }
    }

    pub(super) fn on_prepared(
        &mut self,
        generation: Generation,
        step: Step,
        units: &[(Unit, UnitNorm)],
        store_busy: bool,
        now: Time,
        effects: &mut Vec<MemberEffect>,
    ) {
        // an engine that is being stopped reports the same again with Stopped
        if self.engine != (Engine::Running { generation, step }) {
            return;
        }
        self.engine = Engine::Idle;
        self.holdings.note_prepared(generation, step, units);
        let waits_for_go = self.current.as_ref().is_some_and(InPlan::waits_for_go);
        if waits_for_go && !bug!(PutNormsInBeforeGo) {
            return self.prepared_before_go(now, store_busy, effects);
        }
        self.put_norms_in((generation, step), units, store_busy, now, effects);
    }

    /// Puts the norms of the step that the engine has run into the exchange.
    pub(super) fn put_norms_in(
        &mut self,
        (generation, step): (Generation, Step),
        units: &[(Unit, UnitNorm)],
        store_busy: bool,
        now: Time,
        effects: &mut Vec<MemberEffect>,
    ) {
        let (me, armed) = (self.config.id, self.armed());
        let Some(current) = &mut self.current else { return };
        let owns = |u: Unit| current.plan.owner(u) == Some(me);
        let norms = Norms {
            step,
            units: units.iter().copied().filter(|(u, _)| owns(*u)).collect(),
            armed,
            save: self.checkpoints.is_wanted(),
            store_busy,
        };
        current.norms.put(norms);
        self.forward_prepared(generation, step, units, effects);
        self.wait_for_gradients(now);
        self.pass_on(effects);
    }

    pub(super) fn peer(
        &mut self,
        now: Time,
        (generation, from): (Generation, WorkerId),
        message: PeerMessage,
        effects: &mut Vec<MemberEffect>,
    ) {
        match message {
            PeerMessage::Fetch { unit } => self.asked(now, (generation, from), unit, effects),
            PeerMessage::Follow { unit, held } => {
                self.asked_to_follow(now, (generation, from), unit, held, effects);
            }
            PeerMessage::Norm(norms) => {
                let at = self.at;
                let Some(current) = &mut self.current else { return };
                let running = current.phase() == Phase::Running;
                let lax = bug!(SkipFenceCheck) && running;
                let children = current.plan.tree_children(self.config.id);
                let child = bug!(NormOfStranger) || children.contains(&from);
                if (current.generation() != generation && !lax) || !child {
                    return;
                }
                // peers run at most one step ahead
                let here = if running { Some(at) } else { current.base };
                let near = |at: StateId| norms.step == at.step || norms.step == at.step.next();
                if bug!(NormOfAnyStep) || here.is_some_and(near) {
                    current.norms.take(from, norms);
                    self.pass_on(effects);
                }
            }
            PeerMessage::Decided(conclusion) => {
                let Some(current) = &self.current else { return };
                let here = current.generation() == generation || bug!(SkipFenceCheck);
                let parent = current.plan.tree_parent(self.config.id);
                if here && (parent == Some(from) || bug!(DecisionOfStranger)) {
                    self.decided(conclusion, effects);
                }
            }
        }
    }

    /// Once this member's whole subtree is prepared, passes its norms up the tree. At the root this means that all members are prepared,
    /// and the step is decided.
    pub(super) fn pass_on(&mut self, effects: &mut Vec<MemberEffect>) {
        let me = self.config.id;
        let Some(current) = &self.current else { return };
        let (generation, step) = (current.generation(), self.at.step);
        let put_in = |norm_put_in| {
            Some(Ran {
                generation,
                step,
                norm_put_in,
            })
        };
        let idle = self.engine == Engine::Idle;
        let ready = idle && self.can_finish_for_others();
        if current.phase() != Phase::Running || !ready || self.holdings.ran != put_in(false) {
            return;
        }
        let Some(said) = current.norms.gathered(step, current.plan.tree_children(me)) else {
            return;
        };
        match current.plan.tree_parent(me) {
            Some(to) => {
                self.holdings.ran = put_in(!bug!(NormNotNoted));
                effects.push(MemberEffect::Send {
                    generation,
                    to,
                    message: PeerMessage::Norm(said),
                });
            }
            None => {
                let Some(conclusion) = NormExchange::conclude(&current.plan, self.at, &said) else {
                    return;
                };
                self.holdings.ran = put_in(!bug!(NormNotNoted));
                self.apply(conclusion, effects);
            }
        }
    }

    /// The root has concluded the step. This counts only if this member has put in its norms of that step and has not been stopped since.
    fn decided(&mut self, conclusion: Conclusion, effects: &mut Vec<MemberEffect>) {
        let Some(current) = &self.current else { return };
        let Decision { parent, id, .. } = conclusion.decision;
        let waits = Ran {
            generation: current.generation(),
            step: self.at.step,
            norm_put_in: true,
        };
        let idle = current.phase() == Phase::Running && self.engine == Engine::Idle;
        let mine = parent == self.at && id.run_gen == waits.generation;
        if idle && self.holdings.ran == Some(waits) && (mine || bug!(DecisionOfAnyStep)) {
            self.apply(conclusion, effects);
        }
    }

    /// All members were prepared: passes the decision down the tree and applies it.
    fn apply(&mut self, conclusion: Conclusion, effects: &mut Vec<MemberEffect>) {
        let armed = self.armed();
        let Some(current) = &mut self.current else { return };
        let generation = current.generation();
        for to in current.plan.tree_children(self.config.id) {
            effects.push(MemberEffect::Send {
                generation,
                to: *to,
                message: PeerMessage::Decided(conclusion),
            });
        }
        let mut decision = conclusion.decision;
        if bug!(SwitchAlone) {
            decision.switch = Some(armed).filter(|g| *g != Generation(0));
        }
        current.norms.apply(conclusion);
        let units: Vec<Unit> = self.holdings.prepared.keys().copied().collect();
        if !bug!(ForwardAfterApply) {
            self.forward_gradients(decision, effects);
        }
        effects.push(MemberEffect::Apply {
            decision,
            units: units.clone(),
        });
        if bug!(ForwardAfterApply) {
            self.forward_gradients(decision, effects);
        }
        self.engine = Engine::Applying {
            decision,
            units,
            commit: true,
        };
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
        self.holdings.applied(units, decision);
        self.engine = Engine::Idle;
        if let Some(current) = self.current.as_mut().filter(|_| commit) {
            let began = if bug!(StepTimeSinceLastProgress) {
                current.progress_at
            } else {
                current.step_began_at
            };
            let deadline = current.plan.deadline;
            // A step that began before Go says nothing about how long others take.
            if !std::mem::take(&mut current.first_step).has_begun() || bug!(TimeStepFromGo) {
                let took = now.since(began);
                current.recent.note(&deadline, decision.parent.step, took);
            }
            current.step_began_at = now;
        }
        self.note_progress(now);
        self.history.push(decision);
        if commit {
            self.advanced_at = now;
            // One member reports the commit; the coordinator asks others for reports that it missed.
            let teller = self
                .current
                .as_ref()
                .and_then(|c| c.plan.members().first().copied());
            if teller == Some(self.config.id) {
                effects.push(MemberEffect::Report(Report::Committed { decision }));
            }
            self.committed(now, decision, effects);
        } else {
            self.settle(now, effects);
            self.relay(effects);
            self.serve(effects);
            self.load(now, effects);
        }
    }

    fn committed(&mut self, now: Time, decision: Decision, effects: &mut Vec<MemberEffect>) {
        self.at = decision.id;
        self.holdings.begin_step(self.generation(), decision.id.step);
        self.wait_is_over();
        let current = self.current.as_mut();
        let said = current.and_then(|c| c.norms.committed(decision.parent.step));
        let (save, store_busy) = said.map_or((false, false), |s| (s.save, s.store_busy));
        let busy = store_busy && !bug!(SaveIntoBusyStore);
        let regular = |n: u64| decision.id.step.0.is_multiple_of(n.max(1));
        let due = |n: u64| self.finished() || (!busy && (save || regular(n)));
        let saved = self.config.checkpoint_every.is_some_and(due);
        if saved {
            self.put_held(effects);
        }
        if !bug!(DigestAfterSwitch) {
            self.compare(saved, effects);
        }
        if bug!(ExitAtEnd) && self.finished() {
            return self.exit(ExitReason::Released, effects);
        }
        if self.waiting.is_any() && !bug!(RunOnAfterFence) {
            return self.settle(now, effects);
        }
        self.bring_up_spares(effects);
        match self.change.take() {
            Some(change) if agreed(decision.switch, change.plan.generation) => {
                self.switch(now, change, decision.id, effects);
            }
            change => self.change = change,
        }
        if bug!(DigestAfterSwitch) {
            self.compare(saved, effects);
        }
        self.report_status_change(effects);
        self.copy_for_followers(effects);
        self.copy_for_keepers(effects);
        self.run(effects);
    }

    /// Requests digests of the units that others hold too, if this state is to be compared. The step does not wait for them. States of
    /// checkpoints are compared at any interval: if holders differ with no majority, the run goes back to one of these.
    fn compare(&self, saved: bool, effects: &mut Vec<MemberEffect>) {
        let regular = |n: u64| self.at.step.0.is_multiple_of(n.max(1));
        let due = self.config.compare_every.is_some_and(|n| saved || regular(n));
        let Some(plan) = self.current.as_ref().map(|c| &c.plan).filter(|_| due) else {
            return;
        };
        let me = self.config.id;
        let shared = |unit: &Unit| {
            let holders = plan.holders(*unit);
            holders.contains(&me) && holders.iter().any(|w| *w != me)
        };
        let here = self.holdings.units_at(Some(self.at));
        let units: Vec<Unit> = here.map(|(unit, _)| unit).filter(shared).collect();
        if !units.is_empty() {
            effects.push(MemberEffect::Digest {
                id: self.at,
                saved,
                units,
            });
        }
    }

    /// The holders of a unit share the writing: each unit has one writer. At the end all holders write, since after the last step no later
    /// checkpoint could replace one whose writer died.
    pub(super) fn put_held(&mut self, effects: &mut Vec<MemberEffect>) {
        self.checkpoints.put_at = self.at.step;
        let all = self.finished();
        let own = self.current.as_ref().map(|c| c.plan.units(self.config.id));
        let own = own.unwrap_or_default();
        let mine = |unit: Unit| {
            let plan = self.current.as_ref().map(|c| &c.plan);
            let holders = plan.map_or(&[][..], |p| p.holders(unit));
            holders.get(unit.index() % holders.len().max(1)) == Some(&self.config.id)
        };
        let here = self.holdings.units_at(Some(self.at));
        let here = here.filter(|(unit, _)| own.contains(unit) && (all || mine(*unit)));
        effects.extend(here.map(|(unit, id)| MemberEffect::SaveUnit { id, unit }));
    }

    pub(super) fn on_stopped(
        &mut self,
        now: Time,
        prepared: &[(Unit, UnitNorm)],
        effects: &mut Vec<MemberEffect>,
    ) {
        if let Engine::Stopping { generation, step } = self.engine {
            self.engine = Engine::Idle;
            self.holdings.note_prepared(generation, step, prepared);
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
            self.suspect(about.unwrap_or(self.config.id), Suspicion::Gone, effects);
        }
    }

    /// Reports what the step lacks here, whoever stopped the step and for whatever reason: to distinguish a worker that cannot read from a
    /// store that is unavailable, the coordinator has to know all workers that lack their data.
    pub(super) fn on_step_lacks(
        &mut self,
        generation: Generation,
        what: Lack,
        effects: &mut Vec<MemberEffect>,
    ) {
        match self.engine {
            Engine::Running {
                generation: run,
                step,
            } if run == generation => self.engine = Engine::Failed { generation, step },
            Engine::Stopping { generation: run, .. } if run == generation => {}
            _ => return,
        }
        self.suspect(self.config.id, what.into(), effects);
    }
}

/// Whether all members are armed for this change.
fn agreed(switch: Option<Generation>, change: Generation) -> bool {
    switch == Some(change) || (bug!(SwitchToAnyChange) && switch.is_some())
}
