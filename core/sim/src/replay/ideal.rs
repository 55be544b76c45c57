//! The reference for goodput: at each moment the fastest plan for the available workers, with no cost of change.

use varuna_plan::{CostPlanner, Layout, PlanRequest, WorkerId, WorkerInfo};

/// Best throughput by number of workers.
#[derive(Clone, PartialEq, Debug)]
pub struct Ideal {
    /// Samples per nanosecond with at most this many workers, from 0 workers on; 0.0 if no plan exists.
    rates: Vec<f64>,
}

impl Ideal {
    /// Asks the planner for each number of workers up to `most`; the fastest plan counts, also where the planner prefers
    /// another one for its redundancy.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "batch sizes")]
    pub fn new(planner: &CostPlanner, layout: Layout, global_batch_size: u64, most: usize) -> Ideal {
        let mut rates = vec![0.0f64];
        for n in 1..=most {
            let worker = |id: u64| WorkerInfo::nominal(WorkerId(id), format!("node{id}"));
            let workers = (1..=n as u64).map(worker).collect();
            let request = PlanRequest::first(workers, layout, global_batch_size);
            let found = planner.explain(&request).ok().map(|e| {
                let others = e.runners_up.iter().map(|r| r.step_ms);
                others.fold(e.shape.predicted.step_ms, f64::min)
            });
            let rate = found.map_or(0.0, |step_ms| global_batch_size as f64 / (step_ms * 1e6));
            rates.push(rate.max(rates[n - 1]));
        }
        Ideal { rates }
    }

    /// Samples a nanosecond with at most `n` workers.
    #[must_use]
    pub fn rate(&self, n: usize) -> f64 {
        let last = self.rates.len() - 1;
        self.rates[n.min(last)]
    }
}
