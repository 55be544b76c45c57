//! Forwards of a stage's segments, each timed, cut from each other.

use super::{EngineError, Kept, Place, Run, SegmentTiming, Split, Work};
use crate::model::Tables;
use crate::model::dropout::Dropout;
use crate::state::Computing;
use tch::Tensor;
use varuna_torch::Mark;

/// A [`SegmentTiming`] whose time the device knows.
pub(super) struct Marked {
    segment: u32,
    work: Work,
    samples: u32,
    pub(super) start: Mark,
    pub(super) end: Mark,
}

impl Run<'_> {
    /// Notes the work of a segment that began at `start` and has just been handed to the device.
    pub(super) fn note_timing(
        &mut self,
        segment: u32,
        work: Work,
        samples: usize,
        start: Mark,
    ) -> Result<(), EngineError> {
        self.marked.push(Marked {
            segment,
            work,
            samples: u32::try_from(samples).unwrap_or(u32::MAX),
            start,
            end: self.mark()?,
        });
        Ok(())
    }

    pub(super) fn mark(&self) -> Result<Mark, EngineError> {
        Ok(self.config.backend.streams.mark()?)
    }

    /// All timings, as the device's clock has them, and their sums. The device has done all of it.
    pub(super) fn segment_timings(&mut self) -> Result<Vec<SegmentTiming>, EngineError> {
        let mut segment_timings = Vec::with_capacity(self.marked.len());
        for marked in std::mem::take(&mut self.marked) {
            let took = marked.end.since(&marked.start)?;
            *match marked.work {
                Work::Forward => &mut self.timings.forward,
                Work::Recompute => &mut self.timings.recompute,
                Work::Backward => &mut self.timings.backward,
            } += took;
            segment_timings.push(SegmentTiming {
                segment: marked.segment,
                work: marked.work,
                samples: marked.samples,
                took,
            });
        }
        Ok(segment_timings)
    }

    /// The forward of one segment for samples of these numbers, with tables of their own where they have some.
    pub(super) fn segment(
        &mut self,
        work: Work,
        units: Computing<'_>,
        segment: u32,
        input: &Tensor,
        (numbers, tables): (&[u64], Option<&Tables>),
    ) -> Result<Tensor, EngineError> {
        // The wait for parameters is no work of the segment.
        self.exchange.use_parameters(segment)?;
        let start = self.mark()?;
        let dropout = Dropout {
            probability: self.config.model.dropout(),
            seed: self.config.training.seed,
            step: self.step,
            samples: numbers,
        };
        let tables = tables.unwrap_or(self.tables);
        let output = self.computed(units, segment, input, &dropout, tables)?;
        self.note_timing(segment, work, numbers.len(), start)?;
        Ok(output)
    }

    /// The output of one segment. What the segment needs of this step's parameters must have come (`Exchange::use_parameters`).
    pub(super) fn computed(
        &self,
        units: Computing<'_>,
        segment: u32,
        input: &Tensor,
        dropout: &Dropout<'_>,
        tables: &Tables,
    ) -> Result<Tensor, EngineError> {
        let model = &self.config.model;
        Ok(model.forward(segment, &units, input, dropout, tables)?)
    }

    /// All segments of the stage, cut from each other; of those that are not kept, only the inputs. Also the stage's output.
    pub(super) fn segments(
        &mut self,
        place: Place,
        work: Work,
        units: Computing<'_>,
        input: Tensor,
        numbers: &[u64],
        keep: impl Fn(u32) -> bool,
    ) -> Result<(Tensor, Vec<Kept>), EngineError> {
        let tables = self.document_tables(place, Split::Train, numbers)?;
        let samples = (numbers, tables.as_ref());
        let mut x = input;
        let mut kept = Vec::new();
        for segment in place.segments.start..place.segments.end {
            let input = if segment == 0 {
                x
            } else {
                x.detach().set_requires_grad(true)
            };
            if keep(segment) {
                x = self.segment(work, units, segment, &input, samples)?;
                kept.push(Kept::Graph(input, x.shallow_clone()));
            } else {
                let _guard = tch::no_grad_guard();
                x = self.segment(work, units, segment, &input, samples)?;
                kept.push(Kept::Input(input));
            }
        }
        Ok((x, kept))
    }
}
