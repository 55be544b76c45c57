//! Compares the holders of each unit, which must have equal bits, from time to time: nothing else finds a device that computes or stores
//! wrong bits without failing.
//!
//! A pure function of what holders report. Reports may be lost: a comparison that stays open is dropped for a newer one.

use crate::message::Digests;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use varuna_plan::{Plan, StateId, Unit, WorkerId};

/// Maximum number of states that are compared at the same time: reports about one may still be on their way when the next comparison
/// begins.
const OPEN_MAX: usize = 4;

/// What holders reported about one state.
struct Open {
    /// The plan that led to the state.
    plan: Arc<Plan>,
    /// Whether all of them put it into the store.
    saved: bool,
    /// Number of workers that hold a unit that others hold too.
    holders: usize,
    said: BTreeMap<WorkerId, BTreeMap<Unit, u64>>,
}

/// The comparisons under way, and the last one that was finished.
#[derive(Default)]
pub(super) struct Comparison {
    open: BTreeMap<StateId, Open>,
    /// The greatest state whose comparison has ended.
    ended: Option<StateId>,
    /// A compared checkpoint that is not in the record yet.
    pub(super) unwritten: Option<StateId>,
    /// Whether holders differed and there was no majority: the run goes back as soon as it can.
    pub(super) rolls_back: bool,
}

/// The result of comparing the holders of a state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ComparisonResult {
    /// All holders have equal bits.
    Equal {
        /// Whether all of them put the state into the store.
        saved: bool,
    },
    /// Holders of these units differ.
    Differ {
        /// Units whose digests differ.
        units: Vec<Unit>,
        /// Workers whose copies differ from those of the majority; empty if some unit has no majority.
        odd: BTreeSet<WorkerId>,
    },
}

impl Comparison {
    /// States that are being compared.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Forgets earlier comparisons, which are no longer valid after a rollback.
    pub(super) fn begin_anew(&mut self) {
        *self = Self::default();
    }

    /// Takes a worker's digests of a state that `plan` led to. Returns the verdict once all holders of units that are held more than once
    /// have reported theirs.
    pub(super) fn take(
        &mut self,
        from: WorkerId,
        digests: &Digests,
        plan: &Arc<Plan>,
    ) -> Option<ComparisonResult> {
        let id = digests.id;
        if self.ended.is_some_and(|ended| id <= ended) || id.run_gen != plan.generation || !plan.has(from) {
            return None;
        }
        let open = self.open.entry(id).or_insert_with(|| Open {
            plan: plan.clone(),
            saved: digests.saved,
            holders: shared_units(plan)
                .flat_map(|(_, holders)| holders)
                .collect::<BTreeSet<_>>()
                .len(),
            said: BTreeMap::new(),
        });
        open.saved &= digests.saved;
        let held = digests.units.iter().copied();
        let held = held.filter(|(unit, _)| open.plan.holders(*unit).contains(&from));
        open.said.insert(from, held.collect());
        let verdict = open.verdict();
        if verdict.is_some() {
            self.ended = Some(id);
            self.open = self.open.split_off(&id);
            self.open.remove(&id);
        } else if self.open.len() > OPEN_MAX {
            self.open.pop_first();
        }
        verdict
    }
}

impl Open {
    /// The verdict; none while some holder has not reported.
    fn verdict(&self) -> Option<ComparisonResult> {
        if self.said.len() < self.holders {
            return None;
        }
        let (mut units, mut odd) = (Vec::new(), BTreeSet::new());
        let mut undecided = false;
        for (unit, holders) in shared_units(&self.plan) {
            let mut groups: BTreeMap<u64, Vec<WorkerId>> = BTreeMap::new();
            for holder in &holders {
                let digest = *self.said.get(holder)?.get(&unit)?;
                groups.entry(digest).or_default().push(*holder);
            }
            if groups.len() < 2 || bug!(ComparisonFindsNothing) {
                continue;
            }
            units.push(unit);
            let has_majority = |group: &Vec<WorkerId>| 2 * group.len() > holders.len();
            undecided |= !groups.values().any(has_majority);
            let is_odd = |group: &&Vec<WorkerId>| has_majority(group) == bug!(ReplaceMajority);
            odd.extend(groups.values().filter(is_odd).flatten().copied());
        }
        if units.is_empty() {
            return Some(ComparisonResult::Equal { saved: self.saved });
        }
        if undecided {
            odd.clear();
        }
        Some(ComparisonResult::Differ { units, odd })
    }
}

/// The units that are held more than once, and by whom.
fn shared_units(plan: &Plan) -> impl Iterator<Item = (Unit, BTreeSet<WorkerId>)> {
    let units = plan.layout.all_units();
    let held = units.map(|u| (u, plan.holders(u).iter().copied().collect::<BTreeSet<_>>()));
    held.filter(|(_, holders)| holders.len() > 1)
}
