//! Which units are being read from the checkpoint store, and for which generation: the result of a read counts only for that one. If a read
//! ends while a fence is answered, its result is kept, because the next plan usually needs the same.

use crate::state::UnitState;
use std::collections::BTreeMap;
use varuna_plan::{Base, Generation, Plan, StateId, Unit, WorkerId};

/// How a read from the store goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadStep {
    /// A part of it arrived.
    Progress,
    /// All of it is here.
    Loaded,
    /// The unit could not be read; another try may succeed.
    Failed,
    /// The unit could not be read, and no other try can succeed.
    Refused,
}

/// Reads under way and what they brought for nobody.
#[derive(Default)]
pub(super) struct StoreReads {
    /// Each with the generation that asked for it last.
    under_way: BTreeMap<(StateId, Unit), Generation>,
    /// Complete and undamaged. There are no more than were under way when a fence came.
    kept: BTreeMap<(StateId, Unit), UnitState>,
}

impl StoreReads {
    /// A generation asks for a unit. True: the read has to be started. One that is under way is for this generation from now on.
    pub(super) fn ask(&mut self, id: StateId, unit: Unit, generation: Generation) -> bool {
        self.under_way.insert((id, unit), generation).is_none()
    }

    /// Keeps what was read for a generation that was fenced meanwhile.
    pub(super) fn keep(&mut self, id: StateId, unit: Unit, state: UnitState) {
        self.kept.insert((id, unit), state);
    }

    /// The kept result for a unit's state at `id`. Equal names mean equal bits, whichever generation asked.
    pub(super) fn take_kept(&mut self, id: StateId, unit: Unit) -> Option<UnitState> {
        self.kept.remove(&(id, unit))
    }

    /// A plan was accepted: results for units that it does not give this worker at its base are dropped.
    pub(super) fn accept(&mut self, me: WorkerId, plan: &Plan) {
        let units = match plan.base {
            Base::Fixed { .. } => plan.units(me),
            Base::AtSwitch { .. } => Vec::new(),
        };
        let is_base = |id: StateId| matches!(plan.base, Base::Fixed { id: base, .. } if base == id);
        self.kept
            .retain(|(id, unit), _| is_base(*id) && units.contains(unit));
    }

    /// The member trains, or is no longer needed: nothing is loaded.
    pub(super) fn free(&mut self) {
        self.kept.clear();
    }

    /// A read has made progress or ended; returns the generation whose member is told of it. A failed read that may be tried again just
    /// ends: the member asks again until it has the unit.
    pub(super) fn step(&mut self, id: StateId, unit: Unit, step: ReadStep) -> Option<Generation> {
        let key = (id, unit);
        match step {
            ReadStep::Progress => self.under_way.get(&key).copied(),
            ReadStep::Loaded | ReadStep::Refused => self.under_way.remove(&key),
            ReadStep::Failed => {
                self.under_way.remove(&key);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::{
        Layout, OptimizerProgress, Pipeline, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec,
        SegmentRange, Shape, Stage, Step,
    };

    const ID: StateId = StateId::INITIAL;
    const UNIT: Unit = Unit(2);
    const ME: WorkerId = WorkerId(1);
    const START: Base = Base::Fixed {
        id: ID,
        decision: None,
        checkpoint: true,
    };

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

    fn state() -> UnitState {
        UnitState {
            progress: OptimizerProgress::START,
            data: vec![1.0],
        }
    }

    /// A plan that assigns all units of a model with three segments to this worker.
    fn plan(base: Base) -> Plan {
        let segments = SegmentRange { start: 0, end: 3 };
        let pipeline = Pipeline {
            stages: vec![Stage {
                worker: ME,
                segments,
                recompute: None,
            }],
            samples: SampleRange { start: 0, end: 2 },
        };
        let shape = Shape {
            pipelines: vec![pipeline],
            spares: vec![],
            micro_batch_size: 1,
            schedule: ScheduleSpec {
                kind: ScheduleKind::Gpipe,
                recompute: Recompute::None,
            },
            predicted: Prediction::default(),
        };
        Plan {
            base,
            ..Plan::first(Layout::new(3, false), shape)
        }
    }

    #[test]
    fn finished_read_is_kept_for_the_next_plan() {
        let base = |step: u64| Base::Fixed {
            id: StateId {
                step: Step(step),
                ..ID
            },
            decision: None,
            checkpoint: true,
        };
        let mut reads = StoreReads::default();
        reads.keep(ID, UNIT, state());
        reads.accept(ME, &plan(base(0)));
        assert_eq!(reads.take_kept(ID, UNIT), Some(state()));
        assert_eq!(reads.take_kept(ID, UNIT), None, "once");
        // The state may be large, so it is dropped with every plan that does not use it.
        let forgets: [fn(&mut StoreReads, Plan); 4] = [
            |reads, other| reads.accept(ME, &other),
            |reads, mut switch| {
                let from = Generation(1);
                switch.base = Base::AtSwitch { from };
                reads.accept(ME, &switch);
            },
            |reads, same| reads.accept(WorkerId(99), &Plan { base: START, ..same }),
            |reads, _| reads.free(),
        ];
        for forget in forgets {
            reads.keep(ID, UNIT, state());
            forget(&mut reads, plan(base(7)));
            assert_eq!(reads.take_kept(ID, UNIT), None);
        }
    }
}
