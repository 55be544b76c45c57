//! Retention: which checkpoints may be deleted. The decision is pure; [`crate::Location::prune`] carries it out.

use crate::listed::Listed;
use varuna_plan::StateId;

/// How many unfinished checkpoints that are newer than every complete one may still be finished. A worker uploads at most two states at a time,
/// and one may be left that a plan before has begun.
const UNFINISHED_MAX: usize = 3;

/// Number of newer usable checkpoints with which an extra one is deleted. One is not enough: it may be found damaged when it is read.
const NEWER_THAN_EXTRA: usize = 2;

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
    /// Number of the newest complete checkpoints that stay, without the extra ones; at least one does.
    pub keep: usize,
    /// Checkpoints that are never deleted.
    pub protected: &'a [StateId],
    /// Checkpoints that the run has given up and that are not marked yet. It never resumes from them, so they do not count towards `keep`.
    pub void: &'a [StateId],
    /// Valid checkpoints of another model, optimizer or format. They belong to another run, so they are left alone and do not count.
    pub foreign: &'a [StateId],
    /// Checkpoints that were made only because of the losses of workers. They do not count towards `keep`: they may be seconds apart, and
    /// regular ones, to which a user may want to return, would soon be gone. They are only needed until newer ones exist.
    pub extra: &'a [StateId],
    /// Unfinished checkpoints that lack nothing but their manifest, which they get. None: it is not known which do; then no unfinished
    /// checkpoint is deleted that is newer than every complete one.
    pub completable: Option<&'a [StateId]>,
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
            extra: &[],
            completable: None,
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

    /// The unfinished checkpoints that are newer than every complete one and that nobody finishes any more, oldest first. Where workers are lost
    /// more often than a checkpoint is completed, each leaves some of its shards, until a disk is full and no other one has room.
    fn given_up(&self, all: &[Listed], newest: Option<StateId>) -> Vec<StateId> {
        let Some(completable) = self.completable else {
            return Vec::new();
        };
        let is_newer = |id: &StateId| newest.is_none_or(|newest| *id > newest);
        let unfinished = all.iter().filter(|l| !l.manifest).map(|l| l.id);
        let mut given_up: Vec<StateId> = unfinished
            .filter(is_newer)
            .filter(|id| !completable.contains(id))
            .collect();
        given_up.sort_unstable();
        given_up.truncate(given_up.len().saturating_sub(UNFINISHED_MAX));
        given_up
    }

    /// The newest checkpoint that a run can resume from. Newer ones may still be in upload.
    pub(crate) fn newest_of(&self, all: &[Listed]) -> Option<StateId> {
        self.counting(all).first().copied()
    }
}

/// The checkpoints in `all` that may be deleted: complete ones older than the newest `keep`, and leftovers. A leftover is older than the newest
/// complete one, or than several unfinished ones (otherwise it may still be in upload). An extra checkpoint does not count towards `keep`, and
/// is deleted when two valid ones of any kind are newer. Damaged and void checkpoints do not count either, and are deleted when so many valid
/// ones are newer that a valid one in their place would be deleted. A protected or foreign checkpoint is never deleted.
#[must_use]
pub fn prunable(all: &[Listed], retention: &Retention<'_>) -> Pruned {
    let counting = retention.counting(all);
    let newest = counting.first().copied();
    let given_up = retention.given_up(all, newest);
    let oldest_extra = counting.get(NEWER_THAN_EXTRA - 1).copied();
    let mut regular = counting.iter().filter(|id| !retention.extra.contains(id));
    let oldest_regular = regular.nth(retention.keep.max(1) - 1).copied();
    let free = |id: &StateId| !retention.protected.contains(id) && !retention.foreign.contains(id);
    let beyond = |id: &StateId| {
        let oldest_kept = match retention.extra.contains(id) {
            true => oldest_extra,
            false => oldest_regular,
        };
        oldest_kept.is_some_and(|oldest| *id < oldest)
    };
    let is_left = |id: &StateId| newest.is_some_and(|newest| *id < newest) || given_up.contains(id);
    let ids = |complete: bool| all.iter().filter(move |l| l.manifest == complete).map(|l| l.id);
    Pruned {
        checkpoints: ids(true).filter(free).filter(beyond).collect(),
        orphans: ids(false).filter(free).filter(is_left).collect(),
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
            void in prop::collection::btree_set(1u64..40, 0..8), foreign in prop::collection::btree_set(1u64..40, 0..8),
            extra in prop::collection::btree_set(1u64..40, 0..8),
            completable in prop::option::of(prop::collection::btree_set(1u64..40, 0..8))
        ) {
            let all: Vec<Listed> = all.into_iter().map(|(s, (m, r))| listed(s, m, r)).collect();
            let ids = |steps: std::collections::BTreeSet<u64>| -> Vec<StateId> { steps.into_iter().map(id).collect() };
            let (protected, void, foreign, extra) = (ids(protected), ids(void), ids(foreign), ids(extra));
            let completable = completable.map(ids);
            let retention = Retention {
                keep, protected: &protected, void: &void, foreign: &foreign, extra: &extra, completable: completable.as_deref(),
            };
            let deleted = prunable(&all, &retention);
            let deleted: Vec<StateId> = deleted.checkpoints.into_iter().chain(deleted.orphans).collect();
            let mut sound: Vec<StateId> = all.iter().rev().filter(|l| l.is_usable()).map(|l| l.id).collect();
            sound.retain(|id| !void.contains(id) && !foreign.contains(id));
            let regular: Vec<StateId> = sound.iter().filter(|id| !extra.contains(id)).copied().collect();
            let newest = sound.iter().take(1);
            for kept in regular.iter().take(keep).chain(newest).chain(&protected).chain(&foreign) {
                prop_assert!(!deleted.contains(kept));
            }
            // Checkpoints with wrong bits do not count as kept, and are deleted if they are old enough.
            if let Some(oldest) = regular.get(keep - 1) {
                let old = |id: &&StateId| *id < oldest && all.iter().any(|l| l.id == **id && l.manifest);
                let ours = |id: &&StateId| !protected.contains(id) && !foreign.contains(id) && !extra.contains(id);
                for id in void.iter().filter(old).filter(ours) {
                    prop_assert!(deleted.contains(id));
                }
            }
            for old in regular.iter().skip(keep).filter(|o| !protected.contains(o)) {
                prop_assert!(deleted.contains(old));
            }
            for (newer, id) in sound.iter().enumerate().filter(|(_, id)| extra.contains(id) && !protected.contains(id)) {
                prop_assert_eq!(deleted.contains(id), newer >= NEWER_THAN_EXTRA, "{} are newer", newer);
            }
            // The last ones that are newer than the newest valid checkpoint may still be uploading.
            let newer = all.iter().rev().filter(|l| sound.first().is_none_or(|n| l.id > *n));
            let (complete, unfinished): (Vec<_>, Vec<_>) = newer.partition(|l| l.manifest);
            let known = completable.is_some();
            let last = unfinished.iter().take(if known { UNFINISHED_MAX } else { usize::MAX });
            for l in complete.iter().chain(last) {
                prop_assert!(!deleted.contains(&l.id));
            }
            for id in completable.iter().flatten().filter(|id| sound.first().is_none_or(|n| *id > n)) {
                prop_assert!(!deleted.contains(id), "it gets its manifest");
            }
        }

        #[test]
        fn extra_checkpoints_take_no_place_and_stay_few(
            steps in prop::collection::btree_map(1u64..40, any::<bool>(), 0..20), keep in 1usize..5
        ) {
            let extra: Vec<StateId> = steps.iter().filter(|(_, extra)| **extra).map(|(step, _)| id(*step)).collect();
            let all: Vec<Listed> = steps.keys().map(|step| listed(*step, true, false)).collect();
            let regular: Vec<Listed> = all.iter().filter(|l| !extra.contains(&l.id)).cloned().collect();
            let retention = Retention { extra: &extra, ..Retention::newest(keep) };
            let deleted = prunable(&all, &retention).checkpoints;
            let (deleted_extra, deleted): (Vec<StateId>, Vec<StateId>) = deleted.into_iter().partition(|id| extra.contains(id));
            prop_assert_eq!(deleted, prunable(&regular, &Retention::newest(keep)).checkpoints);
            prop_assert!(extra.len() - deleted_extra.len() <= NEWER_THAN_EXTRA);
        }
    }

    #[test]
    fn extra_checkpoints_do_not_push_regular_ones_out_of_keep() {
        // Two regular ones, then four because of losses, seconds apart.
        let all: Vec<Listed> = (1..=7).map(|step| listed(step, true, false)).collect();
        let extra = [3, 4, 5, 6].map(id);
        let retention = Retention {
            extra: &extra,
            ..Retention::newest(2)
        };
        let deleted = |all: &[Listed]| prunable(all, &retention).checkpoints;
        assert!(deleted(&all[..4]).is_empty(), "one is newer than the third");
        assert_eq!(deleted(&all[..6]), [id(3), id(4)]);
        // The next regular one takes the place of the first.
        assert_eq!(deleted(&all), [id(1), id(3), id(4), id(5)]);
        // Also where all are extra, the newest two stay.
        assert_eq!(deleted(&all[2..6]), [id(3), id(4)]);
        assert!(deleted(&all[2..3]).is_empty());
    }

    #[test]
    fn what_lost_workers_leave_does_not_fill_the_store() {
        // One complete checkpoint, then uploads none of which was finished; the second one lacks its manifest alone.
        let all: Vec<Listed> = (1..=7).map(|step| listed(step, step == 1, false)).collect();
        let completable = [id(3)];
        let retention = Retention {
            completable: Some(&completable),
            ..Retention::newest(3)
        };
        let pruned = prunable(&all, &retention);
        assert_eq!((pruned.checkpoints, pruned.orphans), (vec![], vec![id(2), id(4)]));
        // Also where none was ever complete.
        let pruned = prunable(&all[1..], &retention);
        assert_eq!(pruned.orphans, [id(2), id(4)]);
        assert_eq!(prunable(&all, &Retention::newest(3)), Pruned::default());
    }
}
