//! The planner: the best shape for the available workers. Each one is used or is named a spare with the reason.
//!
//! `search` finds candidates: every number of pipelines and every pair of depths is scored in closed form, the best few are simulated.
//! `placement` puts workers on a candidate's stages so that little state moves. `refine` improves the choice for workers of unequal speed
//! and for interleaved schedules. `ring_order` chooses the order of pipelines if state is shared out among them. If state would be lost with
//! workers that leave (`at_risk`), all of this runs again for plans that have it in time. Pure and deterministic: the same request gives
//! the same shape.

mod at_risk;
mod candidate;
mod estimated;
mod explain;
mod held_bytes;
mod infeasible;
mod locations;
mod placement;
mod problem;
mod refine;
mod request;
mod ring_order;
mod search;
mod spare_costs;
mod state_moves;

use crate::cost::Costs;
use crate::document::Shape;
use crate::ids::WorkerId;
use crate::layout::{Layout, SegmentRange};
use crate::predict::predict;
use crate::spare_copies::SpareCosts;
use at_risk::AtRisk;
use candidate::Candidate;
use problem::{Problem, speeds, topology};
use state_moves::Holdings;
use std::collections::{BTreeMap, BTreeSet};

pub use estimated::EstimatedPlanner;
pub use explain::{Explained, RunnerUp};
pub use request::{Constraints, Departure, Infeasible, PlanRequest, Planner, WorkerInfo};

/// The planner over costs.
#[derive(Clone, PartialEq, Debug)]
pub struct CostPlanner {
    /// The costs of segments.
    pub costs: Costs,
    /// The job's constraints.
    pub constraints: Constraints,
}

impl Planner for CostPlanner {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        Ok(self.decide(request)?.shape)
    }

    fn plan_in_time(&self, request: &PlanRequest) -> Result<(Shape, Option<String>), Infeasible> {
        let decision = self.decide(request)?;
        let late = decision.late.as_ref();
        let haste = late.map(|(late, deadline_ms)| explain::haste(late, *deadline_ms));
        Ok((decision.shape, haste))
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
        let held = layout.ranges_held(shape.pipelines.len());
        let planner = self.holding(held, layout);
        spare_costs::spare_costs(&planner, shape, *layout, workers)
    }

    fn needed_bytes(
        &self,
        shape: &Shape,
        layout: &Layout,
        workers: &[WorkerInfo],
    ) -> BTreeMap<WorkerId, u64> {
        let held = layout.ranges_held(shape.pipelines.len());
        spare_costs::needed_bytes(&self.holding(held, layout), shape, *layout, workers)
    }

    fn learn(&mut self, factors: &BTreeMap<u32, f64>) {
        // Workers that take turns on shared cores look slow to themselves. So the profile decides the total time of segments, and
        // observations only correct their proportions.
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
    /// All simulated candidates, fastest first, and the one from which the shape is made.
    found: Vec<Candidate>,
    chosen: Candidate,
    /// The one that would have been chosen if leaving workers had more time to send state.
    late: Option<(Candidate, f64)>,
    moved_bytes: u64,
    /// Number of compositions scored in closed form.
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
        let held = request.layout.ranges_held(decision.shape.pipelines.len());
        Ok(Explained {
            memory_bytes: self
                .holding(held, &request.layout)
                .problem(request, held)
                .memory_bytes(&decision.shape),
            parts: chosen.parts,
            moved_bytes: decision.moved_bytes,
            runners_up: explain::runners_up(
                chosen,
                decision.late.as_ref().map(|(late, _)| late),
                &decision.found,
            ),
            scored: decision.scored,
            simulated: decision.found.len(),
            shape: decision.shape,
        })
    }

    fn problem<'a>(&'a self, request: &'a PlanRequest, ranges_held: u64) -> Problem<'a> {
        Problem {
            costs: &self.costs,
            constraints: &self.constraints,
            request,
            topology: topology(&request.workers),
            ranges_held,
            in_time: None,
        }
    }

    /// The same planner, assuming that a worker holds at most this many ranges of a segment's state.
    fn holding(&self, ranges_held: u64, layout: &Layout) -> CostPlanner {
        let mut planner = self.clone();
        if layout.ranges > 1 && !bug!(CountStateUnshared) {
            planner.costs.parameter = self.costs.parameter.sharded(ranges_held, layout.ranges.into());
        }
        planner
    }

    /// How many ranges of a segment's state a worker may have to hold, the most first, depending on the possible numbers of pipelines. If
    /// nothing limits memory, this makes no difference.
    fn ranges_held(&self, request: &PlanRequest) -> Vec<u64> {
        let layout = &request.layout;
        let all = layout.ranges_held(1);
        let problem = self.problem(request, all);
        let is_limited = request.workers.iter().any(|w| problem.capacity(w) < u64::MAX);
        let most = if is_limited { request.workers.len() } else { 1 };
        let held: BTreeSet<u64> = (1..=most)
            .map(|pipelines| layout.ranges_held(pipelines))
            .collect();
        if held.is_empty() {
            vec![all]
        } else {
            held.into_iter().rev().collect()
        }
    }

    /// The best shape. If its workers would not have state before the workers go that alone hold it, the best shape whose workers have it
    /// in time, if there is one.
    fn decide(&self, request: &PlanRequest) -> Result<Decision, Infeasible> {
        let best = self.best(request, None)?;
        let Some(at_risk) = AtRisk::new(&self.costs, request) else {
            return Ok(best);
        };
        let problem = self.problem(request, request.layout.ranges_held(1));
        let holdings = Holdings::new(&problem);
        let is_in_time = |decision: &Decision| holdings.arrives_in_time(&at_risk, &decision.shape);
        if is_in_time(&best) || !at_risk.allows(1) {
            return Ok(best);
        }
        match self.best(request, Some(&at_risk)) {
            Ok(other) if is_in_time(&other) => Ok(Decision {
                late: Some((best.chosen, at_risk.deadline_ms())),
                ..other
            }),
            _ => Ok(best),
        }
    }

    /// The best shape among those found with the memory per parameter of a worker that holds all ranges, 8 of 12, 6 of 12 and so on: memory
    /// decides which cuts are possible, and it depends on the number of pipelines. `in_time`: only shapes whose workers have this state in
    /// time.
    fn best(&self, request: &PlanRequest, in_time: Option<&AtRisk>) -> Result<Decision, Infeasible> {
        let mut best: Option<Decision> = None;
        // The explanation for workers that hold all ranges is true for all cases.
        let mut why = None;
        for held in self.ranges_held(request) {
            let planner = self.holding(held, &request.layout);
            let problem = planner.problem(request, held);
            let ms = |d: &Decision| problem.effective_ms(&d.shape.predicted);
            match planner.decide_holding(request, held, in_time) {
                Ok(decision) if best.as_ref().is_none_or(|best| ms(&decision) < ms(best)) => {
                    best = Some(decision)
                }
                Ok(_) => {}
                Err(error) => drop(why.get_or_insert(error)),
            }
        }
        let nothing = || why.unwrap_or_else(|| Infeasible("no plan is possible".into()));
        best.ok_or_else(nothing)
    }

    fn decide_holding(
        &self,
        request: &PlanRequest,
        ranges_held: u64,
        in_time: Option<&AtRisk>,
    ) -> Result<Decision, Infeasible> {
        let problem = Problem {
            in_time,
            ..self.problem(request, ranges_held)
        };
        let workers = infeasible::offered(&problem)?;
        let pools = search::search(problem, &workers);
        let Some((mut chosen, placed)) = search::choice::choose(&problem, &pools, workers.len()) else {
            return Err(infeasible::why_no_plan(&problem, workers.len()));
        };
        let mut shape = chosen.shape(&placed.workers, placed.move_ms, self.costs.calibrated);
        // Placement knows how much of a segment a worker holds, but not which ranges its position will have.
        let mut moved_bytes = ring_order::order(&problem, &mut shape).unwrap_or(placed.moved_bytes);
        let mut found: Vec<Candidate> = Vec::new();
        let fastest = search::choice::fastest_of_all(&problem, &pools);
        let bases = [request.parent.as_ref(), fastest.as_ref(), Some(&shape)];
        if let Some(uneven) = refine::uneven_speeds::refine(&problem, &bases, &shape) {
            shape = uneven;
            moved_bytes = in_order(&problem, &mut shape);
        }
        if let Some((interleaved, described)) = refine::interleave::refine(&problem, &shape, &pools) {
            found.push(std::mem::replace(&mut chosen, described));
            shape = interleaved;
            moved_bytes = in_order(&problem, &mut shape);
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
            late: None,
            moved_bytes,
            scored,
        })
    }
}

/// Orders a shape's pipelines. Returns how much of its state moves, in bytes.
fn in_order(problem: &Problem, shape: &mut Shape) -> u64 {
    let moved = ring_order::order(problem, shape);
    moved.unwrap_or_else(|| state_moves::moved(problem, shape).0)
}

#[cfg(test)]
mod tests;
