//! Retention: which checkpoints may be deleted. The decision is pure; [`crate::Location::prune`] carries it out.

use crate::listed::Listed;
use varuna_plan::StateId;

/// The checkpoints and files that were deleted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pruned {
    /// Complete checkpoints.
    pub checkpoints: Vec<StateId>,
    /// Leftovers of checkpoints that were never completed.
    pub orphans: Vec<StateId>,
}

/// What decides about deletions besides the listing itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retention<'a> {
    /// Number of the newest complete checkpoints that stay; at least one does.
    pub keep: usize,
    /// Checkpoints that are never deleted.
    pub protected: &'a [StateId],
    /// Checkpoints that the run has given up and that are not marked yet. It never resumes from them, so they do not count towards `keep`.
    pub void: &'a [StateId],
    /// Valid checkpoints of another model, optimizer or format. They belong to another run, so they are left alone and do not count.
    pub foreign: &'a [StateId],
}

impl Retention<'_> {
    /// Keeps the newest `keep`; nothing else is known.
    #[must_use]
    pub fn newest(keep: usize) -> Self {
        Retention {
            keep,
            protected: &[],
            void: &[],
            foreign: &[],
        }
    }

    /// The checkpoints that a run can resume from, the newest first.
    fn counting(&self, all: &[Listed]) -> Vec<StateId> {
        let counts =
            |l: &&Listed| l.is_usable() && !self.void.contains(&l.id) && !self.foreign.contains(&l.id);
        let mut counting: Vec<StateId> = all.iter().filter(counts).map(|l| l.id).collect();
        counting.sort_unstable();
        counting.reverse();
        counting
    }

    /// The newest checkpoint that a run can resume from. Newer ones may still be in upload.
    pub(crate) fn newest_of(&self, all: &[Listed]) -> Option<StateId> {
        self.counting(all).first().copied()
    }
}

/// The checkpoints in `all` that may be deleted: complete ones older than the newest `keep`, and leftovers older than the newest complete
/// one (a newer leftover may still be in upload). Damaged and void checkpoints do not count towards `keep`, and are deleted when `keep`
/// valid ones are newer. A protected or foreign checkpoint is never deleted.
#[must_use]
pub fn prunable(all: &[Listed], retention: &Retention<'_>) -> Pruned {
    let counting = retention.counting(all);
    let Some(newest) = counting.first().copied() else {
        return Pruned::default();
    };
    let oldest_kept = counting.get(retention.keep.max(1) - 1).copied();
    let free = |id: &StateId| !retention.protected.contains(id) && !retention.foreign.contains(id);
    let beyond = |id: &StateId| oldest_kept.is_some_and(|oldest| *id < oldest);
    let ids = |complete: bool| all.iter().filter(move |l| l.manifest == complete).map(|l| l.id);
    Pruned {
        checkpoints: ids(true).filter(free).filter(beyond).collect(),
        orphans: ids(false).filter(free).filter(|id| *id < newest).collect(),
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

    fn listed(step: u64, manifest: bool, marked_damaged: bool) -> Listed {
        Listed {
            id: id(step),
            manifest,
            marked_damaged,
            files: BTreeMap::new(),
        }
    }

    proptest! {
        #[test]
        fn the_newest_sound_ones_and_what_is_protected_always_stay(
            all in prop::collection::btree_map(1u64..40, (any::<bool>(), any::<bool>()), 0..20),
            keep in 1usize..5, protected in prop::collection::btree_set(1u64..40, 0..3),
            void in prop::collection::btree_set(1u64..40, 0..8), foreign in prop::collection::btree_set(1u64..40, 0..8)
        ) {
            let all: Vec<Listed> = all.into_iter().map(|(s, (m, r))| listed(s, m, r)).collect();
            let ids = |steps: std::collections::BTreeSet<u64>| -> Vec<StateId> { steps.into_iter().map(id).collect() };
            let (protected, void, foreign) = (ids(protected), ids(void), ids(foreign));
            let retention = Retention { keep, protected: &protected, void: &void, foreign: &foreign };
            let deleted = prunable(&all, &retention);
            let deleted: Vec<StateId> = deleted.checkpoints.into_iter().chain(deleted.orphans).collect();
            let mut sound: Vec<StateId> = all.iter().rev().filter(|l| l.is_usable()).map(|l| l.id).collect();
            sound.retain(|id| !void.contains(id) && !foreign.contains(id));
            for kept in sound.iter().take(keep).chain(&protected).chain(&foreign) {
                prop_assert!(!deleted.contains(kept));
            }
            // Checkpoints with wrong bits do not count as kept, and are deleted if they are old enough.
            if let Some(oldest) = sound.get(keep - 1) {
                let old = |id: &&StateId| *id < oldest && all.iter().any(|l| l.id == **id && l.manifest);
                let ours = |id: &&StateId| !protected.contains(id) && !foreign.contains(id);
                for id in void.iter().filter(old).filter(ours) {
                    prop_assert!(deleted.contains(id));
                }
            }
            for old in sound.iter().skip(keep).filter(|o| !protected.contains(o)) {
                prop_assert!(deleted.contains(old));
            }
            // Anything newer than the newest valid checkpoint may still be uploading.
            for l in all.iter().filter(|l| sound.first().is_none_or(|n| l.id > *n)) {
                prop_assert!(!deleted.contains(&l.id));
            }
        }
    }
}
