//! The checkpoint of the last step, where it is found damaged. Nothing would ever replace it: no step follows. So the run goes back into
//! a recovery, which deletes what is damaged before it writes its plan, and the plan's workers, who still hold the state, put it again.
//! A few times: a store that damages each copy would else keep the workers for ever.

use super::config::{CoordinatorEffect, Listing};
use super::event::Event;
use super::turn::Turn;
use crate::message::Time;
use std::time::Duration;
use varuna_plan::{StateId, Step};

/// So often the state of the last step is put anew. One damaged copy is chance; after three more, the store is not to be relied on.
const PUT_ANEW_MAX: u32 = 3;

/// What the store shows of checkpoints of the last step that were found damaged.
#[derive(Default)]
pub(super) struct FinalCheckpoint {
    damaged: Vec<StateId>,
    /// How often one was found.
    found: u32,
    discard_at: Time,
}

impl FinalCheckpoint {
    /// The store was listed. Only what it says now counts: a state that was deleted may be put again.
    pub(super) fn listed(&mut self, listing: &Listing, last_step: Step, turn: &mut Turn<'_>) {
        if !listing.fresh || bug!(IgnoreDamagedEnd) {
            return;
        }
        let last = listing.damaged.iter().filter(|id| id.step >= last_step);
        let damaged: Vec<StateId> = last.copied().collect();
        for id in damaged.iter().filter(|id| !self.damaged.contains(id)) {
            self.found = self.found.saturating_add(1);
            turn.event(Event::FinalCheckpointDamaged {
                state: *id,
                again: self.may_put_anew(),
            });
        }
        self.damaged = damaged;
    }

    /// The checkpoint of this state was found damaged.
    pub(super) fn is_damaged(&self, id: StateId) -> bool {
        self.damaged.contains(&id)
    }

    /// The state may be put once more.
    pub(super) fn may_put_anew(&self) -> bool {
        self.found <= PUT_ANEW_MAX || bug!(PutAnewForEver)
    }

    /// Has what is damaged deleted; asked again after `every`.
    pub(super) fn discard(&mut self, id: StateId, every: Duration, turn: &mut Turn<'_>) {
        if turn.now >= self.discard_at {
            self.discard_at = turn.now.after(every);
            turn.push(CoordinatorEffect::DiscardCheckpoint { id });
        }
    }
}
