//! Which workers exchange what under a plan in normal operation: norms and decisions along a tree, activations and gradients along
//! pipelines, sums around rings, state from sources to the workers that are missing it. Workers connect to these peers and to no others: a
//! few per worker, however many workers there are.

use super::{Base, Plan};
use crate::ids::{Unit, WorkerId};
use crate::state::StateId;
use std::collections::{BTreeMap, BTreeSet};

/// The fan-out of a tree of `members` members that has at most two levels below its root: hops cost more than messages do. At least
/// `least`: a worker handles that many messages at once without effort.
#[must_use]
pub fn tree_fan_out(members: usize, least: u32) -> u32 {
    let mut children = least.max(1);
    let reaches = |n: u64| match bug!(DeepTree) {
        true => u64::MAX,
        false => 1 + n + n * n,
    };
    while reaches(children.into()) < members as u64 {
        children += 1;
    }
    children
}

/// The parent of the member at this place of the tree; none for the root.
pub(super) fn parent(members: &[WorkerId], place: usize, fan_out: usize) -> Option<WorkerId> {
    members.get(place.checked_sub(1)? / fan_out).copied()
}

/// The children of the member at this place of the tree.
pub(super) fn children(members: &[WorkerId], place: usize, fan_out: usize) -> &[WorkerId] {
    let first = (fan_out * place + 1).min(members.len());
    &members[first..(first + fan_out).min(members.len())]
}

/// For each unit that a member is missing at the plan's base: the source that it asks first. Members that are missing the same unit begin
/// with different sources, and so do the units of one worker.
pub(super) fn first_sources(plan: &Plan, holders: &[Vec<WorkerId>]) -> BTreeMap<(WorkerId, Unit), WorkerId> {
    let mut first = BTreeMap::new();
    if matches!(plan.base, Base::Fixed { id, .. } if id == StateId::INITIAL) {
        return first; // everyone makes it from the seed
    }
    for ((unit, sources), holders) in plan.layout.all_units().zip(&plan.sources).zip(holders) {
        if sources.is_empty() {
            continue;
        }
        let has: BTreeSet<WorkerId> = sources.iter().copied().collect();
        let lacking = holders.iter().filter(|w| !has.contains(w));
        for (i, worker) in lacking.enumerate() {
            let i = if bug!(AllAskOneSource) { 0 } else { i };
            first.insert((*worker, unit), sources[(i + unit.index()) % sources.len()]);
        }
    }
    first
}

/// The fan-out of the plan's tree, at least 1.
pub(super) fn fan_out(plan: &Plan) -> usize {
    plan.tree_fan_out.max(1) as usize
}

/// The peers of each worker, ascending; both ends of a link name one another.
pub(super) fn links(
    plan: &Plan,
    members: &[WorkerId],
    (groups, holders): (&[Vec<WorkerId>], &[Vec<WorkerId>]),
    first_sources: &BTreeMap<(WorkerId, Unit), WorkerId>,
) -> BTreeMap<WorkerId, Vec<WorkerId>> {
    let mut links: BTreeMap<WorkerId, BTreeSet<WorkerId>> = BTreeMap::new();
    let mut link = |a: WorkerId, b: WorkerId| {
        if a != b {
            links.entry(a).or_default().insert(b);
            links.entry(b).or_default().insert(a);
        }
    };
    for (place, worker) in members.iter().enumerate() {
        children(members, place, fan_out(plan))
            .iter()
            .for_each(|c| link(*worker, *c));
    }
    for pipeline in &plan.shape.pipelines {
        let stages = pipeline.stages.iter().zip(pipeline.stages.iter().skip(1));
        stages.for_each(|(a, b)| link(a.worker, b.worker));
    }
    // The units of a stage have the same ring: one of them is enough.
    for ring in groups.chunk_by(|a, b| a == b).filter_map(|units| units.first()) {
        let next = ring.iter().cycle().skip(1);
        ring.iter().zip(next).for_each(|(a, b)| link(*a, *b));
        if plan.layout.ranges > 1 && !bug!(RingNeighboursOnly) {
            // Each worker sends its parameters to all workers of its run that do not hold them.
            for run in plan.layout.runs(ring.len()) {
                let run = &ring[run];
                let pairs = run
                    .iter()
                    .enumerate()
                    .flat_map(|(i, a)| run[i + 1..].iter().map(move |b| (a, b)));
                pairs.for_each(|(a, b)| link(*a, *b));
            }
        }
    }
    for ((worker, _), source) in first_sources {
        link(*worker, *source);
    }
    for (keeper, holders) in plan.keepers.iter().zip(holders) {
        if let (Some(keeper), Some(holder)) = (keeper, holders.first()) {
            link(*keeper, *holder);
        }
    }
    links
        .into_iter()
        .map(|(worker, peers)| (worker, peers.into_iter().collect()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Pipeline, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec};
    use crate::document::{Shape, Stage};
    use crate::layout::SegmentRange;

    #[test]
    fn tree_of_members_has_two_levels() {
        for (count, least) in (1..60)
            .map(|n| (n, 2))
            .chain([(100, 2), (1_000, 16), (4_000, 16)])
        {
            let members: Vec<WorkerId> = (0..count).map(WorkerId).collect();
            let fan_out = tree_fan_out(members.len(), least) as usize;
            let place = |w: WorkerId| members.binary_search(&w).unwrap();
            let above = |i: usize| parent(&members, i, fan_out).map(place);
            for i in 1..members.len() {
                let above = above(i).unwrap();
                assert!(
                    children(&members, above, fan_out).contains(&members[i]),
                    "{count}: {i}"
                );
            }
            assert_eq!(above(0), None);
            let depth = |i: usize| std::iter::successors(Some(i), |i| above(*i)).count() - 1;
            assert!((0..members.len()).all(|i| depth(i) <= 2), "{count}");
            let all: usize = (0..members.len())
                .map(|i| children(&members, i, fan_out).len())
                .sum();
            assert_eq!(all, members.len() - 1);
        }
        assert_eq!(tree_fan_out(5, 16), 16, "a few workers need one level");
        assert_eq!(tree_fan_out(1_000, 16), 32);
    }

    /// Pipelines with one stage each, whose workers divide the state of two segments.
    fn sharded(workers: u64, ranges: u32) -> Plan {
        let layout = crate::layout::Layout::new(2, true).in_ranges(ranges);
        let mut plan = four_stages();
        let stage = |worker| Stage {
            worker: WorkerId(worker),
            segments: layout.whole(),
            recompute: None,
        };
        let pipeline = |worker| Pipeline {
            stages: vec![stage(worker)],
            samples: SampleRange {
                start: worker,
                end: worker + 1,
            },
        };
        plan.shape.pipelines = (0..workers).map(pipeline).collect();
        Plan::first(layout, plan.shape)
    }

    #[test]
    fn each_range_has_two_holders_and_receivers_have_links() {
        for (workers, ranges) in [
            (1, 12),
            (2, 12),
            (3, 12),
            (5, 12),
            (12, 12),
            (13, 12),
            (7, 3),
            (4, 1),
        ] {
            let plan = sharded(workers, ranges);
            for unit in plan.layout.all_units() {
                let holders = plan.holders(unit);
                let runs = workers.div_ceil(ranges.into());
                let expected = if ranges == 1 {
                    workers
                } else {
                    runs * workers.min(2)
                };
                assert_eq!(holders.len() as u64, expected, "{workers} of {ranges}");
                assert_eq!(holders, plan.shape.holders(&plan.layout, unit));
                for worker in plan.members() {
                    let sender = plan.sender_of(*worker, unit);
                    assert_eq!(sender.is_none(), holders.contains(worker));
                    assert_eq!(plan.units(*worker).contains(&unit), holders.contains(worker));
                    assert_eq!(plan.gathered(*worker).contains(&unit), sender.is_some());
                    let Some(sender) = sender else { continue };
                    assert!(holders.contains(&sender));
                    assert!(plan.receivers_of(sender, unit).contains(worker));
                    assert!(
                        plan.links(*worker).contains(&sender),
                        "{workers}: {worker} to {sender}"
                    );
                }
                let sent: usize = holders.iter().map(|h| plan.receivers_of(*h, unit).len()).sum();
                assert_eq!(sent + holders.len(), workers as usize);
            }
            for worker in plan.members() {
                assert_eq!(plan.units(*worker), plan.shape.units(&plan.layout, *worker));
                assert!(!plan.units(*worker).is_empty());
            }
        }
    }

    fn four_stages() -> Plan {
        let layout = crate::layout::Layout::new(4, false);
        let stage = |s: u32| Stage {
            worker: WorkerId(u64::from(s)),
            segments: SegmentRange { start: s, end: s + 1 },
            recompute: None,
        };
        let shape = Shape {
            pipelines: vec![Pipeline {
                stages: (0..4).map(stage).collect(),
                samples: SampleRange { start: 0, end: 1 },
            }],
            spares: Vec::new(),
            micro_batch_size: 1,
            schedule: ScheduleSpec {
                kind: ScheduleKind::Gpipe,
                recompute: Recompute::None,
            },
            predicted: Prediction::default(),
        };
        Plan::first(layout, shape)
    }

    #[test]
    fn those_that_lack_one_unit_begin_with_different_sources() {
        let mut plan = four_stages();
        plan.base = Base::AtSwitch {
            from: plan.generation,
        };
        let [a, b, c] = [10, 11, 12].map(WorkerId);
        plan.sources = vec![vec![a, b], vec![a], vec![], vec![]];
        let holders = vec![vec![a, WorkerId(1), WorkerId(2), c], vec![a], vec![], vec![]];
        let first = first_sources(&plan, &holders);
        let of = |w: WorkerId| first.get(&(w, Unit(0))).copied();
        assert_eq!([1, 2, 12].map(|w| of(WorkerId(w))), [Some(a), Some(b), Some(a)]);
        assert_eq!(of(a), None, "it has it");
    }

    #[test]
    fn who_keeps_a_spare_copy_is_linked_to_its_holder() {
        let mut plan = four_stages();
        assert!(!plan.links(WorkerId(0)).contains(&WorkerId(3)));
        plan = plan.clone();
        plan.keepers = vec![Some(WorkerId(3)), None, None, None];
        assert!(plan.links(WorkerId(0)).contains(&WorkerId(3)));
        assert!(plan.links(WorkerId(3)).contains(&WorkerId(0)));
        assert_eq!(plan.kept_by(WorkerId(3)), [(Unit(0), WorkerId(0))]);
        assert_eq!(plan.keeper(Unit(1)), None);
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    }
}
