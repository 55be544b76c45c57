//! A planner that draws: any split of the workers into pipelines will do, so depths, cuts and shares vary.

use crate::rng::Rng;
use std::cell::Cell;
use varuna_plan::{
    Infeasible, Pipeline, PlanRequest, Planner, Prediction, Recompute, SampleRange, ScheduleKind,
    ScheduleSpec, SegmentRange, Shape, Stage, WorkerId,
};

/// Draws shapes from a seed. Each one predicts a shorter step than the one before, so that every change of workers is taken.
pub struct RandomPlanner {
    seed: Cell<u64>,
    drawn: Cell<u32>,
    /// Most segments that one worker can hold.
    cap: u32,
}

impl RandomPlanner {
    /// Draws from `seed`; a worker holds at most `cap` segments.
    #[must_use]
    pub fn new(seed: u64, cap: u32) -> Self {
        Self {
            seed: Cell::new(seed),
            drawn: Cell::new(0),
            cap,
        }
    }

    fn pipelines(&self, rng: &mut Rng, request: &PlanRequest) -> Vec<Pipeline> {
        let segments = request.layout.segments;
        let min = segments.div_ceil(self.cap);
        let mut left: Vec<WorkerId> = request.workers.iter().map(|w| w.id).collect();
        for i in (1..left.len()).rev() {
            let j = rng.below(i as u64 + 1);
            left.swap(i, usize::try_from(j).unwrap_or(0));
        }
        let mut pipelines: Vec<Pipeline> = Vec::new();
        while left.len() >= min as usize && (pipelines.len() as u64) < request.global_batch_size {
            let there = u32::try_from(left.len()).unwrap_or(u32::MAX);
            let most = segments.min(there);
            let mut depth = u32::try_from(rng.range(u64::from(min), u64::from(most))).unwrap_or(min);
            if there - depth < min {
                depth = most; // nobody idle when it can be helped
            }
            let mut start = 0;
            let mut stages = Vec::new();
            for end in self.cuts(rng, segments, depth) {
                let Some(worker) = left.pop() else { break };
                stages.push(Stage {
                    recompute: None,
                    worker,
                    segments: SegmentRange { start, end },
                });
                start = end;
            }
            pipelines.push(Pipeline {
                stages,
                samples: SampleRange { start: 0, end: 0 },
            });
        }
        let count = pipelines.len() as u64;
        let mut start = 0;
        for (i, pipeline) in (1..).zip(&mut pipelines) {
            let after = count - i;
            let most = request.global_batch_size - after;
            let end = if after == 0 {
                most
            } else {
                rng.range(start + 1, most)
            };
            pipeline.samples = SampleRange { start, end };
            start = end;
        }
        pipelines
    }

    /// Every third plan goes round its workers twice, where each pipeline has two workers at least and segments enough.
    fn interleaved(&self, pipelines: &mut [Pipeline], segments: u32) -> bool {
        let fits = |p: &Pipeline| {
            let stages = u32::try_from(2 * p.stages.len()).unwrap_or(u32::MAX);
            stages > 2 && stages <= segments && 2 * segments.div_ceil(stages) <= self.cap
        };
        let all = self.drawn.get() % 3 == 2 && pipelines.iter().all(fits);
        for pipeline in pipelines.iter_mut().filter(|_| all) {
            let workers: Vec<WorkerId> = pipeline.stages.iter().map(|s| s.worker).collect();
            let stages = u32::try_from(2 * workers.len()).unwrap_or(u32::MAX);
            let stage = |(s, worker): (u32, &WorkerId)| Stage {
                recompute: None,
                worker: *worker,
                segments: SegmentRange {
                    start: s * segments / stages,
                    end: (s + 1) * segments / stages,
                },
            };
            pipeline.stages = (0..stages).zip(workers.iter().cycle()).map(stage).collect();
        }
        all
    }

    fn cuts(&self, rng: &mut Rng, segments: u32, depth: u32) -> Vec<u32> {
        let mut ends = Vec::new();
        let mut at = 0;
        for after in (1..depth).rev() {
            let low = (at + 1).max(segments.saturating_sub(after * self.cap));
            let high = (at + self.cap).min(segments - after);
            at = u32::try_from(rng.range(u64::from(low), u64::from(high))).unwrap_or(low);
            ends.push(at);
        }
        ends.push(segments);
        ends
    }
}

impl Planner for RandomPlanner {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        let min = request.layout.segments.div_ceil(self.cap);
        if request.workers.len() < min as usize {
            return Err(Infeasible(format!(
                "{} workers, needs {min}",
                request.workers.len()
            )));
        }
        let mut rng = Rng(self.seed.get());
        let mut pipelines = self.pipelines(&mut rng, request);
        let interleaved = self.interleaved(&mut pipelines, request.layout.segments);
        self.seed.set(rng.draw());
        self.drawn.set(self.drawn.get() + 1);
        Ok(Shape {
            pipelines,
            spares: Vec::new(),
            micro_batch_size: 1,
            schedule: ScheduleSpec {
                kind: match interleaved {
                    true => ScheduleKind::Interleaved { chunks: 2 },
                    false => ScheduleKind::Gpipe,
                },
                recompute: Recompute::None,
            },
            predicted: Prediction {
                step_ms: 90.0 / f64::from(self.drawn.get()),
                bubble: 0.0,
                move_ms: 0.0,
                calibrated: false,
            },
        })
    }
}
