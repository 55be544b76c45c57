//! What happens if the checkpoint of the last step is found damaged. No later step would ever replace it. So the run goes back into a
//! recovery, which deletes the damaged checkpoint before it writes its plan, and the plan's workers, which still hold the state, put it
//! again. This is done only a few times, since a store that damages each copy would otherwise keep the workers for ever. The count is in
//! the record, with the plan for which the state is put, because otherwise each new coordinator would start counting again.

use super::config::{CoordinatorEffect, Listing};
use super::event::Event;
use super::turn::Turn;
use crate::message::Time;
use crate::record::Record;
use std::time::Duration;
use varuna_plan::{StateId, Step};

/// Maximum number of times that the state of the last step is put again. One damaged copy may be chance; after three more, the store is not
/// reliable.
const PUT_ANEW_MAX: u32 = 3;

/// What the store shows about checkpoints of the last step that were found damaged.
#[derive(Default)]
pub(super) struct FinalCheckpoint {
    damaged: Vec<StateId>,
    /// The count in the record once the plan is written whose workers put the deleted state again.
    puts_anew: u32,
    discard_at: Time,
}

impl FinalCheckpoint {
    /// The store was listed. Only this listing counts: a deleted state may have been put again.
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

    /// Whether the checkpoint of this state was found damaged.
    pub(super) fn is_damaged(&self, id: StateId) -> bool {
        self.damaged.contains(&id)
    }

    /// Requests the deletion of the damaged checkpoint, repeatedly, every `every`.
    pub(super) fn discard(&mut self, id: StateId, record: &Record, every: Duration, turn: &mut Turn<'_>) {
        self.puts_anew = record.puts_anew.saturating_add(1);
        if turn.now >= self.discard_at {
            self.discard_at = turn.now.after(every);
            turn.push(CoordinatorEffect::DiscardCheckpoint { id });
        }
    }
    /// The record with a recovery's plan, whose workers put the deleted state again. If the write fails and is repeated, this still counts
    /// once.
    pub(super) fn count_put(&self, record: Record) -> Record {
        Record {
            puts_anew: record.puts_anew.max(self.puts_anew),
            ..record
        }
    }
}

/// Whether the state may be put once more.
pub(super) fn may_put_anew(record: &Record) -> bool {
    record.puts_anew < PUT_ANEW_MAX || bug!(PutAnewForEver)
}
