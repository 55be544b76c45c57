//! The first step of a plan that begins before its members have all their state (ADR 43): they compute it with parameters that others send
//! them, while the rest of the state that they lack is on its way.
//!
//! Only computing begins before Go. The norms of the step are put in, and its decision applied, only in phase Running, which begins once all
//! members are at the base. So everything that is said about Go remains true, and a fence that comes before finds the states that it would
//! have found without this. What it no longer finds is the step that members ran in the generation before: its gradients make room for those
//! of this one, as they would with Go.

use super::holdings::Holdings;
use super::in_plan::{FirstStep, InPlan};
use super::{Engine, Member, MemberEffect};
use crate::message::Time;
use std::time::Duration;
use varuna_plan::{StateId, Step, Unit, WorkerId};

/// The parameters of a first step may take this many times as long as the state is predicted to take, ...
const MOVE_PATIENCE: u32 = 4;
/// ... and this many times as long as a connection. A link that is slower than predicted would otherwise cost a recovery after each loss.
const CONNECT_PATIENCE: u32 = 10;

impl Member {
    /// Whether the engine runs the first step of the plan, and Go has not come.
    pub(super) fn runs_before_go(&self) -> bool {
        let current = self.current.as_ref();
        let waits = current.is_some_and(InPlan::waits_for_go);
        waits && matches!(self.engine, Engine::Running { .. })
    }

    /// Whether the engine can be given state of the plan's base: it idles, or runs the plan's first step with parameters that others have
    /// sent, and takes state over beside it.
    pub(super) fn takes_state(&self) -> bool {
        self.engine == Engine::Idle || self.runs_before_go()
    }

    /// Runs the first step, if the plan says that it begins before all state is there, and this member can.
    pub(super) fn begin_before_go(&mut self, now: Time, effects: &mut Vec<MemberEffect>) {
        let me = self.config.id;
        if self.engine != Engine::Idle || self.waiting.is_any() {
            return;
        }
        let Some(current) = self.current.as_ref().filter(|c| c.waits_for_go()) else {
            return;
        };
        let Some(base) = current.begins_with_parameters() else {
            return;
        };
        let begun = current.first_step.has_begun() && !bug!(BeginFirstStepTwice);
        if !begun && current.is_connected(me) && has_what_the_step_needs(current, me, base, &self.holdings) {
            self.begin_first_step(now, base, effects);
        }
    }

    /// Begins the first step of a plan that sends parameters first.
    fn begin_first_step(&mut self, now: Time, base: StateId, effects: &mut Vec<MemberEffect>) {
        let Some(current) = &self.current else { return };
        let (plan, step) = (current.plan.clone(), base.step);
        let deadline = self.deadline_before_go();
        self.engine = Engine::Running {
            generation: plan.generation,
            step,
        };
        self.holdings.begin_step(plan.generation, step);
        if let Some(current) = &mut self.current {
            current.first_step = FirstStep::Begun;
            current.progress_at = now;
        }
        effects.push(MemberEffect::Run { plan, step, deadline });
    }

    /// Go has come. If the first step has not begun, it begins now, before former units are freed: others may lack their parameters.
    pub(super) fn begin_at_go(&mut self, now: Time, effects: &mut Vec<MemberEffect>) {
        let Some(current) = &self.current else { return };
        if let Some(base) = current
            .begins_with_parameters()
            .filter(|_| !current.first_step.has_begun() && !bug!(FreeBeforeParameters))
        {
            self.begin_first_step(now, base, effects);
        }
    }

    /// The deadline of the first step if it begins before Go. It is longer than that of other steps: parameters have to travel, and other
    /// members may begin later. While they travel no state arrives, and a link may be much slower than predicted. If a peer ends, its
    /// connections close.
    pub(super) fn deadline_before_go(&self) -> Duration {
        let Some(current) = &self.current else {
            return Duration::ZERO;
        };
        let step = current.base.map_or(Step(0), |base| base.step);
        let moves_ms = current.plan.shape.predicted.move_ms * f64::from(MOVE_PATIENCE);
        // A day at most: the planner's numbers are estimates.
        let moves = Duration::try_from_secs_f64((moves_ms / 1e3).min(86_400.0)).unwrap_or_default();
        let connects = self.config.timing.connect_deadline * CONNECT_PATIENCE;
        current.plan.deadline.of(step, &current.recent) + connects + moves
    }

    /// The engine has run the step before Go.
    pub(super) fn prepared_before_go(
        &mut self,
        now: Time,
        store_busy: bool,
        effects: &mut Vec<MemberEffect>,
    ) {
        if let Some(current) = &mut self.current {
            current.first_step = FirstStep::Prepared { store_busy };
            current.progress_at = now;
            // State was not awaited while the step ran.
            if let Some(transfers) = current.transfers() {
                transfers.restart(now);
            }
        }
        self.load(now, effects);
    }
}

/// Whether this member can compute the first step: it has all state but that whose parameters it is sent. And it has begun to send the state
/// that others lack: the engine does not answer requests while it runs a step that may wait for those others.
fn has_what_the_step_needs(current: &InPlan, me: WorkerId, base: StateId, holdings: &Holdings) -> bool {
    let plan = &current.plan;
    let sent_here = |unit: &Unit| plan.parameters_sender(me, *unit, base.step).is_some();
    let at_base = |unit: Unit| holdings.is_at(unit, Some(base));
    let lacks_nothing_else = plan
        .units(me)
        .iter()
        .all(|unit| sent_here(unit) || at_base(*unit));
    let is_sending = |(unit, to): &(Unit, WorkerId)| at_base(*unit) && current.serving.has_begun(*to, *unit);
    let mut sent = plan.parameters_sent_by(me, base.step).iter();
    lacks_nothing_else && (bug!(BeginBeforeServing) || sent.all(is_sending))
}
