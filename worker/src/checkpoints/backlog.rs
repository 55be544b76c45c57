//! Copies of states that wait for their upload: which is next, and which are dropped for newer ones.

use std::collections::{BTreeMap, BTreeSet};
use varuna_plan::{StateId, Unit};

/// Copies of type `C` that wait for upload, by state.
pub(super) struct Backlog<C>(BTreeMap<StateId, Batch<C>>);

/// The units of a state.
struct Batch<C> {
    /// Units that are wanted and not in the store yet: to be copied, waiting, or in upload.
    open: BTreeSet<Unit>,
    waiting: Vec<(Unit, C)>,
    uploading: usize,
}

impl<C> Default for Backlog<C> {
    fn default() -> Backlog<C> {
        Backlog(BTreeMap::new())
    }
}

impl<C> Backlog<C> {
    /// Makes room for a unit's state: older states that wait are dropped. False if a copy of the same state exists or is being made
    /// already: another one would have the same bits.
    pub(super) fn admit(&mut self, id: StateId, unit: Unit) -> bool {
        self.0.retain(|other, batch| *other >= id || batch.uploading > 0);
        let batch = self.0.entry(id).or_insert_with(|| Batch {
            open: BTreeSet::new(),
            waiting: Vec::new(),
            uploading: 0,
        });
        batch.open.insert(unit)
    }

    /// Whether a copy of an admitted unit's state is wanted still: not where its state was dropped meanwhile.
    pub(super) fn wants(&self, id: StateId, unit: Unit) -> bool {
        self.0.get(&id).is_some_and(|batch| batch.open.contains(&unit))
    }

    /// Adds a copy, if it is wanted still.
    pub(super) fn add(&mut self, id: StateId, unit: Unit, copy: C) {
        if let Some(batch) = self.0.get_mut(&id).filter(|batch| batch.open.contains(&unit)) {
            batch.waiting.push((unit, copy));
        }
    }

    /// The next copy to upload, of the oldest state. None of another state while that one is in upload: an even newer state could not take
    /// the place of a state in upload, and a third one would wait in memory.
    pub(super) fn next(&mut self) -> Option<(StateId, Unit, C)> {
        let mut batches = self.0.iter_mut();
        let (id, batch) = batches.find(|(_, batch)| !batch.waiting.is_empty() || batch.uploading > 0)?;
        let (unit, copy) = batch.waiting.pop()?;
        batch.uploading += 1;
        Some((*id, unit, copy))
    }

    /// A copy is in the store. Returns whether it was the last of its state.
    pub(super) fn uploaded(&mut self, id: StateId, unit: Unit) -> bool {
        let Some(batch) = self.0.get_mut(&id) else {
            return false;
        };
        // A state that was given up may have come again meanwhile.
        batch.uploading = batch.uploading.saturating_sub(1);
        batch.open.remove(&unit);
        batch.open.is_empty()
    }

    /// Removes a state whose units are all in the store, unless another one has come meanwhile.
    pub(super) fn forget(&mut self, id: StateId) {
        if self.0.get(&id).is_some_and(|batch| batch.open.is_empty()) {
            self.0.remove(&id);
        }
    }

    /// Drops a state that will never be complete; false where it was dropped before. It can be admitted again.
    pub(super) fn give_up(&mut self, id: StateId) -> bool {
        self.0.remove(&id).is_some()
    }

    /// No state is to be copied, waits, or is in upload.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A state waits that is not in upload.
    pub(super) fn is_full(&self) -> bool {
        let waits = |batch: &Batch<C>| !batch.waiting.is_empty() && batch.uploading == 0;
        self.0.values().any(waits)
    }

    /// The upload of a copy has failed, and ended. It is tried again, unless another try cannot succeed, or a newer state waits: then the
    /// older one will never be complete.
    pub(super) fn failed(&mut self, id: StateId, unit: Unit, copy: C, is_final: bool) {
        if is_final || self.newer_waits(id) {
            self.give_up(id);
        } else if let Some(batch) = self.0.get_mut(&id) {
            batch.uploading = batch.uploading.saturating_sub(1);
            batch.waiting.push((unit, copy));
        }
    }

    /// The last unit of a state was uploaded, but the state's manifest could not be written: the unit is tried again, on the same terms.
    pub(super) fn not_completed(&mut self, id: StateId, unit: Unit, copy: C, is_final: bool) {
        if let Some(batch) = self.0.get_mut(&id) {
            batch.open.insert(unit);
            batch.uploading += 1;
        }
        self.failed(id, unit, copy, is_final);
    }

    fn newer_waits(&self, id: StateId) -> bool {
        self.0.last_key_value().is_some_and(|(newest, _)| *newest > id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::state::Chain;
    use varuna_plan::{Generation, Step};

    const UNITS: [Unit; 2] = [Unit(0), Unit(1)];

    fn id(step: u64) -> StateId {
        StateId {
            run_gen: Generation(1),
            step: Step(step),
            chain: Chain(step),
        }
    }

    /// Both units of a state are to be saved, and were copied.
    fn save(backlog: &mut Backlog<u64>, step: u64) {
        for unit in UNITS {
            assert!(backlog.admit(id(step), unit));
            backlog.add(id(step), unit, step);
        }
    }

    fn next(backlog: &mut Backlog<u64>) -> (StateId, Unit) {
        let (id, unit, _) = backlog.next().unwrap();
        (id, unit)
    }

    #[test]
    fn at_most_the_state_in_upload_and_the_newest_wait() {
        let mut backlog = Backlog::default();
        for step in 1..=5 {
            save(&mut backlog, step);
            assert!(backlog.is_full());
            if step == 1 {
                assert_eq!(next(&mut backlog).0, id(1));
                assert!(!backlog.is_full());
            }
        }
        assert_eq!(backlog.0.keys().copied().collect::<Vec<_>>(), [id(1), id(5)]);
        assert!(!backlog.uploaded(id(1), Unit(1)), "one unit of it still waits");
        assert_eq!(next(&mut backlog), (id(1), Unit(0)));
        assert!(!backlog.newer_waits(id(5)));
        assert!(backlog.uploaded(id(1), Unit(0)));
        // The manifest was not written, but a newer state waits, so this state will not be completed.
        backlog.not_completed(id(1), Unit(0), 1, false);
        assert!(!backlog.0.contains_key(&id(1)));
        assert_eq!(next(&mut backlog).0, id(5));
        // A copy that was being made when its state was dropped.
        assert!(!backlog.wants(id(3), Unit(0)));
        backlog.add(id(3), Unit(0), 3);
        assert_eq!(backlog.0.len(), 1);
    }

    #[test]
    fn state_waits_for_the_one_in_upload() {
        let mut backlog = Backlog::default();
        save(&mut backlog, 1);
        let (first, last) = (next(&mut backlog).1, next(&mut backlog).1);
        save(&mut backlog, 2);
        assert!(!backlog.uploaded(id(1), first));
        assert!(backlog.next().is_none() && backlog.is_full());
        save(&mut backlog, 3);
        assert_eq!(backlog.0.keys().copied().collect::<Vec<_>>(), [id(1), id(3)]);
        assert!(backlog.uploaded(id(1), last));
        assert_eq!(next(&mut backlog).0, id(3));
    }

    #[test]
    fn a_unit_of_a_state_is_copied_once_until_it_is_in_the_store() {
        let mut backlog = Backlog::default();
        assert!(backlog.admit(id(1), Unit(0)));
        assert!(!backlog.admit(id(1), Unit(0)), "it is being copied");
        backlog.add(id(1), Unit(0), 1);
        assert!(!backlog.admit(id(1), Unit(0)), "it waits");
        assert!(backlog.admit(id(1), Unit(1)), "another unit");
        assert_eq!(next(&mut backlog), (id(1), Unit(0)));
        assert!(!backlog.admit(id(1), Unit(0)), "it is in upload");
        assert!(
            !backlog.uploaded(id(1), Unit(0)),
            "the other unit is being copied"
        );
        backlog.forget(id(1));
        backlog.add(id(1), Unit(1), 1);
        assert_eq!(next(&mut backlog), (id(1), Unit(1)));
        assert!(backlog.uploaded(id(1), Unit(1)));
        backlog.forget(id(1));
        assert!(
            backlog.admit(id(1), Unit(0)),
            "what is in the store may have been found damaged since"
        );
    }

    #[test]
    fn state_that_cannot_be_copied_is_dropped() {
        let mut backlog = Backlog::default();
        let [copied, unread] = UNITS;
        assert!(backlog.admit(id(1), copied) && backlog.admit(id(1), unread));
        backlog.add(id(1), copied, 1);
        assert!(backlog.give_up(id(1)) && !backlog.give_up(id(1)), "once");
        assert!(backlog.next().is_none() && !backlog.is_full() && !backlog.wants(id(1), copied));
        assert!(backlog.admit(id(1), unread));
    }

    #[test]
    fn state_is_incomplete_while_an_upload_is_retried() {
        let mut backlog = Backlog::default();
        save(&mut backlog, 1);
        let (one, other) = (next(&mut backlog).1, next(&mut backlog).1);
        backlog.failed(id(1), one, 1, false);
        assert!(!backlog.uploaded(id(1), other));
        backlog.forget(id(1));
        assert_eq!(next(&mut backlog), (id(1), one));
        assert!(backlog.uploaded(id(1), one));
        backlog.not_completed(id(1), one, 1, false);
        assert_eq!(
            next(&mut backlog),
            (id(1), one),
            "the manifest is tried again with it"
        );
    }

    #[test]
    fn failed_upload_is_retried_if_useful() {
        for (is_final, newer, again) in [(false, false, true), (true, false, false), (false, true, false)] {
            let mut backlog = Backlog::default();
            save(&mut backlog, 1);
            let (_, unit, copy) = backlog.next().unwrap();
            if newer {
                backlog.admit(id(2), Unit(0));
            }
            backlog.failed(id(1), unit, copy, is_final);
            let waiting = backlog.0.get(&id(1)).map_or(0, |batch| batch.waiting.len());
            assert_eq!(waiting, if again { 2 } else { 0 }, "{is_final} {newer}");
        }
    }
}
