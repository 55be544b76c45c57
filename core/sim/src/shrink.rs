//! Shrinks a schedule that breaks an invariant to as few of its faults as still break it.
//!
//! Faults are removed by delta debugging (Zeller and Hildebrandt 2002): halves, quarters and so on, as long as the same invariant is
//! broken. Without a fault the rest of the schedule may run differently, so the list need not be the smallest, but it is always the same.

use crate::check::Violation;
use crate::world::{InjectedFault, World};
use std::collections::BTreeSet;
use varuna_protocol::Mutant;

/// Maximum number of schedules that are tried.
pub const ATTEMPTS: usize = 400;

/// A schedule that breaks an invariant, with few faults.
#[derive(Clone, PartialEq, Debug)]
pub struct Shrunk {
    /// The invariant that the schedule breaks with these faults.
    pub violation: Violation,
    /// The faults.
    pub faults: Vec<InjectedFault>,
    /// Schedules that were tried.
    pub attempts: usize,
}

/// Removes faults from the schedule of a seed, as long as it breaks the invariant that it breaks with all of them. None if it breaks none.
#[must_use]
pub fn shrink(seed: u64, mutant: Option<Mutant>) -> Option<Shrunk> {
    let mut search = Search::begin(seed, mutant)?;
    if search.fails_with(&[]) {
        return Some(search.best);
    }
    let mut parts = 2;
    while search.numbers().len() > 1 && search.best.attempts < ATTEMPTS {
        let numbers = search.numbers();
        let size = numbers.len().div_ceil(parts);
        let without = |part: usize| {
            let left_out = part * size..(part + 1) * size;
            let kept = numbers.iter().enumerate().filter(|(i, _)| !left_out.contains(i));
            kept.map(|(_, number)| *number).collect::<Vec<_>>()
        };
        let smaller = (0..numbers.len().div_ceil(size)).any(|part| search.fails_with(&without(part)));
        if smaller {
            parts = 2.max(parts - 1);
        } else if size == 1 {
            break;
        } else {
            parts = numbers.len().min(parts * 2);
        }
    }
    Some(search.best)
}

struct Search {
    seed: u64,
    mutant: Option<Mutant>,
    best: Shrunk,
}

impl Search {
    fn begin(seed: u64, mutant: Option<Mutant>) -> Option<Search> {
        let mut world = World::with_faults(seed, mutant, None);
        let violation = world.run().err()?;
        let best = Shrunk {
            violation,
            faults: world.faults().to_vec(),
            attempts: 1,
        };
        Some(Search { seed, mutant, best })
    }

    fn numbers(&self) -> Vec<usize> {
        self.best.faults.iter().map(|f| f.number).collect()
    }

    /// Whether the same invariant is broken with only these faults. If so, the faults that happen become the best list.
    fn fails_with(&mut self, numbers: &[usize]) -> bool {
        if self.best.attempts >= ATTEMPTS {
            return false;
        }
        self.best.attempts += 1;
        let only: BTreeSet<usize> = numbers.iter().copied().collect();
        let mut world = World::with_faults(self.seed, self.mutant, Some(only));
        match world.run() {
            Err(violation) if violation.invariant == self.best.violation.invariant => {
                self.best.violation = violation;
                self.best.faults = world.faults().to_vec();
                true
            }
            _ => false,
        }
    }
}
