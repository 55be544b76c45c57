//! Retention: which checkpoints may be deleted. The decision is pure; [`crate::Location::prune`] carries it out.

use crate::listed::Listed;
use varuna_plan::StateId;

/// What was deleted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pruned {
    /// Complete checkpoints.
    pub checkpoints: Vec<StateId>,
    /// Leftovers of checkpoints that were never completed.
    pub orphans: Vec<StateId>,
}

/// What may be deleted of `all`: complete checkpoints older than the newest `keep`, and leftovers older than the newest
/// complete one (a newer leftover may still be in upload). Checkpoints marked as damaged do not count towards `keep`, and
/// are deleted when `keep` sound ones are newer. Nothing in `protected` is ever deleted.
#[must_use]
pub fn prunable(all: &[Listed], keep: usize, protected: &[StateId]) -> Pruned {
    let mut sound: Vec<StateId> = all.iter().filter(|l| l.is_usable()).map(|l| l.id).collect();
    sound.sort_unstable();
    sound.reverse();
    let Some(newest) = sound.first().copied() else {
        return Pruned::default();
    };
    let oldest_kept = sound.get(keep.max(1) - 1).copied();
    let unprotected = |id: &StateId| !protected.contains(id);
    let beyond = |id: &StateId| oldest_kept.is_some_and(|oldest| *id < oldest);
    let ids = |complete: bool| all.iter().filter(move |l| l.manifest == complete).map(|l| l.id);
    Pruned {
        checkpoints: ids(true).filter(unprotected).filter(beyond).collect(),
        orphans: ids(false).filter(unprotected).filter(|id| *id < newest).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use varuna_plan::state::Chain;
    use varuna_plan::{Generation, Step};

    fn id(step: u64) -> StateId {
        StateId {
            run_gen: Generation(1),
            step: Step(step),
            chain: Chain(step),
        }
    }

    fn listed(step: u64, manifest: bool, refused: bool) -> Listed {
        Listed {
            id: id(step),
            manifest,
            refused,
            files: BTreeMap::new(),
        }
    }

    proptest! {
        #[test]
        fn the_newest_sound_ones_and_what_is_protected_always_stay(
            all in prop::collection::btree_map(1u64..40, (any::<bool>(), any::<bool>()), 0..20),
            keep in 1usize..5, protected in prop::collection::btree_set(1u64..40, 0..3)
        ) {
            let all: Vec<Listed> = all.into_iter().map(|(s, (m, r))| listed(s, m, r)).collect();
            let protected: Vec<StateId> = protected.into_iter().map(id).collect();
            let deleted = prunable(&all, keep, &protected);
            let deleted: Vec<StateId> = deleted.checkpoints.into_iter().chain(deleted.orphans).collect();
            let sound: Vec<StateId> = all.iter().rev().filter(|l| l.is_usable()).map(|l| l.id).collect();
            for kept in sound.iter().take(keep).chain(&protected) {
                prop_assert!(!deleted.contains(kept));
            }
            for old in sound.iter().skip(keep).filter(|o| !protected.contains(o)) {
                prop_assert!(deleted.contains(old));
            }
            // Anything newer than the newest sound one may still be in upload.
            for l in all.iter().filter(|l| sound.first().is_none_or(|n| l.id > *n)) {
                prop_assert!(!deleted.contains(&l.id));
            }
        }
    }
}
