//! Arbitrary inputs to one coordinator or one member: what the simulated world never does, such as drains, refused writes,
//! failed fetches, a Stop in the middle of a write, and reports that contradict each other.
//!
//! The machines must take all of it without a panic, and their effects are compared with a golden file. Nothing here checks that
//! what they do is right.

mod coordinator;
mod member;

pub use coordinator::coordinator_with_arbitrary_inputs;
pub use member::member_with_arbitrary_inputs;

use crate::rng::Rng;
use varuna_plan::state::{Chain, UnitNorm};
use varuna_plan::{Decision, Generation, Layout, StateId, Step, Unit, WorkerId};

/// The model of all runs.
const LAYOUT: Layout = Layout {
    segments: 2,
    tied: false,
};
/// Inputs of one run.
const INPUTS: usize = 400;

/// Draws values that are small, so that they often agree with each other.
struct Draw {
    rng: Rng,
}

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.rng.below(n)
    }
    fn chance(&mut self, percent: u64) -> bool {
        self.rng.chance(percent)
    }
    fn number(&mut self) -> u64 {
        self.below(8)
    }
    fn generation(&mut self, likely: Generation) -> Generation {
        if self.chance(75) {
            likely
        } else {
            Generation(self.number())
        }
    }
    fn worker(&mut self) -> WorkerId {
        WorkerId(self.below(4) + 1)
    }
    fn unit(&mut self) -> Unit {
        Unit(self.rng.pick(&[0, 0, 1, 1, 2]).unwrap_or(0))
    }
    fn value(&mut self) -> f64 {
        self.rng
            .pick(&[0.0, 1.0, 2.5, f64::INFINITY, 1e-308])
            .unwrap_or(0.0)
    }
    fn state(&mut self) -> StateId {
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
    fn norm(&mut self) -> UnitNorm {
        UnitNorm {
            norm2: self.value(),
            overflow: self.chance(10),
            loss: self.value(),
            eval_loss: None,
        }
    }
    fn decision(&mut self) -> Decision {
        let (parent, mut id) = (self.state(), self.state());
        id.step = parent.step.next();
        Decision {
            parent,
            id,
            norm2: self.value(),
            overflow: self.chance(10),
            loss: self.value(),
            eval_loss: None,
            switch: None,
        }
    }
    fn maybe_decision(&mut self) -> Option<Decision> {
        self.chance(40).then(|| self.decision())
    }
}
