//! The state of units and of what workers hold, in bytes, for sums over segments.

use crate::cost::Costs;
use crate::ids::Unit;
use crate::layout::{Layout, SegmentRange};
use std::collections::BTreeSet;

/// State of each unit, those of the tied weight last, bytes.
pub(super) fn unit_bytes(costs: &Costs, layout: &Layout) -> Vec<u64> {
    let own = costs.segments.iter().map(|s| s.parameters);
    let all = own.chain([costs.tied_parameters]);
    let unit = |parameters: u64| parameters * costs.parameter.moved / u64::from(layout.ranges);
    let units = all.flat_map(|parameters| std::iter::repeat_n(unit(parameters), layout.ranges as usize));
    units.collect()
}

/// The bytes of state that a worker holds, as prefix sums over segments.
pub(super) struct Held {
    /// `before[s]`: bytes held of segments `0..s`.
    before: Vec<u64>,
    tied: u64,
}

impl Held {
    pub(super) fn new(layout: &Layout, bytes: &[u64], held: &[Unit]) -> Held {
        let held: BTreeSet<Unit> = held.iter().copied().collect();
        let of = |unit: Unit| match held.contains(&unit) {
            true => bytes.get(unit.index()).copied().unwrap_or(0),
            false => 0,
        };
        let whole = |unit: Unit| -> u64 { layout.ranges_of(unit).map(of).sum() };
        let mut before = vec![0];
        for s in 0..layout.segments {
            before.push(before[s as usize] + whole(Unit(s)));
        }
        Held {
            before,
            tied: layout.tied_unit().map_or(0, whole),
        }
    }

    pub(super) fn of(&self, layout: &Layout, range: SegmentRange) -> u64 {
        let ends = layout
            .tied_unit()
            .is_some_and(|t| layout.undivided().stage_needs(range, t));
        self.before[range.end as usize] - self.before[range.start as usize] + if ends { self.tied } else { 0 }
    }

    pub(super) fn all(&self) -> u64 {
        self.before.last().copied().unwrap_or(0) + self.tied
    }
}
