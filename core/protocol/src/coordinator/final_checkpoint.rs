//! The checkpoint of the last step, where it is found damaged. Nothing would ever replace it: no step follows. So the run goes back into
//! a recovery, which deletes what is damaged before it writes its plan, and the plan's workers, who still hold the state, put it again.
//! A few times: a store that damages each copy would else keep the workers for ever. How often stands in the record, with the plan that has
//! it put, because each new coordinator would else begin to count again.

use super::config::{CoordinatorEffect, Listing};
use super::event::Event;
use super::turn::Turn;
use crate::message::Time;
use crate::record::Record;
use std::time::Duration;
use varuna_plan::{StateId, Step};

/// So often the state of the last step is put anew. One damaged copy is chance; after three more, the store is not to be relied on.
const PUT_ANEW_MAX: u32 = 3;

/// What the store shows of checkpoints of the last step that were found damaged.
#[derive(Default)]
pub(super) struct FinalCheckpoint {
    damaged: Vec<StateId>,
    /// What the record will count once the plan is written that puts in the place of what was deleted.
    puts_anew: u32,
    discard_at: Time,
}

impl FinalCheckpoint {
    /// The store was listed. Only what it says now counts: a state that was deleted may be put again.
    pub(super) fn listed(
        &mut self,
        listing: &Listing,
        (last_step, record): (Step, &Record),
        turn: &mut Turn<'_>,
    ) {
        if !listing.fresh || bug!(IgnoreDamagedEnd) {
            return;
        }
        let last = listing.damaged.iter().filter(|id| id.step >= last_step);
        let damaged: Vec<StateId> = last.copied().collect();
        for id in damaged.iter().filter(|id| !self.damaged.contains(id)) {
            turn.event(Event::FinalCheckpointDamaged {
                state: *id,
                again: may_put_anew(record),
            });
        }
        self.damaged = damaged;
    }

    /// The checkpoint of this state was found damaged.
    pub(super) fn is_damaged(&self, id: StateId) -> bool {
        self.damaged.contains(&id)
    }

    /// Has what is damaged deleted; asked again after `every`.
    pub(super) fn discard(&mut self, id: StateId, record: &Record, every: Duration, turn: &mut Turn<'_>) {
        self.puts_anew = record.puts_anew.saturating_add(1);
        if turn.now >= self.discard_at {
            self.discard_at = turn.now.after(every);
            turn.push(CoordinatorEffect::DiscardCheckpoint { id });
        }
    }
    /// The record of a recovery's plan, whose workers put what was deleted. A write that fails is counted once when it succeeds.
    pub(super) fn count_put(&self, record: Record) -> Record {
        Record {
            puts_anew: record.puts_anew.max(self.puts_anew),
            ..record
        }
    }
}

/// The state may be put once more.
pub(super) fn may_put_anew(record: &Record) -> bool {
    record.puts_anew < PUT_ANEW_MAX || bug!(PutAnewForEver)
}
