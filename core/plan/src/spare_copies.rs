//! Spare copies: which worker keeps a copy of a unit that only one worker holds (ADR 27), and whether that repays its cost. Pure: the
//! coordinator asks, and writes the answer into the plan.

use crate::document::Shape;
use crate::ids::{Unit, WorkerId};
use crate::layout::Layout;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

mod auto;
mod room;
pub use auto::{Expected, SpareCopyDecision, decide};
pub use room::without_room_to_follow;

/// Whether the job wants spare copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SpareCopies {
    /// No copies are kept.
    #[default]
    Off,
    /// One copy of each unit that only one worker holds, if some worker has memory for it, and its gradients fit into the links
    /// ([`LINK_SHARE_MAX`]).
    One,
    /// Like `One`, if [`decide`] finds that it repays its cost.
    Auto,
}

impl SpareCopies {
    /// Whether no copies are kept.
    #[must_use]
    pub fn is_off(&self) -> bool {
        *self == SpareCopies::Off
    }
}

/// Maximum number of gradients of one unit that may wait at its keeper. A copy on its way is three times as large as a gradient, so a link
/// that keeps up with the run never has more gradients waiting behind it. Memory for this many is counted.
pub const WAITING_GRADIENTS_MAX: u32 = 4;

/// Maximum number of workers whose copies one worker keeps. With one each, all workers have the same load; a second is needed if some
/// worker has no memory or is too near.
pub const HOLDERS_PER_KEEPER: usize = 2;

/// Maximum share of a step in which a worker's link may carry gradients for spare copies, in each direction: activations and rings need the
/// rest. What does not fit is not sent: the copy would never be up to date, and would only slow training down.
pub const LINK_SHARE_MAX: f64 = 0.5;

/// The location of a worker; empty = not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location<'a> {
    /// Node of the worker.
    pub node: &'a str,
    /// Where that node is, from the widest part to the narrowest: `zone-a/block-3`.
    pub domain: &'a str,
}

/// What copies of units cost under one shape: spare copies, and those that workers have for a while when plans change.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SpareCosts {
    /// By unit: bytes in its keeper's memory, for the unit and for the gradients that may wait. A unit that is not listed needs none.
    pub copy_bytes: Vec<u64>,
    /// Memory of each worker that its stages do not use, bytes. A worker that is not listed has memory for everything.
    pub room_bytes: BTreeMap<WorkerId, u64>,
    /// Memory for copies of each worker that keeps them beside the memory of training, bytes: in the host's memory beside a GPU's.
    pub apart_bytes: BTreeMap<WorkerId, u64>,
    /// By unit: bytes in the memory of a worker that holds it. A unit that is not listed needs none.
    pub held_bytes: Vec<u64>,
    /// By unit: bytes for its parameters as they are computed with, and their gradients. A unit that is not listed needs none.
    pub without_state_bytes: Vec<u64>,
    /// By unit: how long its parameters, as they are computed with, occupy a link, milliseconds. A unit that is not listed takes no time.
    pub parameters_ms: Vec<f64>,
    /// By unit: how long its gradient occupies a link in each step, milliseconds. A unit that is not listed takes no time.
    pub send_ms: Vec<f64>,
}

impl SpareCosts {
    /// Memory of a worker for the copies that it keeps, bytes; none if it has memory for everything.
    fn copies_room(&self, worker: WorkerId) -> Option<u64> {
        let apart = self.apart_bytes.get(&worker);
        let apart = apart.filter(|_| !bug!(KeepApartInTrainingsMemory));
        apart.or_else(|| self.room_bytes.get(&worker)).copied()
    }

    /// Whether the copies that a worker keeps take memory that its training could use.
    fn takes_trainings_memory(&self, keeper: WorkerId) -> bool {
        !self.apart_bytes.contains_key(&keeper)
    }

    fn copy(&self, layout: &Layout, unit: Unit) -> u64 {
        of_unit(&self.copy_bytes, layout, unit)
    }

    pub(crate) fn held(&self, layout: &Layout, unit: Unit) -> u64 {
        of_unit(&self.held_bytes, layout, unit)
    }

    pub(crate) fn without_state(&self, layout: &Layout, unit: Unit) -> u64 {
        of_unit(&self.without_state_bytes, layout, unit)
    }

    fn send(&self, layout: &Layout, unit: Unit) -> f64 {
        time_of_unit(&self.send_ms, layout, unit)
    }

    pub(crate) fn parameters(&self, layout: &Layout, unit: Unit) -> f64 {
        time_of_unit(&self.parameters_ms, layout, unit)
    }
}

/// Milliseconds of a unit, from those of the units of the undivided layout.
fn time_of_unit(ms: &[f64], layout: &Layout, unit: Unit) -> f64 {
    let whole = ms.get(layout.whole_of(unit).index());
    whole.map_or(0.0, |ms| ms / f64::from(layout.ranges))
}

/// Bytes of a unit, from those of the units of the undivided layout.
fn of_unit(bytes: &[u64], layout: &Layout, unit: Unit) -> u64 {
    let whole = bytes.get(layout.whole_of(unit).index());
    whole.map_or(0, |bytes| bytes / u64::from(layout.ranges))
}

/// Which workers keep spare copies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Keepers {
    /// For each unit, the worker that keeps its spare copy. None for a unit with several holders, and for one that nobody can keep. Empty if
    /// no copy is kept.
    pub of_units: Vec<Option<WorkerId>>,
    /// Whether some unit has no keeper because its gradients would take more of a link than [`LINK_SHARE_MAX`].
    pub links_too_slow: bool,
}

/// Why nobody keeps a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Without {
    /// No worker that can keep copies has memory for it.
    Memory,
    /// Some have memory, but receive too much already.
    Link,
}

/// Chooses who keeps the copies of the units that only one worker holds.
///
/// A holder's units go to one keeper if some worker has memory for all of them: that takes only one more connection and one stream. Keepers
/// are chosen as far away as possible (another zone, then another node), then among those that keep least, then the holder's successor in
/// the order of pipelines and stages. Of a holder whose gradients take more of its link than [`LINK_SHARE_MAX`], nothing is kept: copies of
/// some of its units alone would not survive its loss. `able`: whether the worker can hold and keep spare copies. `step_ms`: the time of a
/// step.
#[must_use]
pub fn keepers(
    layout: &Layout,
    shape: &Shape,
    locations: &BTreeMap<WorkerId, Location<'_>>,
    able: impl Fn(WorkerId) -> bool,
    costs: &SpareCosts,
    step_ms: f64,
) -> Keepers {
    let mut alone: BTreeMap<WorkerId, Vec<Unit>> = BTreeMap::new();
    for unit in layout.all_units() {
        if let [holder] = shape.holders(layout, unit)[..]
            && able(holder)
        {
            alone.entry(holder).or_default().push(unit);
        }
    }
    let mut seen = BTreeSet::new();
    let stages = shape.pipelines.iter().flat_map(|p| &p.stages);
    let members = stages.map(|s| s.worker).filter(|w| seen.insert(*w));
    let mut choice = Choice {
        layout,
        locations,
        order: members.filter(|w| able(*w) || bug!(KeeperThatCannot)).collect(),
        kept: BTreeMap::new(),
        costs,
        link_ms: LINK_SHARE_MAX * step_ms,
    };
    let mut of_units = vec![None; layout.units()];
    let mut links_too_slow = false;
    for holder in choice.order.clone() {
        let Some(units) = alone.get(&holder) else { continue };
        if !choice.fits_link(choice.send_ms(units)) {
            links_too_slow = true;
            continue;
        }
        let whole = choice.take(holder, units).ok();
        let whole = whole.filter(|_| !bug!(SpreadOneHolder));
        for unit in units {
            let found = match whole {
                Some(keeper) => Ok(keeper),
                None => choice.take(holder, std::slice::from_ref(unit)),
            };
            links_too_slow |= found == Err(Without::Link);
            if let Some(entry) = of_units.get_mut(unit.index()) {
                *entry = found.ok();
            }
        }
    }
    if of_units.iter().all(Option::is_none) {
        of_units.clear();
    }
    Keepers {
        of_units,
        links_too_slow,
    }
}

/// The copies that a keeper has been assigned so far.
#[derive(Clone, Default)]
struct Kept {
    bytes: u64,
    /// How long its link receives their gradients in each step, milliseconds.
    received_ms: f64,
    holders: Vec<WorkerId>,
}

struct Choice<'a> {
    layout: &'a Layout,
    locations: &'a BTreeMap<WorkerId, Location<'a>>,
    /// Members that can keep, in the order of pipelines and stages.
    order: Vec<WorkerId>,
    kept: BTreeMap<WorkerId, Kept>,
    costs: &'a SpareCosts,
    /// How long gradients may occupy a worker's link in each step and direction, milliseconds.
    link_ms: f64,
}

impl Choice<'_> {
    /// The worker that keeps all these units of the holder.
    fn take(&mut self, holder: WorkerId, units: &[Unit]) -> Result<WorkerId, Without> {
        let bytes = units.iter().fold(0_u64, |sum, u| {
            sum.saturating_add(self.costs.copy(self.layout, *u))
        });
        let ms = self.send_ms(units);
        let at = self.order.iter().position(|w| *w == holder);
        let (before, after) = self.order.split_at(at.ok_or(Without::Memory)?);
        let own = usize::from(!bug!(KeepOwnCopy));
        let others = after.iter().skip(own).chain(before).copied();
        let roomy: Vec<WorkerId> = others.filter(|w| self.has_room(*w, holder, bytes)).collect();
        let lacks = if roomy.is_empty() {
            Without::Memory
        } else {
            Without::Link
        };
        let open = roomy.into_iter().filter(|w| self.has_link(*w, ms));
        let keeper = open.min_by_key(|w| {
            let holders = self.kept.get(w).map_or(0, |k| k.holders.len());
            let holders = if bug!(IgnoreKept) { 0 } else { holders };
            (self.nearness(holder, *w), holders)
        });
        let keeper = keeper.ok_or(lacks)?;
        let kept = self.kept.entry(keeper).or_default();
        kept.bytes = kept.bytes.saturating_add(bytes);
        kept.received_ms += ms;
        if !kept.holders.contains(&holder) {
            kept.holders.push(holder);
        }
        Ok(keeper)
    }

    /// How long the gradients of these units occupy a link in each step, milliseconds.
    fn send_ms(&self, units: &[Unit]) -> f64 {
        units.iter().map(|unit| self.costs.send(self.layout, *unit)).sum()
    }

    fn fits_link(&self, ms: f64) -> bool {
        ms <= self.link_ms || bug!(FillLinksWithGradients)
    }

    /// Whether the worker's link can receive more.
    fn has_link(&self, worker: WorkerId, ms: f64) -> bool {
        let kept = self.kept.get(&worker).filter(|_| !bug!(ForgetReceivedGradients));
        self.fits_link(kept.map_or(0.0, |k| k.received_ms) + ms)
    }

    fn has_room(&self, worker: WorkerId, holder: WorkerId, bytes: u64) -> bool {
        let kept = self.kept.get(&worker);
        let there = kept.map_or(0, |k| k.bytes).saturating_add(bytes);
        let room = self.costs.copies_room(worker);
        let known = kept.is_some_and(|k| k.holders.contains(&holder));
        let full = kept.is_some_and(|k| k.holders.len() >= HOLDERS_PER_KEEPER);
        let fits = room.is_none_or(|room| there <= room) || bug!(KeepWithoutRoom);
        fits && (known || !full || bug!(KeepOfEveryone))
    }

    /// Whether both are on the same node, then how many parts of their domains are the same, from the widest on. Smaller is farther.
    /// Unknown locations count as different.
    fn nearness(&self, a: WorkerId, b: WorkerId) -> (bool, usize) {
        if bug!(KeepNearby) {
            return (false, 0);
        }
        let (Some(a), Some(b)) = (self.locations.get(&a), self.locations.get(&b)) else {
            return (false, 0);
        };
        let same_node = !a.node.is_empty() && a.node == b.node;
        let parts = a.domain.split('/').zip(b.domain.split('/'));
        let common = parts.take_while(|(a, b)| !a.is_empty() && a == b).count();
        (same_node, common)
    }
}

#[cfg(test)]
mod tests;
