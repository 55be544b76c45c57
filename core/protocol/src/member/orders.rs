//! The coordinator's orders: fence, prepare, arm, go, release.

use super::{Engine, Member, MemberEffect};
use crate::message::{Inventory, Order, Phase, Ran, Report, Time};
use std::sync::Arc;
use varuna_plan::{Base, Decision, Generation, Plan, StateId, Unit};

impl Member {
    pub(super) fn order(&mut self, now: Time, order: Order, effects: &mut Vec<MemberEffect>) {
        match order {
            Order::Fence { upto } => self.fence(now, upto, effects),
            Order::Prepare(plan) => self.prepare(now, plan, effects),
            Order::Arm { generation } => {
                let known = self.next.as_ref().is_some_and(|p| p.generation == generation);
                if known && self.phase == Phase::Running {
                    self.armed = generation;
                }
            }
            Order::Save { after } => self.save_after = self.save_after.max(Some(after)),
            Order::Go { generation } => self.go(now, generation, effects),
            Order::Release => {
                if self.plan.is_none() || self.phase == Phase::Source || self.finished() {
                    self.exit(effects);
                }
            }
        }
    }

    pub(super) fn exit(&mut self, effects: &mut Vec<MemberEffect>) {
        self.exited = true;
        effects.push(MemberEffect::Exit);
    }

    fn fence(&mut self, now: Time, upto: Generation, effects: &mut Vec<MemberEffect>) {
        if upto < self.fenced || (bug!(AnswerFenceOnce) && upto == self.fenced && upto.0 > 0) {
            return;
        }
        if self.generation() > upto || (bug!(IgnoreFenceOfPresent) && self.generation() == upto && upto.0 > 0)
        {
            return self.tell(effects);
        }
        if bug!(CommitAfterFence) && self.phase == Phase::Running {
            self.fenced = self.fenced.max(upto);
            return self.send_inventory(upto, effects);
        }
        if bug!(TornApply) && matches!(self.engine, Engine::Applying { .. }) {
            effects.push(MemberEffect::Abort);
            self.engine = Engine::Idle;
        }
        self.pending_fence = self.pending_fence.max(Some(upto));
        self.quiesce(effects);
        self.settle(now, effects);
    }

    /// Asks a running engine to stop. An apply is waited for instead.
    fn quiesce(&mut self, effects: &mut Vec<MemberEffect>) {
        if let Engine::Running { generation, step } | Engine::Failed { generation, step } = self.engine {
            effects.push(MemberEffect::Abort);
            self.engine = Engine::Stopping { generation, step };
        }
    }

    /// The engine has something in hand whose end must be known before an inventory may be sent.
    fn busy(&self) -> bool {
        self.engine != Engine::Idle || (!bug!(FenceDuringTakeOver) && !self.adopting.is_empty())
    }

    /// Does what had to wait for the engine.
    pub(super) fn settle(&mut self, now: Time, effects: &mut Vec<MemberEffect>) {
        if self.busy() {
            return;
        }
        if let Some(upto) = self.pending_fence.take() {
            if !bug!(ForgetFence) {
                self.fenced = self.fenced.max(upto);
            }
            self.leave(effects);
            self.send_inventory(upto, effects);
        }
        if let Some(plan) = self.pending_plan.take().filter(|_| !bug!(ForgetWaitingPlan)) {
            self.prepare(now, plan, effects);
        }
    }

    /// From here on this worker never commits in a generation up to `upto`.
    fn send_inventory(&self, upto: Generation, effects: &mut Vec<MemberEffect>) {
        effects.push(MemberEffect::Report(Report::Inventory(Inventory {
            upto,
            units: self.held.clone(),
            prepared: self.prepared.clone(),
            ran: self.ran,
            decision: self.decision,
        })));
    }

    /// Forgets the plans and closes their connections; state, prepared gradients and the last decision stay.
    pub(super) fn leave(&mut self, effects: &mut Vec<MemberEffect>) {
        let open = [self.previous.take(), self.plan.as_ref().map(|p| p.generation)];
        for generation in open.into_iter().flatten() {
            effects.push(MemberEffect::Disconnect { generation });
        }
        self.drop_next(effects);
        self.forget_plan();
    }

    fn drop_next(&mut self, effects: &mut Vec<MemberEffect>) {
        if let Some(next) = self.next.take() {
            effects.push(MemberEffect::Disconnect {
                generation: next.generation,
            });
            self.asks.retain(|(g, _, _)| *g != next.generation);
        }
        self.next_peers.clear();
        self.armed = Generation(0);
    }

    /// Clears all that belongs to the plan in force, but keeps connections and asks of a planned change.
    pub(super) fn forget_plan(&mut self) {
        let here = self.generation();
        self.asks.retain(|(g, _, _)| *g != here);
        self.plan = None;
        self.phase = Phase::Idle;
        self.base = None;
        self.armed = Generation(0);
        self.peers.clear();
        self.norms.clear();
        self.fetches.clear();
        self.shards_asked.clear();
    }

    fn prepare(&mut self, now: Time, plan: Arc<Plan>, effects: &mut Vec<MemberEffect>) {
        let g = plan.generation;
        let old = if bug!(AcceptFencedPlan) {
            g < self.fenced.max(self.generation())
        } else {
            g <= self.fenced.max(self.generation())
        };
        let replaced = self.next.as_ref().is_some_and(|n| n.generation >= g);
        if old
            || (replaced && !bug!(OlderChangeReplacesNewer))
            || !plan.involves(self.config.id)
            || plan.layout != self.config.layout
        {
            return self.tell(effects);
        }
        match plan.base {
            Base::AtSwitch { from } if from == self.generation() => {
                self.drop_next(effects);
                effects.push(MemberEffect::Accepted(plan.clone()));
                self.dial(&plan, effects);
                self.next = Some(plan);
            }
            Base::AtSwitch { .. } => {
                // a joiner; one that still trains or serves elsewhere first has to hear how that ended
                let free = self.plan.is_none() || self.phase == Phase::Loading;
                if !bug!(JoinWhileBusy) && (!free || self.engine != Engine::Idle) {
                    return;
                }
                self.leave(effects);
                self.enter(now, plan, None, effects);
            }
            Base::Fixed { id, decision, .. } => {
                if self.busy() {
                    self.pending_plan = Some(plan);
                    self.quiesce(effects);
                    return;
                }
                self.leave(effects);
                if let Some(decision) = decision {
                    self.roll_forward(decision, effects);
                }
                self.enter(now, plan, Some(id), effects);
            }
        }
        self.tell(effects);
    }

    /// Finishes the step that this worker is prepared for, with a decision that somebody else has, or may have, applied.
    fn roll_forward(&mut self, decision: Decision, effects: &mut Vec<MemberEffect>) {
        let fits = |unit: &Unit, id: &StateId| {
            (*id == decision.parent || bug!(ApplyFromAnyParent))
                && self.prepared.get(unit).is_some_and(|p| {
                    (p.run_gen == decision.id.run_gen || bug!(ApplyGradientOfAnotherGeneration))
                        && p.step == decision.parent.step
                })
        };
        let units: Vec<Unit> = self
            .held
            .iter()
            .filter(|(u, id)| fits(u, id))
            .map(|(u, _)| *u)
            .collect();
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
        if self.plan.is_none() && (self.fenced < generation || bug!(OldGoFreesState)) && !self.busy() {
            return self.free(&[], effects); // a spare: the new generation has everything
        }
        if (self.generation() != generation && !bug!(GoInAnyGeneration)) || self.busy() {
            return;
        }
        match self.phase {
            Phase::Source => {
                self.leave(effects);
                self.free(&[], effects);
            }
            Phase::Ready => self.start(now, effects),
            Phase::Loading if bug!(GoEarly) => self.start(now, effects),
            _ => return,
        }
        self.tell(effects);
    }

    /// Gives up all state but that of `keep`; the only place where state is given up.
    pub(super) fn free(&mut self, keep: &[Unit], effects: &mut Vec<MemberEffect>) {
        self.held.retain(|u, _| keep.contains(u));
        if !bug!(KeepGradientsAfterFree) {
            self.prepared.clear();
        }
        if !bug!(KeepRanAfterFree) {
            self.ran = None;
        }
        effects.push(MemberEffect::Free { keep: keep.to_vec() });
    }

    fn start(&mut self, now: Time, effects: &mut Vec<MemberEffect>) {
        let generation = self.generation();
        let mine = self.plan.as_ref().map_or(vec![], |p| p.units(self.config.id));
        self.free(&mine, effects);
        if let Some(previous) = self.previous.take() {
            effects.push(MemberEffect::Disconnect { generation: previous });
        }
        self.asks.retain(|(g, _, _)| *g != generation);
        let held = self.held.values().next().copied();
        self.at = self.base.or(held).unwrap_or(StateId::INITIAL);
        // Where steps were given up, what was put and what was wanted beyond here counts no more.
        self.put_at = self.put_at.min(self.at.step);
        self.save_after = self.save_after.min(Some(self.at.step));
        self.phase = Phase::Running;
        if !bug!(ForgetRanAtStart) {
            self.ran = Some(Ran {
                generation,
                step: self.at.step,
                norm_put_in: false,
            });
        }
        self.progress_at = now;
        if self.finished() && self.config.checkpoint_every.is_some() {
            self.put_held(effects);
        }
        self.run(effects);
    }
}
