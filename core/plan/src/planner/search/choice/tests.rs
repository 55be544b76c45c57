//! The choice among candidates of the search, with step times that the test sets.

use super::*;
use crate::cost::{Costs, Device};
use crate::document::{Recompute, ScheduleKind, ScheduleSpec};
use crate::ids::WorkerId;
use crate::planner::problem::topology;
use crate::planner::request::{Constraints, PlanRequest, WorkerInfo};
use crate::planner::search::search;
use varuna_model::{Transformer, gpt2};

const WORKERS: u64 = 4;

fn costs() -> Costs {
    let model = Transformer {
        layers: 6,
        hidden_size: 128,
        sequence_length: 128,
        vocabulary_size: 512,
        ..gpt2::SMALL
    };
    Costs::estimate(&model.spec(), Device::CPU_CORE)
}

fn constraints(memory: Option<u64>) -> Constraints {
    Constraints {
        min_workers: 1,
        max_workers: 64,
        micro_batch_size: Some(1),
        min_depth: 1,
        max_depth: None,
        schedules: vec![ScheduleSpec {
            kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
            recompute: Recompute::None,
        }],
        device_memory_bytes: memory,
    }
}

fn request(costs: &Costs) -> PlanRequest {
    request_for(costs, WORKERS)
}

fn request_for(costs: &Costs, workers: u64) -> PlanRequest {
    let worker = |i| WorkerInfo::nominal(WorkerId(i), "n");
    PlanRequest::first((1..=workers).map(worker).collect(), costs.layout(), 8)
}

fn problem<'a>(costs: &'a Costs, constraints: &'a Constraints, request: &'a PlanRequest) -> Problem<'a> {
    Problem {
        costs,
        constraints,
        request,
        topology: topology(&request.workers),
        ranges_held: 1,
        in_time: None,
    }
}

fn depths(candidate: &Candidate) -> Vec<usize> {
    candidate.pipelines().iter().map(|p| p.stages.len()).collect()
}

/// The result of a search that finds only equal pipelines with these depths and step times in milliseconds.
fn found<'w>(
    problem: &Problem,
    workers: &'w [WorkerInfo],
    wanted: &[(&[usize], f64)],
) -> Vec<PoolSearch<'w>> {
    let mut all = search(*problem, workers);
    all.truncate(1);
    all[0].candidates.clear();
    for (depths_wanted, step_ms) in wanted {
        let depth = u32::try_from(depths_wanted[0]).unwrap();
        let constraints = Constraints {
            min_depth: depth,
            max_depth: Some(depth),
            ..problem.constraints.clone()
        };
        let mut pools = search(
            Problem {
                constraints: &constraints,
                ..*problem
            },
            workers,
        );
        let mut candidates = pools.swap_remove(0).candidates.into_iter();
        let like = |c: &Candidate| depths(c) == **depths_wanted;
        let mut candidate = candidates.find(like).expect("the search finds it");
        candidate.step_ms = *step_ms;
        all[0].candidates.push(candidate);
    }
    all
}

/// The depth that is chosen, in any order of the candidates.
fn chosen(problem: &Problem, wanted: [(&[usize], f64); 2]) -> Vec<usize> {
    let workers = &problem.request.workers;
    let of = |wanted: &[(&[usize], f64)]| {
        let (candidate, _) = choose(problem, &found(problem, workers, wanted), workers.len()).unwrap();
        depths(&candidate)
    };
    let [a, b] = wanted;
    let first = of(&[a, b]);
    assert_eq!(of(&[b, a]), first);
    first
}

#[test]
fn redundant_plan_wins_among_equally_fast_ones() {
    let (costs, constraints) = (costs(), constraints(None));
    let request = request(&costs);
    let problem = problem(&costs, &constraints, &request);
    assert_eq!(chosen(&problem, [(&[4], 99.5), (&[2, 2], 100.0)]), [2, 2]);
    assert_eq!(chosen(&problem, [(&[4], 98.0), (&[2, 2], 100.0)]), [4]);
    let request = request_for(&costs, 6);
    let problem = self::problem(&costs, &constraints, &request);
    assert_eq!(chosen(&problem, [(&[3, 3], 99.5), (&[2; 3], 100.0)]), [2; 3]);
    assert_eq!(chosen(&problem, [(&[3, 3], 98.0), (&[2; 3], 100.0)]), [3, 3]);
    let more = chosen(&problem, [(&[1; 6], 100.0), (&[2; 3], 99.5)]);
    assert_eq!(more, [2; 3], "three holders are enough");
}

#[test]
fn plan_that_moves_less_state_wins_among_equally_fast_ones() {
    let (costs, constraints) = (costs(), constraints(None));
    let first = request_for(&costs, 6);
    let shape = |depths: &[usize]| {
        let problem = problem(&costs, &constraints, &first);
        let pools = found(&problem, &first.workers, &[(depths, 100.0)]);
        fastest_of_all(&problem, &pools).unwrap()
    };
    for (held, other) in [([2; 3].as_slice(), [1; 6].as_slice()), (&[1; 6], &[2; 3])] {
        let request = first.clone().after(shape(held));
        let problem = problem(&costs, &constraints, &request);
        // If every worker holds everything, no plan moves state, and the faster plan is chosen.
        let expected = if held.len() == 6 { other } else { held };
        assert_eq!(chosen(&problem, [(held, 100.0), (other, 99.5)]), expected);
    }
}

#[test]
fn redundancy_does_not_beat_fewer_workers() {
    let (costs, constraints) = (costs(), constraints(None));
    let request = request(&costs);
    let problem = problem(&costs, &constraints, &request);
    assert_eq!(chosen(&problem, [(&[3], 100.0), (&[2, 2], 100.5)]), [3]);
}

#[test]
fn memory_for_old_and_new_state_outranks_redundancy() {
    let costs = costs();
    let mut request = request(&costs);
    let all: Vec<_> = request.layout.all_units().collect();
    request.held = request.workers.iter().map(|w| (w.id, all.clone())).collect();
    let (mut between, mut roomy) = (0, 0);
    for mib in 8..64 {
        let constraints = constraints(Some(mib << 20));
        let problem = problem(&costs, &constraints, &request);
        let free = self::constraints(None);
        let anything = self::problem(&costs, &free, &request);
        let both: [(&[usize], f64); 2] = [(&[4], 100.0), (&[2, 2], 100.0)];
        let pools = found(&anything, &request.workers, &both);
        let pool = WorkerPool::new(&problem, &pools[0].workers);
        let exceeds_memory = pools[0]
            .candidates
            .iter()
            .map(|c| pool.place(&problem, c).exceeds_memory);
        let exceeds_memory: Vec<bool> = exceeds_memory.collect();
        let taken = choose(&problem, &pools, WORKERS as usize).unwrap().0;
        match exceeds_memory[..] {
            [false, true] => {
                between += 1;
                assert_eq!(depths(&taken), [4], "{mib} MiB");
            }
            [false, false] => {
                roomy += 1;
                assert_eq!(depths(&taken), [2, 2], "{mib} MiB");
            }
            _ => {}
        }
    }
    assert!(between > 0 && roomy > 0, "{between} {roomy}");
}
