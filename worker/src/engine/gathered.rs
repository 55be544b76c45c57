//! What segments are computed with of whose state this worker holds only ranges: made by the first step that needs it, and dropped where its
//! memory is needed for something else. It never holds state alone: masters that lie there keep its memory alive.

use super::panics::caught;
use super::{Engine, EngineError};
use crate::memory::return_freed;
use crate::state::GatheredUnit;
use std::collections::BTreeSet;
use varuna_plan::{Plan, Unit};

impl Engine {
    /// Keeps the tensors for computing segments of whose state this worker holds only a part, and drops all others of that kind. In single
    /// precision the masters of the ranges that the plan gives this worker then lie there, and no other state that is held or read does: the
    /// owners' parameters may be written to all other ranges.
    pub(super) fn make_gathered(&mut self, plan: &Plan) -> Result<(), EngineError> {
        let needed = match plan.layout.ranges {
            1 => Vec::new(),
            _ => plan.whole_units(self.config.me),
        };
        let own: BTreeSet<Unit> = plan.units(self.config.me).into_iter().collect();
        // First: what lies in tensors that are dropped must not keep them alive while new ones need memory.
        for (unit, held) in &mut self.units {
            if !own.contains(unit) {
                held.stand_alone()?;
                held.forget_sum();
            }
        }
        self.gathered.retain(|whole, _| needed.contains(whole));
        for whole in needed {
            let ranges = plan.layout.ranges_of(whole);
            let ranges: Vec<Unit> = ranges.filter(|unit| own.contains(unit)).collect();
            self.make_gathered_unit(whole, &ranges)?;
        }
        Ok(())
    }

    /// The same for one segment, of which this worker holds these ranges.
    fn make_gathered_unit(&mut self, whole: Unit, ranges: &[Unit]) -> Result<(), EngineError> {
        let mut here = match self.gathered.remove(&whole) {
            Some(here) => here,
            None => self.new_gathered(whole)?,
        };
        let laid = self.lay_masters(&mut here, ranges);
        let laid = match laid {
            // A reader of former state, as for a checkpoint that is still written, keeps the old memory for as long as it reads.
            Ok(false) => self.new_gathered(whole).and_then(|new| {
                here = new;
                self.lay_masters(&mut here, ranges).map(drop)
            }),
            laid => laid.map(drop),
        };
        // Also where there is no memory for another one: masters lie there, and the next step may find that nobody reads it any more.
        self.gathered.insert(whole, here);
        laid
    }

    pub(super) fn new_gathered(&self, whole: Unit) -> Result<GatheredUnit, EngineError> {
        Ok((self.gathered_empty)(&self.config, whole)?)
    }

    /// Moves the masters of these ranges, where they are not yet there. False where other state is still read there.
    fn lay_masters(&mut self, here: &mut GatheredUnit, ranges: &[Unit]) -> Result<bool, EngineError> {
        let layout = self.config.layout();
        let (mut lying, mut has_moved) = (0, false);
        for unit in ranges {
            // The step says what is not held.
            let Some(held) = self.units.get_mut(unit) else {
                continue;
            };
            let was_here = here.has(held);
            let elements = layout.elements_of(*unit, here.elements());
            if !held.move_within(here, elements)? {
                return Ok(false);
            }
            let is_here = here.has(held);
            lying += usize::from(is_here);
            has_moved |= is_here && !was_here;
        }
        if has_moved {
            // Else the next segment's would be taken beside what the masters of this one had.
            return_freed(self.config.backend.device)?;
        }
        Ok(here.occupied() == lying)
    }

    /// Drops the tensors that segments are computed with; the next step makes them anew. They stay where there is no memory elsewhere for masters
    /// that lie there.
    pub(super) fn drop_gathered(&mut self) {
        self.drop_gathered_but(|_| false);
    }

    /// The same for segments of which nothing is held but these spare copies: a worker without a stage runs no step that would drop them.
    pub(super) fn drop_gathered_of_copies(&mut self, copies: &[Unit]) {
        let layout = self.config.layout();
        let computed = self.units.keys().filter(|unit| !copies.contains(unit));
        let computed: BTreeSet<Unit> = computed.map(|unit| layout.whole_of(*unit)).collect();
        for (unit, held) in &mut self.units {
            if !computed.contains(&layout.whole_of(*unit)) {
                held.forget_sum();
            }
        }
        self.drop_gathered_but(|whole| computed.contains(&whole));
    }

    fn drop_gathered_but(&mut self, stays: impl Fn(Unit) -> bool) {
        let layout = self.config.layout();
        for (whole, here) in std::mem::take(&mut self.gathered) {
            if stays(whole) || caught(|| self.stand_alone(layout.ranges_of(whole))).is_err() {
                self.gathered.insert(whole, here);
            }
        }
    }

    /// Gives the masters of these units, as far as they are held, memory of their own.
    pub(super) fn stand_alone(&mut self, units: impl Iterator<Item = Unit>) -> Result<(), EngineError> {
        for unit in units {
            if let Some(held) = self.units.get_mut(&unit) {
                held.stand_alone()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
