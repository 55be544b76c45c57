//! The bookkeeping of following: what this worker sends to whom, and which units it follows itself. Nothing here asks or sends.

use crate::message::Following;
use std::collections::{BTreeMap, BTreeSet};
use varuna_plan::spare_copies::WAITING_GRADIENTS_MAX;
use varuna_plan::{Decision, StateId, Unit, WorkerId};

/// Maximum number of gradients of one unit that may wait on their way to one follower or in its engine.
const WAITING_MAX: u32 = WAITING_GRADIENTS_MAX;
/// Maximum number of copies on their way to one follower. Its source makes fewer if they have no room in the host's memory.
const COPIES_MAX: usize = 8;

/// Whom this worker sends copies and gradients to.
#[derive(Default)]
pub(super) struct Followers {
    /// Followers that need a copy, with the unit.
    asks: BTreeSet<(WorkerId, Unit)>,
    /// The copies on their way to each follower.
    copies: BTreeMap<WorkerId, Copies>,
    /// Units that were copied, and how many of their gradients are on the way.
    gradients: BTreeMap<(WorkerId, Unit), u32>,
}

/// Copies on their way to one follower. They are made between two steps, so one at a time would take as many steps as there are units.
///
/// The first commit makes as many as may be. A link that can carry the gradients of all units that the follower needs, step after step, carries
/// copies of these units within three steps, since a state is three times as large as its gradient: meanwhile no more gradients of a unit
/// wait behind the copies than may wait. After that a slow link costs less memory: the number is halved if copies take longer than a step,
/// and doubled if they do not.
struct Copies {
    on_the_way: BTreeSet<Unit>,
    /// Maximum number of copies on their way.
    most: usize,
    /// Whether some were still on the way at a commit after the one at which they were made, or had no memory.
    late: bool,
}

impl Copies {
    /// A step has been committed.
    fn stepped(&mut self) {
        let are_late = !self.on_the_way.is_empty();
        match (self.late, are_late) {
            (false, true) => self.halve(),
            (false, false) => self.most = (self.most * 2).min(COPIES_MAX),
            // That these are late was noted before.
            (true, _) => {}
        }
        self.late = are_late;
    }

    fn halve(&mut self) {
        self.most = (self.most / 2).max(1);
    }

    fn is_full(&self) -> bool {
        self.on_the_way.len() >= self.most
    }
}

impl Followers {
    /// A peer asks to follow a unit. `in_order`: it has what it was sent.
    pub(super) fn ask(&mut self, from: WorkerId, unit: Unit, in_order: bool) {
        let copying = self
            .copies
            .get(&from)
            .is_some_and(|c| c.on_the_way.contains(&unit));
        let known = in_order && self.gradients.contains_key(&(from, unit));
        if !copying && !known {
            self.gradients.remove(&(from, unit));
            self.asks.insert((from, unit));
        }
    }

    /// A peer has the state with which the present step begins: it needs the gradients from here on, and no copy.
    pub(super) fn admit(&mut self, from: WorkerId, unit: Unit) {
        self.asks.remove(&(from, unit));
        self.gradients.entry((from, unit)).or_default();
    }

    /// The same after the step was run, so that its gradient is to be sent now. True if that was not done.
    pub(super) fn admit_late(&mut self, from: WorkerId, unit: Unit) -> bool {
        self.asks.remove(&(from, unit));
        self.gradients.insert((from, unit), 1).is_none()
    }

    /// The copies to be made of the present state.
    pub(super) fn next_copies(&mut self, can: impl Fn(WorkerId, Unit) -> bool) -> Vec<(WorkerId, Unit)> {
        self.copies.values_mut().for_each(Copies::stepped);
        let mut next = Vec::new();
        for (to, unit) in &self.asks {
            let copies = self.copies.entry(*to).or_insert(Copies {
                on_the_way: BTreeSet::new(),
                most: COPIES_MAX,
                late: false,
            });
            if !copies.is_full() && can(*to, *unit) {
                copies.on_the_way.insert(*unit);
                self.gradients.insert((*to, *unit), 0);
                next.push((*to, *unit));
            }
        }
        for copied in &next {
            self.asks.remove(copied);
        }
        next
    }

    /// The gradients of the present step to be sent. A unit with too many waiting gradients is no longer followed: the follower asks again.
    pub(super) fn next_gradients(&mut self) -> Vec<(WorkerId, Unit)> {
        if !bug!(ForwardWithoutBound) {
            self.gradients.retain(|_, waiting| *waiting < WAITING_MAX);
        }
        self.gradients.values_mut().for_each(|waiting| *waiting += 1);
        self.gradients.keys().copied().collect()
    }

    /// A copy was sent completely.
    pub(super) fn copy_sent(&mut self, to: WorkerId, unit: Unit) {
        if let Some(copies) = self.copies.get_mut(&to) {
            copies.on_the_way.remove(&unit);
        }
    }

    /// There was no memory for a copy. The peer gets it after a later commit, and no gradients before it; fewer copies are made at a time.
    pub(super) fn not_copied(&mut self, to: WorkerId, unit: Unit) {
        let Some(copies) = self.copies.get_mut(&to) else {
            return;
        };
        if copies.on_the_way.remove(&unit) {
            copies.halve();
            copies.late = true;
            self.gradients.remove(&(to, unit));
            self.asks.insert((to, unit));
        }
    }

    /// A gradient was sent completely.
    pub(super) fn gradient_sent(&mut self, to: WorkerId, unit: Unit) {
        if let Some(waiting) = self.gradients.get_mut(&(to, unit)) {
            *waiting = waiting.saturating_sub(1);
        }
    }

    /// Whether the peer was sent all gradients of the unit since its copy.
    pub(super) fn has(&self, to: WorkerId, unit: Unit) -> bool {
        self.gradients.contains_key(&(to, unit))
    }

    /// Whether some of them are still on their way.
    pub(super) fn is_sending(&self, to: WorkerId, unit: Unit) -> bool {
        self.gradients
            .get(&(to, unit))
            .is_some_and(|waiting| *waiting > 0)
    }

    /// The connection to the peer is closed.
    pub(super) fn lose(&mut self, peer: WorkerId) {
        self.asks.retain(|(to, _)| *to != peer);
        self.copies.remove(&peer);
        self.gradients.retain(|(to, _), _| *to != peer);
    }

    /// The number of requests, and of transfers on their way.
    pub(super) fn len(&self) -> usize {
        let copies = self.copies.values().map(|c| c.on_the_way.len());
        self.asks.len() + copies.sum::<usize>() + self.gradients.len()
    }
}

/// A unit that this worker follows.
#[derive(Clone, Copy, PartialEq, Debug)]
struct FollowedUnit {
    /// The state it will have once the engine has done the work it was given.
    at: StateId,
    /// Whether a gradient has arrived since the copy.
    stepped: bool,
    /// Number of operations that the engine was given and has not done.
    in_engine: u32,
}

/// What becomes of a gradient that has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrived {
    Taken,
    /// The gradient was taken before, or is older than the copy.
    Old,
    /// Something before it is missing.
    Gap,
}

/// The units that this worker follows.
#[derive(Default)]
pub(super) struct Followed {
    units: BTreeMap<Unit, FollowedUnit>,
}

impl Followed {
    /// The state at which the unit is followed.
    pub(super) fn at(&self, unit: Unit) -> Option<StateId> {
        self.units.get(&unit).map(|u| u.at)
    }

    /// The engine takes a copy over.
    pub(super) fn copied(&mut self, unit: Unit, at: StateId) {
        let in_engine = 1 + self.units.get(&unit).map_or(0, |u| u.in_engine);
        let unit_now = FollowedUnit {
            at,
            stepped: false,
            in_engine,
        };
        self.units.insert(unit, unit_now);
    }

    /// A gradient has arrived. It is taken only if it continues the followed state.
    pub(super) fn gradient(&mut self, unit: Unit, decision: &Decision) -> Arrived {
        let Some(followed) = self.units.get_mut(&unit) else {
            return Arrived::Gap;
        };
        if decision.id <= followed.at && !bug!(ApplyForwardedOutOfOrder) {
            return Arrived::Old;
        }
        let next = decision.parent == followed.at || bug!(ApplyForwardedOutOfOrder);
        if !next || followed.in_engine >= WAITING_MAX {
            self.units.remove(&unit);
            return Arrived::Gap;
        }
        followed.at = decision.id;
        followed.stepped = true;
        followed.in_engine += 1;
        Arrived::Taken
    }

    /// The engine has done one of the operations it was given for the unit.
    pub(super) fn done(&mut self, unit: Unit) {
        if let Some(followed) = self.units.get_mut(&unit) {
            followed.in_engine = followed.in_engine.saturating_sub(1);
        }
    }

    /// The data that arrived was damaged: the unit needs another copy.
    pub(super) fn lose(&mut self, unit: Unit) {
        self.units.remove(&unit);
    }

    /// How far these units have come.
    ///
    /// They have caught up if all have advanced by a gradient, and none is more than a step behind another.
    pub(super) fn following(&self, units: &[Unit]) -> Following {
        let followed: Vec<&FollowedUnit> = units.iter().filter_map(|u| self.units.get(u)).collect();
        let steps = || followed.iter().map(|u| u.at.step);
        let Some((oldest, newest)) = steps().min().zip(steps().max()) else {
            return if units.is_empty() {
                Following::CaughtUp
            } else {
                Following::Able
            };
        };
        if followed.len() < units.len() {
            return Following::Able;
        }
        let together = newest <= oldest.next();
        match together && followed.iter().all(|u| u.stepped) {
            true => Following::CaughtUp,
            false => Following::Copied(oldest),
        }
    }

    /// The units followed.
    pub(super) fn units(&self) -> impl Iterator<Item = Unit> {
        self.units.keys().copied()
    }

    /// Units followed.
    pub(super) fn len(&self) -> usize {
        self.units.len()
    }
}
