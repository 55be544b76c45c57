//! The planner: the best shape for the workers there are, each one used or named a spare with the reason.
//!
//! `search` finds candidates: every number of pipelines and every pair of depths is scored in closed form, the best few are
//! simulated. `placement` puts workers on a candidate's stages so that state stays where it is. `refine` improves the choice
//! for workers of unequal speed and for interleaved schedules. Pure and deterministic: the same request gives the same shape.

mod candidate;
mod estimated;
mod explain;
mod infeasible;
mod placement;
mod problem;
mod refine;
mod request;
mod search;
mod spare_costs;
mod state_moves;

use crate::cost::Costs;
use crate::document::Shape;
use crate::layout::{Layout, SegmentRange};
use crate::predict::predict;
use crate::spare_copies::SpareCosts;
use candidate::Candidate;
use problem::{Problem, speeds, topology};
use std::collections::BTreeMap;

pub use estimated::EstimatedPlanner;
pub use explain::{Explained, RunnerUp};
pub use request::{Constraints, Infeasible, PlanRequest, Planner, WorkerInfo};

/// The planner over costs.
#[derive(Clone, PartialEq, Debug)]
pub struct CostPlanner {
    /// What segments cost.
    pub costs: Costs,
    /// What the job allows.
    pub constraints: Constraints,
}

impl Planner for CostPlanner {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        Ok(self.decide(request)?.shape)
    }

    fn expected_ms(&self, segment: u32, samples: u32) -> Option<f64> {
        let range = SegmentRange {
            start: segment,
            end: segment + 1,
        };
        let known = (segment as usize) < self.costs.segments.len();
        known.then(|| self.costs.forward_ms(range, samples) + self.costs.backward_ms(range, samples))
    }

    fn predicted_ms(&self, shape: &Shape, workers: &[WorkerInfo]) -> Option<f64> {
        Some(predict(&self.costs, shape, &speeds(workers), topology(workers)).step_ms)
    }

    fn spare_costs(&self, shape: &Shape, layout: &Layout, workers: &[WorkerInfo]) -> SpareCosts {
        let planner = self.sharing_among(shape.pipelines.len(), layout);
        spare_costs::spare_costs(&planner, shape, *layout, workers)
    }

    fn learn(&mut self, factors: &BTreeMap<u32, f64>) {
        // Workers that take turns on shared cores look slow to themselves: how long segments take in all is the profile's to
        // say there, and observations correct their proportions.
        let whole = |segment: &u32| self.expected_ms(*segment, 1).unwrap_or(0.0);
        let scale = match &self.costs.host {
            Some(_) => {
                let before: f64 = factors.keys().map(whole).sum();
                let after: f64 = factors.iter().map(|(s, f)| whole(s) * f).sum();
                before / after.max(f64::MIN_POSITIVE)
            }
            None => 1.0,
        };
        for (segment, factor) in factors {
            if let Some(cost) = self.costs.segments.get_mut(*segment as usize) {
                cost.scale_compute(factor * scale);
            }
        }
    }
}

/// What the planner decided.
struct Decision {
    shape: Shape,
    /// All simulated candidates, fastest first, and the one that the shape is made of.
    found: Vec<Candidate>,
    chosen: Candidate,
    moved_bytes: u64,
    /// Compositions scored in closed form.
    scored: u64,
}

impl CostPlanner {
    /// The best shape for the request, and why.
    ///
    /// # Errors
    /// A sentence that says what is missing.
    pub fn explain(&self, request: &PlanRequest) -> Result<Explained, Infeasible> {
        let decision = self.decide(request)?;
        let chosen = &decision.chosen;
        let pipelines = decision.shape.pipelines.len();
        let as_shared = self.sharing_among(pipelines, &request.layout);
        Ok(Explained {
            memory_bytes: as_shared
                .problem(request, pipelines)
                .memory_bytes(&decision.shape),
            parts: chosen.parts,
            moved_bytes: decision.moved_bytes,
            runners_up: explain::runners_up(chosen, &decision.found),
            scored: decision.scored,
            simulated: decision.found.len(),
            shape: decision.shape,
        })
    }

    fn problem<'a>(&'a self, request: &'a PlanRequest, min_pipelines: usize) -> Problem<'a> {
        Problem {
            costs: &self.costs,
            constraints: &self.constraints,
            request,
            topology: topology(&request.workers),
            min_pipelines: if bug!(CountSharesOfOthers) {
                1
            } else {
                min_pipelines
            },
        }
    }

    /// The planner of the same job where at least so many pipelines share out the state of each segment.
    fn sharing_among(&self, pipelines: usize, layout: &Layout) -> CostPlanner {
        let mut planner = self.clone();
        if layout.ranges > 1 && !bug!(CountStateUnshared) {
            let held = layout.ranges_held(pipelines);
            planner.costs.parameter = self.costs.parameter.sharded(held, layout.ranges.into());
        }
        planner
    }

    /// The numbers of pipelines from which on a worker holds less of each segment's state, the least first. Where nothing limits memory,
    /// or nothing is shared out, it makes no difference.
    fn sharings(&self, request: &PlanRequest) -> Vec<usize> {
        let problem = self.problem(request, 1);
        let is_limited = request.workers.iter().any(|w| problem.capacity(w) < u64::MAX);
        let mut sharings = vec![1];
        if request.layout.ranges > 1 && is_limited {
            let mut least = request.layout.ranges_held(1);
            for pipelines in 2..=request.workers.len() {
                let held = request.layout.ranges_held(pipelines);
                if held < least {
                    sharings.push(pipelines);
                    least = held;
                }
            }
        }
        sharings
    }

    /// The best shape of those that are found with what a parameter takes if at least 1, 3, 4 and so on pipelines share out state: memory decides
    /// which cuts are possible, and depends on how many pipelines there are.
    fn decide(&self, request: &PlanRequest) -> Result<Decision, Infeasible> {
        let mut best: Result<Decision, Infeasible> = Err(Infeasible(String::new()));
        for (i, pipelines) in self.sharings(request).into_iter().enumerate() {
            let planner = self.sharing_among(pipelines, &request.layout);
            let decided = planner.decide_among(request, pipelines);
            let problem = self.problem(request, pipelines);
            let ms = |d: &Decision| problem.effective_ms(&d.shape.predicted);
            match (&best, &decided) {
                (Ok(best), Ok(other)) if ms(other) >= ms(best) => {}
                (Ok(_), Err(_)) => {}
                // What is said of the least sharing is true of all.
                (Err(_), Err(_)) if i > 0 => {}
                _ => best = decided,
            }
        }
        best
    }

    fn decide_among(&self, request: &PlanRequest, pipelines: usize) -> Result<Decision, Infeasible> {
        let problem = self.problem(request, pipelines);
        let workers = infeasible::offered(&problem)?;
        let pools = search::search(problem, &workers);
        let Some((mut chosen, placed)) = search::choice::choose(&problem, &pools, workers.len()) else {
            return Err(infeasible::why_no_plan(&problem, workers.len()));
        };
        let mut shape = chosen.shape(&placed.workers, placed.move_ms, self.costs.calibrated);
        let mut moved_bytes = placed.moved_bytes;
        let mut found: Vec<Candidate> = Vec::new();
        let fastest = search::choice::fastest_of_all(&problem, &pools);
        let bases = [request.parent.as_ref(), fastest.as_ref(), Some(&shape)];
        if let Some(uneven) = refine::uneven_speeds::refine(&problem, &bases, &shape.predicted) {
            moved_bytes = state_moves::moved_bytes(&problem, &uneven);
            shape = uneven;
        }
        if let Some((interleaved, described)) = refine::interleave::refine(&problem, &shape, &pools) {
            moved_bytes = state_moves::moved_bytes(&problem, &interleaved);
            found.push(std::mem::replace(&mut chosen, described));
            shape = interleaved;
        }
        if shape.pipelines.len() < pipelines && !bug!(CountSharesOfOthers) {
            return Err(infeasible::why_no_plan(&problem, workers.len()));
        }
        refine::spares::name(&problem, &mut shape, &workers, &pools);
        let scored = pools.iter().map(search::PoolSearch::scored).sum();
        let of_pools = pools.into_iter().flat_map(|pool| pool.candidates);
        let mut found: Vec<Candidate> = of_pools.chain(found).collect();
        found.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
        Ok(Decision {
            shape,
            found,
            chosen,
            moved_bytes,
            scored,
        })
    }
}

#[cfg(test)]
mod tests;
