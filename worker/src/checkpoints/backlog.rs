//! Copies of states that wait for their upload: which is next, and which give way.

use crate::state::UnitState;
use std::collections::BTreeMap;
use varuna_plan::{StateId, Unit};

/// Copies that wait for upload, by state.
#[derive(Default)]
pub(super) struct Backlog {
    waiting: BTreeMap<StateId, Vec<(Unit, UnitState)>>,
    /// Copies of each state in upload.
    uploading: BTreeMap<StateId, usize>,
}

impl Backlog {
    /// Makes room for a state: older states that wait are dropped.
    pub(super) fn admit(&mut self, id: StateId) {
        let uploading = &self.uploading;
        self.waiting
            .retain(|other, _| *other >= id || uploading.contains_key(other));
        self.waiting.entry(id).or_default();
    }

    /// Adds a copy of an admitted state, unless that state was dropped meanwhile.
    pub(super) fn add(&mut self, id: StateId, unit: Unit, state: UnitState) {
        if let Some(batch) = self.waiting.get_mut(&id) {
            batch.push((unit, state));
        }
    }

    /// The next copy to upload, of the oldest state.
    pub(super) fn next(&mut self) -> Option<(StateId, Unit, UnitState)> {
        let found = self.waiting.iter_mut().find(|(_, batch)| !batch.is_empty());
        let next = found.and_then(|(id, batch)| batch.pop().map(|(unit, state)| (*id, unit, state)));
        if let Some((id, ..)) = next {
            *self.uploading.entry(id).or_default() += 1;
        }
        next
    }

    /// The upload of a copy has ended, well or not.
    pub(super) fn uploaded(&mut self, id: StateId) {
        if let Some(count) = self.uploading.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.uploading.remove(&id);
            }
        }
    }

    /// No copy of this state waits or is in upload.
    pub(super) fn is_finished(&self, id: StateId) -> bool {
        let waits = self.waiting.get(&id).is_some_and(|batch| !batch.is_empty());
        !waits && !self.uploading.contains_key(&id)
    }

    /// Removes a finished state, unless another copy of it has come meanwhile.
    pub(super) fn forget(&mut self, id: StateId) {
        if self.is_finished(id) {
            self.waiting.remove(&id);
        }
    }

    /// A state waits that is not in upload.
    pub(super) fn is_full(&self) -> bool {
        self.waiting
            .iter()
            .any(|(id, batch)| !batch.is_empty() && !self.uploading.contains_key(id))
    }

    /// The upload of a copy has failed, and ended. It is tried again, unless that is of no use, or a newer state waits: then the
    /// older one will never be complete.
    pub(super) fn failed(&mut self, id: StateId, unit: Unit, state: UnitState, is_final: bool) {
        if is_final || self.newer_waits(id) {
            self.waiting.remove(&id);
        } else {
            self.add(id, unit, state);
        }
    }

    fn newer_waits(&self, id: StateId) -> bool {
        self.waiting
            .last_key_value()
            .is_some_and(|(newest, _)| *newest > id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::state::Chain;
    use varuna_plan::{Generation, OptimizerProgress, Step};

    fn id(step: u64) -> StateId {
        StateId {
            run_gen: Generation(1),
            step: Step(step),
            chain: Chain(step),
        }
    }

    fn state(value: f32) -> UnitState {
        UnitState {
            progress: OptimizerProgress::START,
            data: vec![value; 3],
        }
    }

    #[test]
    fn at_most_the_state_in_upload_and_the_newest_wait() {
        let mut backlog = Backlog::default();
        for step in 1..=5 {
            backlog.admit(id(step));
            backlog.add(id(step), Unit(0), state(1.0));
            backlog.add(id(step), Unit(1), state(1.0));
            assert!(backlog.is_full());
            if step == 1 {
                assert_eq!(backlog.next().map(|(id, ..)| id), Some(id(1)));
                assert!(!backlog.is_full());
            }
        }
        assert_eq!(
            backlog.waiting.keys().copied().collect::<Vec<_>>(),
            [id(1), id(5)]
        );
        assert!(!backlog.is_finished(id(1)), "one unit of it still waits");
        assert_eq!(backlog.next().map(|(id, ..)| id), Some(id(1)));
        assert!(!backlog.newer_waits(id(5)));
        backlog.uploaded(id(1));
        assert!(!backlog.is_finished(id(1)), "one is still on its way");
        backlog.uploaded(id(1));
        assert!(backlog.is_finished(id(1)));
        // The manifest was not written: the unit is tried again.
        backlog.add(id(1), Unit(0), state(1.0));
        backlog.forget(id(1));
        assert_eq!(backlog.next().map(|(id, ..)| id), Some(id(1)));
        backlog.uploaded(id(1));
        backlog.forget(id(1));
        assert_eq!(backlog.next().map(|(id, ..)| id), Some(id(5)));
        // A copy that was under way when its state gave way.
        backlog.add(id(3), Unit(0), state(1.0));
        assert_eq!(backlog.waiting.len(), 1);
    }

    #[test]
    fn an_upload_that_failed_is_tried_again_unless_that_is_of_no_use() {
        for (is_final, newer, again) in [(false, false, true), (true, false, false), (false, true, false)] {
            let mut backlog = Backlog::default();
            backlog.admit(id(1));
            backlog.add(id(1), Unit(0), state(1.0));
            backlog.add(id(1), Unit(1), state(1.0));
            let (_, unit, copy) = backlog.next().unwrap();
            if newer {
                backlog.admit(id(2));
            }
            backlog.uploaded(id(1));
            backlog.failed(id(1), unit, copy, is_final);
            let waiting = backlog.waiting.get(&id(1)).map_or(0, Vec::len);
            assert_eq!(waiting, if again { 2 } else { 0 }, "{is_final} {newer}");
        }
    }
}
