//! Plans while holders of state leave at a known time.

use super::super::held_bytes::unit_bytes;
use super::super::placement::WorkerPool;
use super::*;

/// One of four workers leaves.
struct OneLeaves {
    planner: CostPlanner,
    /// The other workers may form any pipelines.
    request: PlanRequest,
    leaver: WorkerId,
    /// The time for one copy of what it holds, milliseconds.
    copy_ms: f64,
}

impl OneLeaves {
    /// The pipelines have this many stages; the worker of the second stage of the first one leaves.
    fn from_pipelines_of(depth: u32) -> OneLeaves {
        let mut before = planner(depth, None);
        before.constraints.max_depth = Some(depth);
        let asked = request(&before, 4, 32);
        let shape = before.plan(&asked).unwrap();
        let leaver = shape.pipelines[0].stages[1].worker;
        let mut request = asked.after(shape);
        request.workers.retain(|w| w.id != leaver);
        let planner = planner(1, None);
        let bytes = unit_bytes(&planner.costs, &request.layout);
        let held: u64 = request.held[&leaver].iter().map(|u| bytes[u.index()]).sum();
        let copy_ms = held as f64 / planner.costs.device.bytes_per_s * 1e3;
        OneLeaves {
            planner,
            request,
            leaver,
            copy_ms,
        }
    }

    /// The request if there is time for this many copies.
    fn with_time_for(&self, copies: f64) -> PlanRequest {
        PlanRequest {
            departure: Some(Departure {
                sends_for_ms: [(self.leaver, self.copy_ms * copies)].into(),
            }),
            ..self.request.clone()
        }
    }
}

#[test]
fn a_plan_that_has_leaving_state_in_time_beats_a_better_one() {
    let leaves = OneLeaves::from_pipelines_of(4);
    let planner = &leaves.planner;
    let best = planner.plan(&leaves.request).unwrap();
    assert!(best.pipelines.len() > 1, "each needs a copy: {best:?}");
    let short = leaves.with_time_for(1.5);
    let explained = planner.explain(&short).unwrap();
    assert_eq!(explained.shape.pipelines.len(), 1, "{:?}", explained.shape);
    let late = &explained.runners_up[0];
    assert_eq!(late.summary, best.summary());
    let why = "what only leaving workers hold would come too late";
    assert!(late.why.ends_with(why), "{}", late.why);
    let (shape, haste) = planner.plan_in_time(&short).unwrap();
    assert_eq!(shape, explained.shape);
    assert!(haste.unwrap().starts_with(&best.summary()));
    for copies in [100.0, 0.5] {
        let long_or_none = leaves.with_time_for(copies);
        assert_eq!(planner.plan_in_time(&long_or_none), Ok((best.clone(), None)));
    }
}

#[test]
fn a_short_notice_changes_nothing_if_those_who_stay_hold_all() {
    let leaves = OneLeaves::from_pipelines_of(2);
    let best = leaves.planner.plan(&leaves.request).unwrap();
    for copies in [0.0, 1.5] {
        let short = leaves.with_time_for(copies);
        assert_eq!(leaves.planner.plan_in_time(&short), Ok((best.clone(), None)));
    }
}

/// The candidates that the search finds for a problem, each on its workers.
fn considered(problem: &Problem) -> Vec<Shape> {
    let mut all = Vec::new();
    for pool in search::search(*problem, &problem.request.workers) {
        let workers = WorkerPool::new(problem, &pool.workers);
        for candidate in &pool.candidates {
            let placed = workers.place(problem, candidate);
            all.push(candidate.shape(&placed.workers, placed.move_ms, false));
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_plan_has_state_in_time_if_any_considered_one_has(
        count in 3u64..14, depth in 1u32..6, gone in prop::collection::btree_set(0usize..14, 1..4), batch in 4u64..40,
        micros in 0u32..30_000, speeds in prop::collection::vec(6u32..14, 14), horizon in prop::option::of(50u32..20_000)
    ) {
        let before = planner(depth, None);
        let asked = request(&before, count, batch);
        let Ok(shape) = before.plan(&asked) else {
            return Ok(());
        };
        let mut request = asked.after(shape);
        let leaving = gone.iter().filter_map(|i| request.workers.get(*i));
        let workers: BTreeSet<WorkerId> = leaving.map(|w| w.id).collect();
        request.workers.retain(|w| !workers.contains(&w.id));
        prop_assume!(!request.workers.is_empty());
        for (worker, speed) in request.workers.iter_mut().zip(&speeds) {
            worker.speed = f64::from(*speed) / 10.0;
        }
        request.horizon_ms = horizon.map(f64::from);
        let planner = planner(1, None);
        let best = planner.plan(&request).unwrap();
        let deadline_ms = f64::from(micros) / 1e3;
        request.departure = Some(Departure {
            sends_for_ms: workers.into_iter().map(|w| (w, deadline_ms)).collect(),
        });
        let ours = planner.plan(&request).unwrap();
        let Some(at_risk) = AtRisk::new(&planner.costs, &request) else {
            prop_assert_eq!(ours, best, "nothing is at risk");
            return Ok(());
        };
        let problem = planner.problem(&request, 1);
        let holdings = Holdings::new(&problem);
        let is_in_time = |shape: &Shape| holdings.arrives_in_time(&at_risk, shape);
        let there_are = considered(&problem).iter().any(is_in_time);
        prop_assert!(is_in_time(&ours) || !there_are, "{ours:?}");
        if is_in_time(&best) || !is_in_time(&ours) {
            prop_assert_eq!(ours, best);
        }
    }
}
