//! Plans of equal pipelines, cut as frameworks cut that know nothing of costs.

use varuna_plan::{
    Pipeline, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec, SegmentRange, Shape, Stage,
    WorkerId,
};

/// A plan of equal pipelines that was run, as the cost model sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    /// Number of pipelines (D).
    pub data_parallel: usize,
    /// Stages of each pipeline (P).
    pub pipeline_parallel: usize,
    /// Samples in a step.
    pub global_batch_size: u64,
    /// Samples in a micro-batch.
    pub micro_batch_size: u32,
}

/// Cuts by count: all segments but the first are dealt out evenly, the remainder to the stages before the last; the first
/// segment joins the first stage. None where there are more stages than that can fill. This is how frameworks cut that
/// know nothing of costs.
#[must_use]
pub fn counted_cuts(segments: u32, stages: usize) -> Option<Vec<SegmentRange>> {
    let units = segments.saturating_sub(1);
    let p = u32::try_from(stages)
        .ok()
        .filter(|p| *p >= 1 && *p <= units.max(1))?;
    let (each, extra) = (units / p, units % p);
    let mut start = 0;
    let cut = |s: u32| {
        // With extra < p the stages p - 1 - extra .. p - 1 take one more.
        let more = u32::from(s + 1 < p && s + 1 + extra >= p) + u32::from(s == 0);
        let range = SegmentRange {
            start,
            end: start + each + more,
        };
        start = range.end;
        range
    };
    Some((0..p).map(cut).collect())
}

impl Grid {
    /// The plan that was run, by frameworks that cut stages like this: 1F1B, and as many samples for each pipeline as the largest
    /// share has.
    #[must_use]
    pub fn shape(&self, stages: &[SegmentRange]) -> Shape {
        let each = self.global_batch_size.div_ceil(self.data_parallel.max(1) as u64);
        let mut workers = (1..).map(WorkerId);
        let mut pipeline = |i: u64| Pipeline {
            stages: stages
                .iter()
                .zip(&mut workers)
                .map(|(segments, worker)| Stage {
                    worker,
                    segments: *segments,
                    recompute: None,
                })
                .collect(),
            samples: SampleRange {
                start: i * each,
                end: (i + 1) * each,
            },
        };
        Shape {
            pipelines: (0..self.data_parallel as u64).map(&mut pipeline).collect(),
            spares: Vec::new(),
            micro_batch_size: self.micro_batch_size.max(1),
            schedule: ScheduleSpec {
                kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
                recompute: Recompute::None,
            },
            predicted: Prediction::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_cuts_are_those_of_the_measured_run() {
        let lengths = |p| -> Vec<u32> { counted_cuts(50, p).unwrap().iter().map(|r| r.len()).collect() };
        // 48 blocks and the head are 49 units; the embedding is part of the first stage.
        assert_eq!(lengths(1), [50]);
        assert_eq!(lengths(6), [9, 8, 8, 8, 9, 8]);
        assert_eq!(lengths(8), [7, 6, 6, 6, 6, 6, 7, 6]);
        for p in 1..=49 {
            let cuts = counted_cuts(50, p).unwrap();
            assert!(cuts.len() == p && cuts[0].start == 0 && cuts[p - 1].end == 50);
            assert!(cuts.windows(2).all(|w| w[0].end == w[1].start) && cuts.iter().all(|r| !r.is_empty()));
        }
        assert_eq!(counted_cuts(50, 50), None);
    }
}
