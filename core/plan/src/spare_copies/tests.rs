use super::*;
use crate::document::{
    Pipeline, Plan, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec, Stage,
};
use crate::layout::SegmentRange;
use crate::planner::WorkerInfo;
use proptest::prelude::*;

/// A pipeline for each depth. Every stage has a worker of its own.
fn shape(layout: Layout, depths: &[u32]) -> Shape {
    let mut next = 1;
    let mut pipelines = Vec::new();
    for (i, depth) in (0..).zip(depths) {
        let stage = |s: u32| {
            next += 1;
            Stage {
                worker: WorkerId(next),
                segments: SegmentRange {
                    start: s * layout.segments / depth,
                    end: (s + 1) * layout.segments / depth,
                },
                recompute: None,
            }
        };
        pipelines.push(Pipeline {
            stages: (0..*depth).map(stage).collect(),
            samples: SampleRange { start: i, end: i + 1 },
        });
    }
    Shape {
        pipelines,
        spares: Vec::new(),
        micro_batch_size: 1,
        schedule: ScheduleSpec {
            kind: ScheduleKind::Gpipe,
            recompute: Recompute::None,
        },
        predicted: Prediction::default(),
    }
}

fn layout(segments: u32) -> Layout {
    Layout::new(segments, true)
}

/// The members, each on its own node, in the domain from the list.
fn workers(shape: &Shape, domains: &[&str]) -> Vec<WorkerInfo> {
    let members = shape.members().into_iter().enumerate();
    let info = |(i, id): (usize, WorkerId)| WorkerInfo {
        domain: domains.get(i % domains.len().max(1)).unwrap_or(&"").to_string(),
        ..WorkerInfo::nominal(id, format!("node-{i}"))
    };
    members.map(info).collect()
}

/// The keepers for what these workers hold, if links are fast.
fn keepers(
    layout: &Layout,
    shape: &Shape,
    workers: &[WorkerInfo],
    able: impl Fn(WorkerId) -> bool,
    costs: &SpareCosts,
) -> Vec<Option<WorkerId>> {
    let locations = workers.iter().map(|w| (w.id, w.location())).collect();
    super::keepers(layout, shape, &locations, able, costs, f64::INFINITY).of_units
}

/// The keepers if a step takes so long.
fn keepers_within(shape: &Shape, workers: &[WorkerInfo], costs: &SpareCosts, step_ms: f64) -> Keepers {
    let locations = workers.iter().map(|w| (w.id, w.location())).collect();
    let segments = shape.pipelines[0].stages.iter().map(|s| s.segments.end).max();
    let layout = layout(segments.unwrap());
    super::keepers(&layout, shape, &locations, everyone, costs, step_ms)
}

fn everyone(_: WorkerId) -> bool {
    true
}

/// The number of bytes that each worker keeps.
fn kept(keepers: &[Option<WorkerId>], costs: &SpareCosts) -> BTreeMap<WorkerId, u64> {
    let mut kept = BTreeMap::new();
    for (unit, keeper) in (0..).map(Unit).zip(keepers) {
        if let Some(keeper) = keeper {
            *kept.entry(*keeper).or_default() += costs.copy(&layout(1), unit);
        }
    }
    kept
}

#[test]
fn in_one_pipeline_everyone_keeps_the_stage_before_its_own() {
    let (layout, shape) = (layout(4), shape(layout(4), &[4]));
    let free = SpareCosts::default();
    let keepers = keepers(&layout, &shape, &workers(&shape, &[]), everyone, &free);
    let of = |w: u64| Some(WorkerId(w));
    assert_eq!(
        keepers,
        [of(3), of(4), of(5), of(2), None],
        "the tied weight has two holders"
    );
}

#[test]
fn copies_are_kept_by_others_and_only_of_single_holders() {
    let layout = layout(4);
    let (two, one) = (shape(layout, &[2, 4]), shape(layout, &[1]));
    let free = SpareCosts::default();
    for shape in [two, one] {
        let keepers = keepers(&layout, &shape, &workers(&shape, &[]), everyone, &free);
        assert_eq!(keepers, []);
    }
}

#[test]
fn who_cannot_follow_neither_keeps_nor_is_kept() {
    let layout = layout(3);
    let shape = shape(layout, &[3]);
    let old = WorkerId(3);
    let free = SpareCosts::default();
    let keepers = keepers(&layout, &shape, &workers(&shape, &[]), |w| w != old, &free);
    assert_eq!(keepers, [Some(WorkerId(4)), None, Some(WorkerId(2)), None]);
}

#[test]
fn where_nobody_has_room_for_a_stage_its_units_are_spread() {
    let layout = layout(4);
    let shape = shape(layout, &[2]);
    let (first, second) = (WorkerId(2), WorkerId(3));
    let costs = SpareCosts {
        copy_bytes: vec![10; 5],
        room_bytes: [(first, 0), (second, 10)].into(),
        ..SpareCosts::default()
    };
    let keepers = keepers(&layout, &shape, &workers(&shape, &[]), everyone, &costs);
    assert_eq!(keepers, [Some(second), None, None, None, None]);
}

#[test]
fn a_keeper_is_in_another_zone_or_else_on_another_node() {
    let layout = layout(4);
    let shape = shape(layout, &[4]);
    let zones = workers(&shape, &["a/1", "a/2", "b/1", "b/1"]);
    let free = SpareCosts::default();
    let zone = |id: WorkerId| zones.iter().find(|w| w.id == id).unwrap().domain[..1].to_owned();
    let found = keepers(&layout, &shape, &zones, everyone, &free);
    for unit in 0..4 {
        let holder = shape.holders(&layout, Unit(unit))[0];
        assert_ne!(zone(holder), zone(found[unit as usize].unwrap()));
    }
    let mut shared = workers(&shape, &[]);
    for (i, worker) in shared.iter_mut().enumerate() {
        worker.node = format!("node-{}", i / 2);
    }
    let found = keepers(&layout, &shape, &shared, everyone, &free);
    let far = [4, 5, 2, 3].map(|w| Some(WorkerId(w)));
    assert_eq!(found[..4], far, "two share each node");
}

#[test]
fn distant_member_keeps_copies_of_two_at_most() {
    let layout = layout(5);
    let shape = shape(layout, &[5]);
    let zones = workers(&shape, &["a", "a", "a", "a", "b"]);
    let found = keepers(&layout, &shape, &zones, everyone, &SpareCosts::default());
    assert!(found[..5].iter().all(Option::is_some), "{found:?}");
    let far = zones[4].id;
    let kept = found.iter().filter(|keeper| **keeper == Some(far)).count();
    assert_eq!(kept, HOLDERS_PER_KEEPER, "{found:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn copies_are_spread_within_bounds_whatever_the_plan(
        depths in prop::collection::vec(1_u32..7, 1..4),
        zones in prop::collection::vec("[abc]?", 1..5),
        room in prop::collection::vec(0_u64..80, 20),
        bytes in prop::collection::vec(1_u64..20, 7),
        unlimited in any::<bool>(),
    ) {
        let layout = layout(6);
        let shape = shape(layout, &depths);
        let zones: Vec<&str> = zones.iter().map(String::as_str).collect();
        let mut workers = workers(&shape, &zones);
        let room_of = workers.iter().zip(&room).map(|(w, r)| (w.id, *r));
        let costs = SpareCosts {
            copy_bytes: bytes,
            room_bytes: if unlimited { BTreeMap::new() } else { room_of.collect() },
            ..SpareCosts::default()
        };
        let found = keepers(&layout, &shape, &workers, everyone, &costs);
        let mut holders_of: BTreeMap<WorkerId, BTreeSet<WorkerId>> = BTreeMap::new();
        for unit in layout.all_units() {
            let holders = shape.holders(&layout, unit);
            let keeper = found.get(unit.index()).copied().flatten();
            if let Some(keeper) = keeper {
                prop_assert_eq!(holders.len(), 1);
                prop_assert!(keeper != holders[0] && shape.place(keeper).is_some());
                holders_of.entry(keeper).or_default().insert(holders[0]);
            } else if unlimited && workers.len() > 1 {
                prop_assert!(holders.len() > 1, "{:?} has no keeper", unit);
            }
        }
        prop_assert!(holders_of.values().all(|h| h.len() <= HOLDERS_PER_KEEPER));
        for (worker, bytes) in kept(&found, &costs) {
            prop_assert!(bytes <= costs.room_bytes.get(&worker).copied().unwrap_or(u64::MAX));
        }
        if unlimited && zones.len() == 1 {
            prop_assert!(holders_of.values().all(|h| h.len() == 1), "all are alike: {:?}", holders_of);
        }
        workers.reverse();
        prop_assert_eq!(keepers(&layout, &shape, &workers, everyone, &costs), found);
    }
}

#[test]
fn copies_on_the_host_need_its_memory_and_none_of_trainings() {
    let layout = layout(3);
    let three = shape(layout, &[3]);
    let costs = SpareCosts {
        copy_bytes: vec![10; 4],
        room_bytes: [2, 3, 4].map(|w| (WorkerId(w), 0)).into(),
        apart_bytes: [(WorkerId(3), 10), (WorkerId(4), 9)].into(),
        ..SpareCosts::default()
    };
    // Worker 3 has memory for one copy, the others for none.
    let found = keepers(&layout, &three, &workers(&three, &[]), everyone, &costs);
    assert_eq!(found, [Some(WorkerId(3)), None, None, None]);

    // Worker 3 gains the last segment, for which it has memory beside the copy.
    let layout = Layout::new(3, false);
    let plan = Plan {
        keepers: vec![Some(WorkerId(3)), None, None],
        ..Plan::first(layout, shape(layout, &[3]))
    };
    let next = shape(layout, &[2]);
    let without_room = |apart: &[WorkerId]| {
        let costs = SpareCosts {
            apart_bytes: apart.iter().map(|w| (*w, 1000)).collect(),
            ..of_room(&[(3, 30)])
        };
        without_room_to_follow(&plan, &next, &costs)
    };
    assert_eq!(without_room(&[]), [WorkerId(3)]);
    assert!(without_room(&[WorkerId(3)]).is_empty());
}

/// Segments of 10, 20 and 30 bytes, and workers with this much free memory.
fn of_room(room: &[(u64, u64)]) -> SpareCosts {
    SpareCosts {
        copy_bytes: vec![10, 20, 30],
        room_bytes: room.iter().map(|(w, bytes)| (WorkerId(*w), *bytes)).collect(),
        ..SpareCosts::default()
    }
}

#[test]
fn gaining_member_needs_room_and_newcomers_keep_nothing() {
    let layout = Layout::new(3, false);
    let (present, next) = (shape(layout, &[2]), shape(layout, &[1, 1, 1]));
    let plan = Plan::first(layout, present);
    // Worker 2 gains segments 1 and 2, worker 3 gains segment 0, and worker 4 joins.
    let without_room = |room: &[(u64, u64)]| without_room_to_follow(&plan, &next, &of_room(room));
    assert!(without_room(&[(2, 50), (3, 10), (4, 0)]).is_empty());
    assert_eq!(without_room(&[(2, 49), (3, 10)]), [WorkerId(2)]);
    assert_eq!(without_room(&[(2, 49), (3, 9)]), [WorkerId(2), WorkerId(3)]);
    assert!(without_room(&[]).is_empty(), "their memory is not known");
    let same = without_room_to_follow(&plan, &plan.shape, &of_room(&[(2, 0), (3, 0)]));
    assert!(same.is_empty(), "nobody gains anything");
}

#[test]
fn followed_units_and_kept_copies_share_memory() {
    let layout = Layout::new(3, false);
    // Worker 3 has segment 1 and gains segment 2.
    let next = shape(layout, &[2]);
    let of = |w: u64| Some(WorkerId(w));
    let without_room = |keepers: [Option<WorkerId>; 3], room: u64| {
        let plan = Plan {
            keepers: keepers.to_vec(),
            ..Plan::first(layout, shape(layout, &[3]))
        };
        without_room_to_follow(&plan, &next, &of_room(&[(3, room)]))
    };
    assert!(without_room([None, None, None], 30).is_empty());
    assert_eq!(without_room([of(3), None, None], 39), [WorkerId(3)]);
    assert!(without_room([of(3), None, None], 40).is_empty());
    assert!(
        without_room([None, of(2), None], 30).is_empty(),
        "another keeps that"
    );
    assert!(
        without_room([None, None, of(3)], 0).is_empty(),
        "it is there already"
    );
}

#[test]
fn of_a_segment_in_ranges_the_ranges_that_are_gained_take_room() {
    let layout = Layout::new(3, false).in_ranges(10);
    let plan = Plan::first(layout, shape(layout, &[2]));
    // Both workers hold all ranges of all segments.
    let next = shape(layout, &[1, 1]);
    let without_room = |room| without_room_to_follow(&plan, &next, &of_room(&[(2, room)]));
    assert!(without_room(50).is_empty());
    assert_eq!(without_room(49), [WorkerId(2)]);
}

fn expected(step_ms: f64, loss_ms: f64, redo_ms: Option<f64>) -> Expected {
    Expected {
        step_ms,
        loss_ms,
        redo_ms,
    }
}

#[test]
fn what_becomes_of_the_wish_has_a_reason() {
    let layout = layout(3);
    let (one, two) = (shape(layout, &[3]), shape(layout, &[3, 3]));
    let costs = SpareCosts {
        send_ms: vec![10.0; 4],
        ..SpareCosts::default()
    };
    let infos = workers(&one, &[]);
    let within = |step_ms| keepers_within(&one, &infos, &costs, step_ms);
    let (all, none) = (within(100.0), Keepers::default());
    let usual = expected(100.0, 600_000.0, Some(300_000.0));
    let verdict = |wanted, shape: &Shape, keepers: &Keepers, expected: &Expected| {
        decide(wanted, &layout, shape, keepers, &costs, expected)
    };
    let auto = |expected: Expected| verdict(SpareCopies::Auto, &one, &within(expected.step_ms), &expected);
    assert_eq!(
        verdict(SpareCopies::Off, &one, &all, &usual),
        SpareCopyDecision::NotWanted
    );
    assert_eq!(
        verdict(SpareCopies::One, &one, &all, &usual),
        SpareCopyDecision::Kept
    );
    assert_eq!(
        verdict(SpareCopies::One, &two, &none, &usual),
        SpareCopyDecision::NothingAlone
    );
    assert_eq!(
        verdict(SpareCopies::One, &one, &none, &usual),
        SpareCopyDecision::NoKeeper
    );
    let part = Keepers {
        of_units: vec![all.of_units[0], None, None, None],
        links_too_slow: false,
    };
    assert_eq!(
        verdict(SpareCopies::One, &one, &part, &usual),
        SpareCopyDecision::KeptInPart
    );
    assert_eq!(auto(usual), SpareCopyDecision::Kept);
    assert_eq!(
        auto(expected(19.0, 600_000.0, Some(300_000.0))),
        SpareCopyDecision::LinksTooSlow
    );
    assert_eq!(
        auto(expected(30.0, 600_000.0, Some(300_000.0))),
        SpareCopyDecision::Kept,
        "everyone sends and receives for a third of a step, at once"
    );
    assert_eq!(
        auto(expected(100.0, 2e6, Some(300_000.0))),
        SpareCopyDecision::Kept,
        "a commit waits for what one worker sends"
    );
    assert_eq!(
        verdict(SpareCopies::One, &one, &all, &expected(100.0, 3.6e7, Some(1.8e6))),
        SpareCopyDecision::Kept,
        "only auto weighs"
    );
    // A tenth of each step is spent waiting; half an hour of work is lost once in ten hours.
    assert_eq!(
        auto(expected(100.0, 3.6e7, Some(1.8e6))),
        SpareCopyDecision::LossesTooRare
    );
    assert_eq!(
        auto(expected(100.0, 3.6e7, None)),
        SpareCopyDecision::Kept,
        "there is no store"
    );
    assert!(SpareCopyDecision::KeptInPart.keeps() && !SpareCopyDecision::NoKeeper.keeps());
}

#[test]
fn commit_waits_for_the_worker_that_sends_most() {
    // As on Bamboo's p3 nodes (docs/guides/replay.md): the gradient of a stage takes 0.8 s of a step of 4 s, and workers are lost every
    // four minutes.
    let layout = layout(12);
    let shape = shape(layout, &[2]);
    let costs = SpareCosts {
        send_ms: vec![800.0 / 6.0; 13],
        ..SpareCosts::default()
    };
    let all = keepers_within(&shape, &workers(&shape, &[]), &costs, 4_000.0);
    let auto = |loss_ms| {
        let redo_ms = Expected::redo_ms(4_000.0, None, Some(15));
        let expected = expected(4_000.0, loss_ms, redo_ms);
        decide(SpareCopies::Auto, &layout, &shape, &all, &costs, &expected)
    };
    assert_eq!(auto(250_000.0), SpareCopyDecision::LossesTooRare);
    assert_eq!(auto(140_000.0), SpareCopyDecision::Kept);
}

#[test]
fn gradients_take_half_a_step_at_most_of_either_sides_link() {
    let four = shape(layout(4), &[4]);
    let infos = workers(&four, &[]);
    let costs = |ms: &[f64]| SpareCosts {
        send_ms: ms.to_vec(),
        ..SpareCosts::default()
    };
    let of = |w: u64| Some(WorkerId(w));
    let sent = costs(&[10.0, 10.0, 30.0, 10.0, 0.0]);
    let all = keepers_within(&four, &infos, &sent, 60.0);
    assert_eq!(all.of_units, [of(3), of(4), of(5), of(2), None]);
    assert!(!all.links_too_slow);
    let some = keepers_within(&four, &infos, &sent, 59.0);
    assert_eq!(some.of_units, [of(3), of(4), None, of(2), None]);
    assert!(some.links_too_slow);
    let usual = expected(59.0, 600_000.0, None);
    let none = keepers_within(&four, &infos, &sent, 19.0);
    let verdict = |wanted, found: &Keepers| decide(wanted, &layout(4), &four, found, &sent, &usual);
    assert_eq!(
        verdict(SpareCopies::One, &some),
        SpareCopyDecision::KeptWhereLinksAllow
    );
    for (wanted, found) in [(SpareCopies::Auto, &some), (SpareCopies::One, &none)] {
        assert_eq!(verdict(wanted, found), SpareCopyDecision::LinksTooSlow);
    }

    // A worker that is far from all others keeps for two holders only if both fit into its link.
    let five = shape(layout(5), &[5]);
    let zones = workers(&five, &["a", "a", "a", "a", "b"]);
    let even = costs(&[10.0; 6]);
    let kept_far_away = |step_ms| {
        let found = keepers_within(&five, &zones, &even, step_ms);
        assert!(found.of_units[..5].iter().all(Option::is_some), "{found:?}");
        assert!(!found.links_too_slow, "others have time on their links");
        found.of_units.iter().filter(|k| **k == Some(zones[4].id)).count()
    };
    assert_eq!([40.0, 39.0].map(kept_far_away), [2, 1]);

    // If it is the only one with memory, one holder's units have no keeper.
    let three = shape(layout(3), &[3]);
    let roomy = SpareCosts {
        copy_bytes: vec![10; 4],
        room_bytes: [(2, 0), (3, 0), (4, 100)]
            .map(|(w, bytes)| (WorkerId(w), bytes))
            .into(),
        ..even.clone()
    };
    let found = keepers_within(&three, &workers(&three, &[]), &roomy, 39.0);
    assert_eq!(found.of_units, [of(4), None, None, None]);
    assert!(found.links_too_slow);
    let found = keepers_within(&three, &workers(&three, &[]), &roomy, 40.0);
    assert_eq!(found.of_units, [of(4), of(4), None, None]);
    assert!(
        !found.links_too_slow,
        "the last one has no keeper for lack of memory"
    );
}

#[test]
fn loss_costs_half_of_the_shorter_checkpoint_interval() {
    let of = |every_ms, every_steps| Expected::redo_ms(100.0, every_ms, every_steps);
    assert_eq!(of(Some(60_000.0), None), Some(30_000.0));
    assert_eq!(of(None, Some(500)), Some(25_000.0));
    assert_eq!(of(Some(60_000.0), Some(500)), Some(25_000.0));
    assert_eq!(of(Some(10_000.0), Some(500)), Some(5_000.0));
    assert_eq!(of(None, None), None);
}
