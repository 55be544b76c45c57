//! The coordinator's orders: fence, prepare, arm, go, release.

use super::connections::Connections;
use super::in_plan::{FirstStep, PlannedChange, Stage};
use super::{Engine, ExitReason, Member, MemberEffect};
use crate::message::{Order, Phase, Report, Time};
use std::sync::Arc;
use varuna_plan::{Base, Decision, Generation, Plan, StateId, Step, Unit};

impl Member {
    pub(super) fn order(&mut self, now: Time, order: Order, effects: &mut Vec<MemberEffect>) {
        match order {
            Order::Fence { upto } => self.fence(now, upto, effects),
            Order::Prepare(plan) => self.prepare(now, plan, effects),
            Order::Arm { generation } => {
                let running = self.phase() == Phase::Running;
                if let Some(change) = self.change_to(generation).filter(|_| running) {
                    change.armed = true;
                }
            }
            Order::Save { after } => self.checkpoints.want(after),
            Order::Go { generation } => self.go(now, generation, effects),
            Order::Tell { after } => effects.push(MemberEffect::Report(self.history.after(after))),
            Order::LastStep { step } => self.train_to(now, step, effects),
            Order::Release => {
                if matches!(self.phase(), Phase::Idle | Phase::Source) || self.finished() {
                    self.exit(ExitReason::Released, effects);
                }
            }
        }
    }

    /// Resumes training at what was the last step. The last step never decreases: members learn of it one after the other, and one that has
    /// trained beyond a smaller one could not go back.
    fn train_to(&mut self, now: Time, step: Step, effects: &mut Vec<MemberEffect>) {
        if step <= self.last_step && !bug!(TakeSmallerLastStep) {
            return;
        }
        let waited = self.finished();
        self.last_step = step;
        if waited {
            // While there was nothing to do, nothing was late.
            self.note_progress(now);
            self.run(effects);
        }
        self.report_status(effects);
    }

    pub(super) fn exit(&mut self, reason: ExitReason, effects: &mut Vec<MemberEffect>) {
        self.exited = true;
        effects.push(MemberEffect::Exit(reason));
    }

    fn fence(&mut self, now: Time, upto: Generation, effects: &mut Vec<MemberEffect>) {
        let answered = bug!(AnswerFenceOnce) && upto == self.fenced && upto.0 > 0;
        if upto < self.fenced || answered {
            return;
        }
        let ignored = bug!(IgnoreFenceOfPresent) && self.generation() == upto && upto.0 > 0;
        if self.generation() > upto || ignored {
            return self.report_status(effects);
        }
        if bug!(CommitAfterFence) && self.phase() == Phase::Running {
            self.fenced = self.fenced.max(upto);
            return self.send_inventory(upto, effects);
        }
        if bug!(TornApply) && matches!(self.engine, Engine::Applying { .. }) {
            effects.push(MemberEffect::Abort);
            self.engine = Engine::Idle;
        }
        self.waiting.put_fence(now, upto);
        self.stop_step(effects);
        self.settle(now, effects);
    }

    /// Asks a running engine to stop. If it is applying, that is waited for instead.
    fn stop_step(&mut self, effects: &mut Vec<MemberEffect>) {
        if let Engine::Running { generation, step } | Engine::Failed { generation, step } = self.engine {
            effects.push(MemberEffect::Abort);
            self.engine = Engine::Stopping { generation, step };
        }
    }

    /// Whether the engine is busy with work that must end before an inventory may be sent.
    fn busy(&self) -> bool {
        self.engine != Engine::Idle || self.takes_over()
    }

    /// Whether the engine takes over state.
    fn takes_over(&self) -> bool {
        !self.adopting.is_empty() && !bug!(FenceDuringTakeOver)
    }

    /// Carries out the orders that had to wait for the engine.
    pub(super) fn settle(&mut self, now: Time, effects: &mut Vec<MemberEffect>) {
        if self.busy() {
            return;
        }
        if let Some(upto) = self.waiting.take_fence() {
            if !bug!(ForgetFence) {
                self.fenced = self.fenced.max(upto);
            }
            self.leave(effects);
            self.send_inventory(upto, effects);
        }
        if let Some(plan) = self.waiting.plan.take().filter(|_| !bug!(ForgetWaitingPlan)) {
            self.prepare(now, plan, effects);
        }
    }

    /// From here on this worker never commits in a generation up to `upto`.
    fn send_inventory(&self, upto: Generation, effects: &mut Vec<MemberEffect>) {
        let inventory = self.holdings.inventory(upto);
        effects.push(MemberEffect::Report(Report::Inventory(inventory)));
    }

    /// Forgets the plans and closes their connections; the held state stays.
    pub(super) fn leave(&mut self, effects: &mut Vec<MemberEffect>) {
        let present = self.current.take();
        let open = present.iter().flat_map(|p| [p.left, Some(p.generation())]);
        let open = open.flatten();
        effects.extend(open.map(|generation| MemberEffect::Disconnect { generation }));
        self.drop_change(effects);
    }

    fn drop_change(&mut self, effects: &mut Vec<MemberEffect>) {
        if let Some(change) = self.change.take() {
            let generation = change.plan.generation;
            effects.push(MemberEffect::Disconnect { generation });
        }
    }

    fn prepare(&mut self, now: Time, plan: Arc<Plan>, effects: &mut Vec<MemberEffect>) {
        let g = plan.generation;
        let newest = self.fenced.max(self.generation());
        let old = g < newest || (g == newest && !bug!(AcceptFencedPlan));
        let change = self.change.as_ref();
        let replaced = change.is_some_and(|c| c.plan.generation >= g) && !bug!(OlderChangeReplacesNewer);
        if old || replaced || !plan.involves(self.config.id) || plan.layout != self.config.layout {
            return self.report_status(effects);
        }
        match plan.base {
            Base::AtSwitch { from } if from == self.generation() => {
                self.drop_change(effects);
                effects.push(MemberEffect::Accepted(plan.clone()));
                let connections = Connections::dialling(self.config.id, &plan, effects);
                let present = self.current.as_ref().map(|c| &*c.plan);
                let change = PlannedChange::to(now, self.config.id, present, plan, connections);
                self.change = Some(change);
            }
            Base::AtSwitch { .. } => {
                // a joiner; a worker that still trains or serves in another generation first has to learn how that ended
                let free = matches!(self.phase(), Phase::Idle | Phase::Loading);
                if !bug!(JoinWhileBusy) && (!free || self.engine != Engine::Idle) {
                    return;
                }
                self.leave(effects);
                self.enter(now, plan, None, effects);
            }
            Base::Fixed { id, decision, .. } => {
                if self.busy() {
                    self.waiting.plan = Some(plan);
                    self.stop_step(effects);
                    return;
                }
                self.leave(effects);
                if let Some(decision) = decision {
                    self.roll_forward(decision, effects);
                }
                self.enter(now, plan, Some(id), effects);
            }
        }
        self.report_status(effects);
    }

    /// Finishes the step that this worker is prepared for, with a decision that another worker has applied or may have applied.
    fn roll_forward(&mut self, decision: Decision, effects: &mut Vec<MemberEffect>) {
        self.roll_spares_forward(decision, effects);
        let units = self.holdings.prepared_for(&decision);
        if units.is_empty() {
            return;
        }
        let mut applied = decision;
        if bug!(ForgetNorm) {
            applied.norm2 = 0.0;
        }
        effects.push(MemberEffect::Apply {
            decision: applied,
            units: units.clone(),
        });
        self.engine = Engine::Applying {
            decision,
            units,
            commit: false,
        };
    }

    fn go(&mut self, now: Time, generation: Generation, effects: &mut Vec<MemberEffect>) {
        let spare = self.current.is_none() && (self.fenced < generation || bug!(OldGoFreesState));
        if spare && !self.busy() {
            return self.free(&[], effects); // the new generation has everything
        }
        let busy = self.takes_over() || !self.takes_state();
        if (self.generation() != generation && !bug!(GoInAnyGeneration)) || busy {
            return;
        }
        match self.phase() {
            Phase::Source => {
                self.leave(effects);
                self.free(&[], effects);
            }
            Phase::Ready => self.start(now, effects),
            Phase::Loading if bug!(GoEarly) => self.start(now, effects),
            _ => return,
        }
        self.report_status(effects);
    }

    /// Gives up all state except that of `keep`. This is the only place where state is given up.
    pub(super) fn free(&mut self, keep: &[Unit], effects: &mut Vec<MemberEffect>) {
        self.holdings.keep_only(keep);
        effects.push(MemberEffect::Free { keep: keep.to_vec() });
    }

    fn start(&mut self, now: Time, effects: &mut Vec<MemberEffect>) {
        self.begin_at_go(now, effects);
        let Some(current) = &mut self.current else { return };
        let (generation, base) = (current.generation(), current.base);
        let mut keep = current.plan.units(self.config.id);
        let left = current.left.take();
        if current.serving.stop() {
            effects.push(MemberEffect::StopServing { generation });
        }
        current.stage = Stage::Running;
        let first_step = current.first_step;
        if first_step.has_begun() {
            current.first_step = FirstStep::Begun;
        }
        (current.progress_at, current.step_began_at) = (now, now);
        self.advanced_at = now;
        keep.extend(self.spares_at_base());
        let step = first_step.has_begun().then(|| self.holdings.take_step());
        self.free(&keep, effects);
        if let Some(generation) = left {
            effects.push(MemberEffect::Disconnect { generation });
        }
        let held = self.holdings.units.values().next().copied();
        self.at = base.or(held).unwrap_or(StateId::INITIAL);
        self.checkpoints.begin_at(self.at.step);
        match step {
            Some(step) => self.holdings.put_step_back(step),
            None if bug!(ForgetRanAtStart) => {}
            None => self.holdings.begin_step(generation, self.at.step),
        }
        if self.finished() && self.config.checkpoint_every.is_some() {
            self.put_held(effects);
        }
        self.begin_keeping(now, effects);
        match first_step {
            FirstStep::NotBegun => self.run(effects),
            FirstStep::Begun => {}
            FirstStep::Prepared { store_busy } => {
                let step = self.at.step;
                let prepared = self.holdings.prepared.iter();
                let units: Vec<_> = prepared.map(|(unit, p)| (*unit, p.norm)).collect();
                self.put_norms_in((generation, step), &units, store_busy, now, effects);
            }
        }
    }
}
