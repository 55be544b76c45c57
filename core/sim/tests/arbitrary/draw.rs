//! Small random values, so that they are often equal.

use varuna_plan::state::{Chain, UnitNorm};
use varuna_plan::{Decision, Generation, Layout, OptimizerProgress, StateId, Step, Unit, WorkerId};
use varuna_sim::Rng;

/// The layout of the model in all runs.
pub(crate) const LAYOUT: Layout = Layout::new(2, false);
/// Number of inputs of one run.
pub(crate) const INPUTS: usize = 400;

/// A source of random values.
pub(crate) struct Draw {
    pub(crate) rng: Rng,
}

impl Draw {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.rng.below(n)
    }
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.rng.chance(percent)
    }
    pub(crate) fn number(&mut self) -> u64 {
        self.below(8)
    }
    pub(crate) fn generation(&mut self, likely: Generation) -> Generation {
        if self.chance(75) {
            likely
        } else {
            Generation(self.number())
        }
    }
    pub(crate) fn worker(&mut self) -> WorkerId {
        WorkerId(self.below(4) + 1)
    }
    pub(crate) fn unit(&mut self) -> Unit {
        Unit(self.rng.pick(&[0, 0, 1, 1, 2]).unwrap_or(0))
    }
    pub(crate) fn value(&mut self) -> f64 {
        self.rng
            .pick(&[0.0, 1.0, 2.5, f64::INFINITY, 1e-308])
            .unwrap_or(0.0)
    }
    pub(crate) fn state(&mut self) -> StateId {
        let step = self.below(5);
        if step == 0 {
            return StateId::INITIAL;
        }
        let run_gen = Generation(1 + self.below(3));
        StateId {
            run_gen,
            step: Step(step),
            chain: Chain(run_gen.0 * 100 + step),
        }
    }
    pub(crate) fn norm(&mut self) -> UnitNorm {
        UnitNorm {
            norm2: self.value(),
            overflow: self.chance(10),
            loss: self.value(),
            eval_loss: None,
            before: OptimizerProgress::START,
        }
    }
    pub(crate) fn decision(&mut self) -> Decision {
        let (parent, mut id) = (self.state(), self.state());
        id.step = parent.step.next();
        Decision {
            parent,
            id,
            norm2: self.value(),
            overflow: self.chance(10),
            before: OptimizerProgress::START,
            loss: self.value(),
            eval_loss: None,
            switch: None,
        }
    }
    pub(crate) fn maybe_decision(&mut self) -> Option<Decision> {
        self.chance(40).then(|| self.decision())
    }
}
