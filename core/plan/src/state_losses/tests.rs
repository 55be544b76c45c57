use super::*;
use crate::deadline::StepDeadline;
use crate::document::{
    Base, Pipeline, PlanIndex, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec, Shape, Stage,
};
use crate::ids::Generation;
use crate::layout::{Layout, SegmentRange};

/// So many pipelines, each with a worker for each segment. Workers are numbered by pipeline.
fn plan(pipelines: u64, segments: u32) -> Plan {
    let stage = |pipeline: u64, segment: u32| Stage {
        worker: WorkerId(pipeline * u64::from(segments) + u64::from(segment)),
        segments: SegmentRange {
            start: segment,
            end: segment + 1,
        },
        recompute: None,
    };
    let pipeline = |i: u64| Pipeline {
        stages: (0..segments).map(|segment| stage(i, segment)).collect(),
        samples: SampleRange { start: i, end: i + 1 },
    };
    let layout = Layout::new(segments, false);
    Plan {
        generation: Generation(1),
        parent: Generation(0),
        base: Base::AtSwitch { from: Generation(0) },
        layout,
        sources: Vec::new(),
        addresses: BTreeMap::new(),
        shape: Shape {
            pipelines: (0..pipelines).map(pipeline).collect(),
            spares: Vec::new(),
            micro_batch_size: 1,
            schedule: ScheduleSpec {
                kind: ScheduleKind::Gpipe,
                recompute: Recompute::None,
            },
            predicted: Prediction::default(),
        },
        deadline: StepDeadline::of_ms(1),
        relay: false,
        tree_fan_out: 2,
        following: false,
        parameters_first: false,
        keepers: Vec::new(),
        evidence: Vec::new(),
        reason: String::new(),
        index: PlanIndex::default(),
    }
}

/// The part of all losses of so many members that cost state, by trying each.
fn by_trying(plan: &Plan, lost: usize) -> f64 {
    let members = plan.members();
    let (mut all, mut costly) = (0.0, 0.0);
    for set in 0u32..1 << members.len() {
        let gone = |w: &WorkerId| {
            members
                .iter()
                .position(|m| m == w)
                .is_some_and(|i| set >> i & 1 == 1)
        };
        if set.count_ones() as usize != lost {
            continue;
        }
        all += 1.0;
        let is_lost = |unit| {
            plan.holders(unit)
                .iter()
                .chain(plan.keeper(unit).iter())
                .all(gone)
        };
        costly += f64::from(u8::from(plan.layout.all_units().any(is_lost)));
    }
    costly / all
}

#[test]
fn losses_cost_state_if_they_take_all_holders() {
    let expected = |plan: &Plan, lost| losses_of_state(plan, &[(lost, 1)].into());
    for lost in 1..=4 {
        assert_eq!(expected(&plan(1, 4), lost), 1.0, "each worker holds state alone");
    }
    // At most one segment is lost with so few members, so that adding probabilities is exact.
    for (plan, few) in [(plan(2, 3), 3), (plan(3, 3), 5), (plan(1, 1), 1)] {
        for lost in 1..=plan.members().len() {
            let (expected, exact) = (expected(&plan, lost), by_trying(&plan, lost));
            assert!(
                expected >= exact - 1e-12 && expected <= 1.0,
                "{lost}: {expected} {exact}"
            );
            assert!(
                lost > few || (expected - exact).abs() < 1e-12,
                "{lost}: {expected} {exact}"
            );
        }
    }
    assert_eq!(losses_of_state(&plan(2, 3), &[(1, 9)].into()), 0.0);
    assert_eq!(losses_of_state(&plan(1, 4), &[(1, 2), (3, 5)].into()), 7.0);
    assert_eq!(losses_of_state(&plan(1, 4), &LossSizes::new()), 0.0);
}

#[test]
fn keepers_of_spare_copies_count_as_holders() {
    let mut plan = plan(1, 4);
    // Each worker keeps a copy of what the one before it holds.
    plan.keepers = (0..4).map(|i| Some(WorkerId((i + 1) % 4))).collect();
    assert_eq!(losses_of_state(&plan, &[(1, 1)].into()), 0.0);
    let of_two = losses_of_state(&plan, &[(2, 1)].into());
    assert!((of_two - by_trying(&plan, 2)).abs() < 1e-12, "{of_two}");
}

#[test]
fn rarer_losses_and_dearer_checkpoints_make_the_interval_longer() {
    // Steps of 1 s, a loss in 200 s: checkpoints of 100 ms repay their cost every 200 * sqrt(0.001) s.
    let interval = checkpoint_interval_ms(100.0, 200_000.0);
    assert!((interval - 6_324.6).abs() < 0.1, "{interval}");
    let cost = |every: f64| 100.0 / every + every / 2.0 / 200_000.0;
    for other in [0.9, 1.1] {
        assert!(cost(interval) < cost(interval * other));
    }
}
