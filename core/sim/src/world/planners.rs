//! The planner of a job: one that draws, or in some schedules the one that is shipped, with the costs of a small model.

use super::job::Job;
use crate::planner::RandomPlanner;
use varuna_model::{ModelSpec, SegmentKind, SegmentSpec};
use varuna_plan::{Constraints, CostPlanner, Costs, Device, Planner, Recompute, ScheduleKind, ScheduleSpec};

impl Job {
    /// Draws from `seed` where the planner is one that draws.
    pub(super) fn planner(&self, seed: u64) -> Box<dyn Planner + Send> {
        if self.shipped_planner {
            Box::new(self.cost_planner())
        } else {
            Box::new(RandomPlanner::new(seed, self.worker_segments))
        }
    }

    fn cost_planner(&self) -> CostPlanner {
        let min = u32::try_from(self.min_workers()).unwrap_or(1);
        let schedule = |kind| ScheduleSpec {
            kind,
            recompute: Recompute::None,
        };
        CostPlanner {
            costs: Costs::estimate(&self.model(), Device::CPU_CORE),
            constraints: Constraints {
                min_workers: min,
                max_workers: u32::MAX,
                micro_batch_size: Some(1),
                min_depth: min,
                max_depth: None,
                schedules: vec![
                    schedule(ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 }),
                    schedule(ScheduleKind::Interleaved { chunks: 2 }),
                ],
                device_memory_bytes: None,
            },
        }
    }

    /// A step of it takes some tens of milliseconds, as in the world.
    fn model(&self) -> ModelSpec {
        let segment = SegmentSpec {
            kind: SegmentKind::Block,
            parameters: 10_000,
            forward_flops: 4.0e7,
            backward_flops: 8.0e7,
            saved_elements: 10_000,
            working_elements: 0,
            input_elements: 1_000,
        };
        ModelSpec {
            segments: vec![segment; self.layout.segments as usize],
            tied_parameters: if self.layout.tied { 10_000 } else { 0 },
        }
    }
}
