//! The choice among candidates: what trains most until the next change, then redundancy, then little movement.

use super::candidate::Candidate;
use super::place::{Placed, Pool};
use super::{CostPlanner, PlanRequest, WorkerInfo};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Predictions closer than this count as equal; then redundancy and little movement decide.
pub(super) const EQUAL: f64 = 1.01;

/// Smaller is better: old and new state do not fit together somewhere, not every segment held twice, bytes to move, score,
/// workers used.
type Rank = (bool, bool, u64, f64, usize);

/// The step that a plan amounts to over the time that it is expected to last, when it must wait for its state first: a step of
/// `step_ms` after `move_ms` trains as much until the horizon as this step from now on.
pub(super) fn score(step_ms: f64, move_ms: f64, horizon_ms: Option<f64>) -> f64 {
    match horizon_ms {
        // Where the way there is as long as the time it lasts, at least the shorter one.
        Some(h) => step_ms * h / (h - move_ms).max(h / 100.0) + move_ms * 1e-6,
        None => step_ms,
    }
}

impl CostPlanner {
    /// The candidate to take, on its workers: of those that score within [`EQUAL`] of the best the one of the least rank.
    pub(super) fn choose(
        &self,
        request: &PlanRequest,
        found: &[(Candidate, usize)],
        pools: &[Vec<&WorkerInfo>],
        workers: usize,
    ) -> Option<(Candidate, Placed)> {
        let mut groups: BTreeMap<usize, Pool> = BTreeMap::new();
        let mut quickest: Vec<usize> = (0..found.len()).collect();
        quickest.sort_by(|a, b| found[*a].0.step_ms.total_cmp(&found[*b].0.step_ms));
        let mut judged: Vec<(f64, usize, Placed)> = Vec::new();
        let (mut best, mut fewer) = (f64::INFINITY, f64::INFINITY);
        for i in quickest {
            let (candidate, pool) = &found[i];
            // No way there is shorter than none.
            if candidate.step_ms > best * EQUAL {
                break;
            }
            let group = groups.entry(*pool);
            let group = group.or_insert_with(|| Pool::new(self, request, &pools[*pool]));
            let placed = group.place(self, candidate, &request.layout);
            let score = score(candidate.step_ms, placed.move_ms, request.horizon_ms);
            best = best.min(score);
            if candidate.workers() < workers {
                fewer = fewer.min(score);
            }
            judged.push((score, i, placed));
        }
        // One worker more must never make the step longer: what fewer workers reach is a limit too.
        let limit = fewer.min(best * EQUAL).max(best);
        // The first of equals: pools go from all workers to few.
        judged.sort_by_key(|(_, i, _)| *i);
        let near = judged.into_iter().filter(|(score, ..)| *score <= limit);
        let ranked = near.map(|(score, i, placed)| {
            let single = found[i].0.pipelines.len() < 2;
            let rank: Rank = (
                placed.crowded,
                single,
                placed.moved_bytes,
                score,
                placed.workers.len(),
            );
            (rank, i, placed)
        });
        let least = ranked.min_by(|(a, ..), (b, ..)| a.partial_cmp(b).unwrap_or(Ordering::Equal));
        least.map(|(_, i, placed)| (found[i].0.clone(), placed))
    }
}
