//! Data that has arrived from peers and the store. It is offered to the member, which takes it at once or never. Also the gradients for
//! spare copies that the member has taken and that are not applied yet.

use crate::state::UnitState;
use std::collections::{BTreeMap, VecDeque};
use varuna_frames::PreparedHeader;
use varuna_plan::spare_copies::WAITING_GRADIENTS_MAX;
use varuna_plan::{Decision, Generation, StateId, Step, Unit};

/// Data that has just arrived.
pub(super) enum Staged {
    /// The state of a unit.
    State(Unit, StateId, UnitState),
    /// The gradient of a followed unit, and the state that it leads to.
    Gradient(Unit, StateId, Vec<f32>),
    /// The gradient of a unit whose spare copy this worker keeps.
    Prepared(PreparedHeader, Vec<f32>),
}

/// A gradient that waits for the decision of its step.
struct Waiting {
    run_gen: Generation,
    step: Step,
    gradient: Vec<f32>,
}

/// All data that has arrived.
#[derive(Default)]
pub(super) struct Arrivals {
    staged: Option<Staged>,
    /// Waiting data by unit, the oldest first.
    waiting: BTreeMap<Unit, VecDeque<Waiting>>,
}

impl Arrivals {
    pub(super) fn stage(&mut self, staged: Staged) {
        self.staged = Some(staged);
    }

    /// What the member did not take.
    pub(super) fn unstage(&mut self) -> Option<Staged> {
        self.staged.take()
    }

    /// The state that the member adopts. It takes the place of what the unit's waiting gradients of the steps before led to.
    pub(super) fn adopt(&mut self, unit: Unit, id: StateId) -> Option<UnitState> {
        if let Some(waiting) = self.waiting.get_mut(&unit) {
            waiting.retain(|w| w.step >= id.step);
        }
        match self.staged.take() {
            Some(Staged::State(u, i, state)) if (u, i) == (unit, id) => Some(state),
            _ => None,
        }
    }

    /// Keeps the gradient that has just arrived; false where it is none of this unit and step. The member takes no more than may wait; what it
    /// has given up since is forgotten as others come.
    pub(super) fn keep(&mut self, unit: Unit, step: Step) -> bool {
        let Some(Staged::Prepared(header, gradient)) = self.staged.take() else {
            return false;
        };
        if (header.unit, header.step) != (unit, step) {
            return false;
        }
        let waiting = self.waiting.entry(unit).or_default();
        // Of a step that was run again, or of a copy that was given up: this one counts.
        waiting.retain(|w| w.step < step);
        while waiting.len() >= WAITING_GRADIENTS_MAX as usize {
            waiting.pop_front();
        }
        waiting.push_back(Waiting {
            run_gen: header.run_gen,
            step,
            gradient,
        });
        true
    }

    /// The gradient that the decision is to be applied with: the one that has just arrived with it, or the one that was kept.
    pub(super) fn gradient(&mut self, unit: Unit, decision: &Decision) -> Option<Vec<f32>> {
        match self.staged.take() {
            Some(Staged::Gradient(u, i, gradient)) if (u, i) == (unit, decision.id) => return Some(gradient),
            staged => self.staged = staged,
        }
        let waiting = self.waiting.get_mut(&unit)?;
        let of_step = |w: &Waiting| w.run_gen == decision.id.run_gen && w.step == decision.parent.step;
        let at = waiting.iter().position(of_step)?;
        // Those before it belong to steps that are over.
        let taken = waiting.drain(..=at).next_back();
        taken.map(|w| w.gradient)
    }

    /// The member has given up all state but that of its units; no gradient waits any more.
    pub(super) fn free(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::OptimizerProgress;
    use varuna_plan::state::{Chain, UnitNorm};

    const UNIT: Unit = Unit(1);

    fn at(run_gen: u64, step: u64) -> StateId {
        StateId {
            run_gen: Generation(run_gen),
            step: Step(step),
            chain: Chain(step),
        }
    }

    fn norm() -> UnitNorm {
        UnitNorm {
            norm2: 1.0,
            overflow: false,
            loss: 0.0,
            eval_loss: None,
            before: OptimizerProgress::START,
        }
    }

    /// A step's gradient arrives. Returns whether it is kept.
    fn keep(arrivals: &mut Arrivals, run_gen: u64, step: u64, value: f32) -> bool {
        let header = PreparedHeader {
            unit: UNIT,
            run_gen: Generation(run_gen),
            step: Step(step),
            norm: norm(),
            elements: 1,
        };
        arrivals.stage(Staged::Prepared(header, vec![value]));
        arrivals.keep(UNIT, Step(step))
    }

    fn gradient(arrivals: &mut Arrivals, run_gen: u64, step: u64) -> Option<f32> {
        let decision = Decision::conclude(at(run_gen, step), Generation(run_gen), &[norm()], None);
        arrivals.gradient(UNIT, &decision).map(|g| g[0])
    }

    #[test]
    fn kept_gradient_needs_its_generation_and_step() {
        let mut arrivals = Arrivals::default();
        assert!(keep(&mut arrivals, 2, 5, 0.5) && keep(&mut arrivals, 2, 6, 0.6));
        assert_eq!(gradient(&mut arrivals, 3, 5), None);
        assert_eq!(gradient(&mut arrivals, 2, 4), None);
        assert_eq!(gradient(&mut arrivals, 2, 5), Some(0.5));
        assert_eq!(gradient(&mut arrivals, 2, 5), None, "once");
        assert_eq!(gradient(&mut arrivals, 2, 6), Some(0.6));
    }

    #[test]
    fn gradient_of_a_repeated_step_replaces_the_first() {
        let mut arrivals = Arrivals::default();
        keep(&mut arrivals, 2, 5, 0.5);
        keep(&mut arrivals, 3, 5, 0.7);
        assert_eq!(gradient(&mut arrivals, 2, 5), None);
        assert_eq!(gradient(&mut arrivals, 3, 5), Some(0.7));
    }

    #[test]
    fn waiting_gradients_are_bounded() {
        let mut arrivals = Arrivals::default();
        for step in 0..20 {
            keep(&mut arrivals, 2, step, 1.0);
        }
        assert_eq!(arrivals.waiting[&UNIT].len(), WAITING_GRADIENTS_MAX as usize);
        assert!(arrivals.adopt(UNIT, at(2, 18)).is_none(), "no state has arrived");
        assert_eq!(gradient(&mut arrivals, 2, 17), None);
        assert_eq!(gradient(&mut arrivals, 2, 18), Some(1.0));
        arrivals.free();
        assert_eq!(gradient(&mut arrivals, 2, 19), None);
    }

    #[test]
    fn what_the_member_does_not_take_is_gone() {
        let mut arrivals = Arrivals::default();
        let state = UnitState {
            progress: OptimizerProgress::START,
            data: vec![1.0; 3],
        };
        arrivals.stage(Staged::State(UNIT, at(2, 1), state.clone()));
        assert!(arrivals.unstage().is_some());
        assert!(arrivals.adopt(UNIT, at(2, 1)).is_none());
        arrivals.stage(Staged::State(UNIT, at(2, 1), state.clone()));
        assert!(!arrivals.keep(UNIT, Step(1)), "a state is no gradient");
        arrivals.stage(Staged::State(UNIT, at(2, 1), state.clone()));
        assert_eq!(arrivals.adopt(UNIT, at(2, 1)), Some(state));
    }
}
