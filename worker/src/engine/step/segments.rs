//! Forwards of a stage's segments, each timed, cut from each other.

use super::{EngineError, Kept, Lap, Place, Run, Work};
use crate::model::dropout::Dropout;
use crate::model::forward;
use crate::state::UnitBuffers;
use std::collections::BTreeMap;
use std::time::Instant;
use tch::Tensor;
use varuna_plan::Unit;

impl Run<'_> {
    pub(super) fn lap(&mut self, segment: u32, work: Work, samples: usize, start: Instant) {
        self.laps.push(Lap {
            segment,
            work,
            samples: u32::try_from(samples).unwrap_or(u32::MAX),
            took: start.elapsed(),
        });
    }

    /// The forward of one segment.
    pub(super) fn segment(
        &mut self,
        work: Work,
        units: &BTreeMap<Unit, UnitBuffers>,
        segment: u32,
        input: &Tensor,
        numbers: &[u64],
    ) -> Result<Tensor, EngineError> {
        let start = Instant::now();
        let dropout = Dropout {
            probability: self.config.model.dropout,
            seed: self.config.training.seed,
            step: self.step,
            samples: numbers,
        };
        let output = forward(&self.config.model, segment, units, input, &dropout)?;
        self.lap(segment, work, numbers.len(), start);
        Ok(output)
    }

    /// All segments of the stage, cut from each other; of those that are not kept, only the inputs. Also the stage's output.
    pub(super) fn segments(
        &mut self,
        place: Place,
        work: Work,
        units: &BTreeMap<Unit, UnitBuffers>,
        input: Tensor,
        numbers: &[u64],
        keep: impl Fn(u32) -> bool,
    ) -> Result<(Tensor, Vec<Kept>), EngineError> {
        let mut x = input;
        let mut kept = Vec::new();
        for segment in place.segments.start..place.segments.end {
            let input = if segment == 0 {
                x
            } else {
                x.detach().set_requires_grad(true)
            };
            if keep(segment) {
                x = self.segment(work, units, segment, &input, numbers)?;
                kept.push(Kept::Graph(input, x.shallow_clone()));
            } else {
                let _guard = tch::no_grad_guard();
                x = self.segment(work, units, segment, &input, numbers)?;
                kept.push(Kept::Input(input));
            }
        }
        Ok((x, kept))
    }
}
