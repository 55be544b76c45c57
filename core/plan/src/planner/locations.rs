//! The locations of workers, which determine which of them may be lost together.
//!
//! Nodes and zones are compared by number. If all workers are on one node, or in one zone, this distinguishes nothing and counts as
//! unknown. This module does not decide on placement.

use super::request::WorkerInfo;
use crate::ids::WorkerId;
use std::collections::BTreeMap;

/// A worker's node, and the widest part of the node's domain; none if not known.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct NodeAndZone {
    node: Option<usize>,
    zone: Option<usize>,
}

impl NodeAndZone {
    /// What both locations have in common.
    pub(super) fn common_with(self, other: NodeAndZone) -> Common {
        let is = |one: Option<usize>, other: Option<usize>| one.is_some() && one == other;
        (is(self.node, other.node), is(self.zone, other.zone))
    }
}

/// What workers have in common: whether they share a node, and a zone. Smaller is better.
pub(super) type Common = (bool, bool);

/// The locations of some workers.
#[derive(Default)]
pub(super) struct Locations(BTreeMap<WorkerId, NodeAndZone>);

impl Locations {
    pub(super) fn new(workers: &[&WorkerInfo]) -> Locations {
        let nodes = numbers(workers.iter().map(|w| w.node.as_str()));
        let zones = numbers(workers.iter().map(zone_of));
        if nodes.iter().chain(&zones).all(Option::is_none) {
            return Locations::default();
        }
        let at = nodes.into_iter().zip(zones);
        let at = at.map(|(node, zone)| NodeAndZone { node, zone });
        Locations(workers.iter().map(|w| w.id).zip(at).collect())
    }

    pub(super) fn of(&self, worker: WorkerId) -> NodeAndZone {
        self.0.get(&worker).copied().unwrap_or_default()
    }

    /// Whether the locations do not distinguish the workers, for example because none is known.
    pub(super) fn are_unknown(&self) -> bool {
        self.0.is_empty()
    }
}

fn zone_of<'a>(worker: &&'a WorkerInfo) -> &'a str {
    worker.domain.split('/').next().unwrap_or_default()
}

/// A number for each name, the same for equal names; none for an empty name, and for all names if there are not two different ones.
fn numbers<'a>(names: impl Iterator<Item = &'a str>) -> Vec<Option<usize>> {
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    let mut numbers = Vec::new();
    for name in names {
        let next = known.len();
        numbers.push((!name.is_empty()).then(|| *known.entry(name).or_insert(next)));
    }
    let is_one = numbers.iter().all(|number| *number == Some(0));
    if is_one {
        vec![None; numbers.len()]
    } else {
        numbers
    }
}

/// The common location of all copies of something, if they have one.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Copies {
    together: Option<NodeAndZone>,
}

impl Copies {
    /// Adds a copy.
    pub(super) fn add(&mut self, at: NodeAndZone) {
        let before = self.together.unwrap_or(at);
        self.together = Some(NodeAndZone {
            node: before.node.filter(|_| before.node == at.node),
            zone: before.zone.filter(|_| before.zone == at.zone),
        });
    }

    /// What all copies would have in common if there were one more at this location.
    pub(super) fn common_with(&self, at: NodeAndZone) -> Common {
        self.together.unwrap_or_default().common_with(at)
    }

    /// What all copies have in common.
    pub(super) fn common(&self) -> Common {
        let together = self.together.unwrap_or_default();
        (together.node.is_some(), together.zone.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_location_ignores_unknown_parts() {
        let worker = |id, node: &str, domain: &str| WorkerInfo {
            domain: domain.into(),
            ..WorkerInfo::nominal(WorkerId(id), node)
        };
        let workers = [
            worker(1, "n1", "a/1"),
            worker(2, "n1", "a/1"),
            worker(3, "n2", "a/2"),
            worker(4, "n3", "b"),
            worker(5, "", ""),
        ];
        let all: Vec<&WorkerInfo> = workers.iter().collect();
        let at = Locations::new(&all);
        let common = |ids: &[u64]| {
            let mut copies = Copies::default();
            ids.iter().for_each(|id| copies.add(at.of(WorkerId(*id))));
            copies.common()
        };
        assert_eq!(common(&[1, 2]), (true, true));
        assert_eq!(common(&[1, 2, 3]), (false, true));
        assert_eq!(common(&[1, 3, 4]), (false, false));
        assert_eq!(common(&[1, 5]), (false, false));
        assert_eq!([common(&[5]), common(&[])], [(false, false); 2]);
        let one = Locations::new(&all[..2]);
        assert!(one.are_unknown(), "nothing tells them apart");
        assert_eq!(Copies::default().common_with(at.of(WorkerId(1))), (false, false));
    }
}
