//! What the modelled engine has instead of tensors: bits that are derived from all inputs.

use varuna_plan::state::{UnitNorm, mix};
use varuna_plan::{Decision, Generation, LossScaling, OptimizerProgress, ScaleFactor, StateId, Unit};

/// A worker's share of a unit's gradient.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Contribution {
    /// For the checker: the generation that computed it.
    pub(crate) run_gen: Generation,
    /// Samples covered.
    pub(crate) samples: (u64, u64),
    /// Roles for a tied unit: 1 = of the first segment, 2 = of the last segment.
    pub(crate) roles: u8,
    pub(crate) bits: u64,
}

/// A unit's state on one worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    pub(crate) id: StateId,
    pub(crate) state: UnitState,
}

/// A unit's state in a worker, a checkpoint or a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnitState {
    pub(crate) bits: u64,
    pub(crate) progress: OptimizerProgress,
}

impl UnitState {
    /// The state that the job's seed gives.
    pub(crate) fn initial(unit: Unit) -> UnitState {
        UnitState {
            bits: initial_bits(unit),
            progress: OptimizerProgress::initial(&SCALING),
        }
    }
}

/// The value that an engine reads for a unit that it does not hold: the checker sees that it was used.
pub(super) const NOT_HELD: Held = Held {
    id: StateId::INITIAL,
    state: UnitState {
        bits: 0xDEAD,
        progress: OptimizerProgress::START,
    },
};

/// The loss scaling of all jobs: within a few steps the scale falls to its minimum and rises again.
pub(crate) const SCALING: LossScaling = LossScaling::Dynamic {
    initial: ScaleFactor::two_to(3),
    minimum: ScaleFactor::ONE,
    window: 2,
};

pub(crate) fn initial_bits(unit: Unit) -> u64 {
    mix(42, u64::from(unit.0))
}

pub(crate) fn applied_bits(bits: u64, reduced: u64, decision: &Decision) -> u64 {
    if decision.overflow {
        return bits; // the step counts, and changes nothing
    }
    mix(mix(bits, reduced), decision.norm2.to_bits())
}

/// `overflow_percent`: percentage of gradients that are not finite; which ones follows from their bits.
pub(super) fn norm(reduced: u64, last: bool, overflow_percent: u64, before: OptimizerProgress) -> UnitNorm {
    if mix(reduced, 5) % 100 < overflow_percent {
        let norm2 = if reduced.is_multiple_of(2) {
            f64::INFINITY
        } else {
            f64::NAN
        };
        return UnitNorm::new(norm2, if last { norm2 } else { 0.0 }, None, before);
    }
    // 52 bits are exact in a f64
    let part = |bits: u64| f64::from(u32::try_from(bits & 0xffff_ffff).unwrap_or(0));
    let norm2 = part(reduced >> 32) * 4_294_967_296.0 + part(reduced);
    UnitNorm::new(norm2, if last { part(reduced) / 1e9 } else { 0.0 }, None, before)
}
