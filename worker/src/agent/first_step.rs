//! Units that come while the first step of a plan computes without them (ADR 43): they are adopted beside the step.

use super::engine_thread::Event;
use crate::engine::{Adopter, Done, EngineError};
use crate::state::UnitState;
use std::collections::BTreeMap;
use std::sync::Arc;
use varuna_plan::{Base, Plan, StateId, Step, Unit, WorkerId};

/// The step of that kind which the engine runs, and what adopts units beside it.
pub(super) struct FirstStep {
    me: WorkerId,
    /// None if the engine has none: it adopts all units in turn with its steps.
    adopter: Option<Adopter>,
    running: Option<(Arc<Plan>, Step)>,
}

impl FirstStep {
    pub(super) fn new(me: WorkerId, adopter: Option<Adopter>) -> FirstStep {
        FirstStep {
            me,
            adopter,
            running: None,
        }
    }

    /// The engine is told to run a step.
    pub(super) fn begin(&mut self, plan: &Arc<Plan>, step: Step) {
        let is_first = plan.sends_parameters_in(step);
        self.running = is_first.then(|| (Arc::clone(plan), step));
    }

    /// How many units the step computes whose state is not among what is held here. None if no such step runs.
    pub(super) fn lacks(&self, held: &BTreeMap<Unit, StateId>) -> Option<usize> {
        let (plan, step) = self.running.as_ref()?;
        let units = plan.units(self.me).into_iter();
        let is_sent = |unit: &Unit| plan.parameters_sender(self.me, *unit, *step).is_some();
        let is_held = |unit: &Unit| held.get(unit).is_some_and(|id| self.computes_without(*unit, *id));
        Some(units.filter(|unit| is_sent(unit) && !is_held(unit)).count())
    }

    /// The engine may have run the step, or failed to.
    pub(super) fn note(&mut self, event: &Event) {
        if matches!(event, Event::Prepared { .. } | Event::StepFailed(_)) {
            self.running = None;
        }
    }

    /// Has a state adopted beside the step if the step computes without it. Gives back any other state, which the engine adopts in turn.
    pub(super) fn adopt(
        &mut self,
        (unit, id): (Unit, StateId),
        state: UnitState,
        done: Done,
    ) -> Result<Option<UnitState>, EngineError> {
        let computes_without = self.computes_without(unit, id);
        match &mut self.adopter {
            Some(adopter) if computes_without => adopter.adopt(unit, id, state, done).map(|()| None),
            _ => Ok(Some(state)),
        }
    }

    /// Whether the step begins with this state of the unit, whose parameters others send.
    fn computes_without(&self, unit: Unit, id: StateId) -> bool {
        self.running.as_ref().is_some_and(|(plan, step)| {
            matches!(plan.base, Base::Fixed { id: base, .. } if base == id)
                && plan.parameters_sender(self.me, unit, *step).is_some()
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::agent::engine_thread::FailedStep;
    use varuna_plan::{
        Generation, Layout, Pipeline, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec, Shape,
        Stage,
    };

    pub(in crate::agent) const ME: WorkerId = WorkerId(2);

    fn id(step: u64) -> StateId {
        StateId {
            run_gen: Generation(1),
            step: Step(step),
            ..StateId::INITIAL
        }
    }

    /// Two pipelines of one stage. The first worker has all state, and this one only the first unit.
    pub(in crate::agent) fn plan() -> Arc<Plan> {
        let layout = Layout::new(3, false);
        let pipeline = |worker: u64| Pipeline {
            stages: vec![Stage {
                worker: WorkerId(worker),
                segments: layout.whole(),
                recompute: None,
            }],
            samples: SampleRange {
                start: worker - 1,
                end: worker,
            },
        };
        let shape = Shape {
            pipelines: vec![pipeline(1), pipeline(2)],
            spares: Vec::new(),
            micro_batch_size: 1,
            schedule: ScheduleSpec {
                kind: ScheduleKind::Gpipe,
                recompute: Recompute::None,
            },
            predicted: Prediction::default(),
        };
        let mut plan = Plan::first(layout, shape);
        plan.base = Base::Fixed {
            id: id(5),
            decision: None,
            checkpoint: false,
        };
        plan.sources = vec![vec![WorkerId(1), ME], vec![WorkerId(1)], vec![WorkerId(1)]];
        plan.parameters_first = true;
        assert!(plan.can_send_parameters_first());
        Arc::new(plan)
    }

    #[test]
    fn only_what_the_step_computes_without_is_adopted_beside_it() {
        let (plan, unit) = (plan(), Unit(1));
        let mut first = FirstStep::new(ME, None);
        assert!(!first.computes_without(unit, id(5)));
        first.begin(&plan, Step(5));
        assert!(first.computes_without(unit, id(5)) && first.computes_without(Unit(2), id(5)));
        assert!(!first.computes_without(Unit(0), id(5)), "it is held");
        assert!(!first.computes_without(unit, id(4)), "another state");
        first.note(&Event::Loaded { unit, id: id(5) });
        assert!(first.computes_without(Unit(2), id(5)), "the step still runs");
        first.note(&Event::StepFailed(FailedStep {
            generation: Generation(1),
            about: None,
            lacks: None,
            why: "for the test".into(),
        }));
        assert!(!first.computes_without(unit, id(5)));
        first.begin(&plan, Step(6));
        assert!(!first.computes_without(unit, id(5)), "a later step");
        let mut usual = Plan::clone(&plan);
        usual.parameters_first = false;
        first.begin(&Arc::new(usual), Step(5));
        assert!(!first.computes_without(unit, id(5)));
    }

    #[test]
    fn units_are_lacked_until_their_state_at_the_base_is_held() {
        let mut first = FirstStep::new(ME, None);
        assert_eq!(first.lacks(&BTreeMap::new()), None);
        first.begin(&plan(), Step(5));
        let mut held = BTreeMap::from([(Unit(0), id(5)), (Unit(1), id(4))]);
        assert_eq!(first.lacks(&held), Some(2), "one is at another state");
        held.insert(Unit(1), id(5));
        assert_eq!(first.lacks(&held), Some(1));
        first.begin(&plan(), Step(6));
        assert_eq!(first.lacks(&held), None, "a later step");
    }

    #[test]
    fn an_engine_without_an_adopter_adopts_in_turn() {
        let mut first = FirstStep::new(ME, None);
        first.begin(&plan(), Step(5));
        let progress = varuna_plan::OptimizerProgress::START;
        let state = UnitState {
            progress,
            data: vec![1.0],
        };
        let done: Done = Box::new(|_| panic!("it is told of what is not done"));
        let left = first.adopt((Unit(1), id(5)), state.clone(), done);
        assert_eq!(left, Ok(Some(state)));
    }
}
