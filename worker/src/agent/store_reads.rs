//! Which units are being read from the checkpoint store, and for which generation: what a read brings counts in no other.

use std::collections::BTreeMap;
use varuna_plan::{Generation, StateId, Unit};

/// How a read from the store goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadStep {
    /// A part of it arrived.
    Progress,
    /// All of it is here.
    Loaded,
    /// It could not be read; another try may succeed.
    Failed,
    /// It could not be read, and no other try can succeed.
    Refused,
}

/// Reads under way, each with the generation that asked for it last.
#[derive(Default)]
pub(super) struct StoreReads(BTreeMap<(StateId, Unit), Generation>);

impl StoreReads {
    /// A generation asks for a unit. True: the read has to be started. One that is under way is for this generation from now on.
    pub(super) fn ask(&mut self, id: StateId, unit: Unit, generation: Generation) -> bool {
        self.0.insert((id, unit), generation).is_none()
    }

    /// A read goes on; returns the generation whose member is told of it. One that may be tried again is merely over: the member asks again until
    /// it has the unit.
    pub(super) fn step(&mut self, id: StateId, unit: Unit, step: ReadStep) -> Option<Generation> {
        let key = (id, unit);
        match step {
            ReadStep::Progress => self.0.get(&key).copied(),
            ReadStep::Loaded | ReadStep::Refused => self.0.remove(&key),
            ReadStep::Failed => {
                self.0.remove(&key);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: StateId = StateId::INITIAL;
    const UNIT: Unit = Unit(2);

    #[test]
    fn a_read_is_started_once_and_counts_for_who_asked_last() {
        let mut reads = StoreReads::default();
        assert!(reads.ask(ID, UNIT, Generation(3)));
        assert!(!reads.ask(ID, UNIT, Generation(5)), "it is under way");
        assert!(reads.ask(ID, Unit(4), Generation(5)), "another unit");
        assert_eq!(reads.step(ID, UNIT, ReadStep::Progress), Some(Generation(5)));
        assert_eq!(reads.step(ID, UNIT, ReadStep::Loaded), Some(Generation(5)));
        assert_eq!(reads.step(ID, UNIT, ReadStep::Progress), None, "it is over");
        assert_eq!(reads.step(ID, UNIT, ReadStep::Loaded), None);
    }

    #[test]
    fn the_member_hears_of_a_failure_only_where_no_other_try_helps() {
        for (step, told) in [(ReadStep::Failed, None), (ReadStep::Refused, Some(Generation(3)))] {
            let mut reads = StoreReads::default();
            reads.ask(ID, UNIT, Generation(3));
            assert_eq!(reads.step(ID, UNIT, step), told);
            assert!(reads.ask(ID, UNIT, Generation(3)), "it can be started again");
        }
    }
}
