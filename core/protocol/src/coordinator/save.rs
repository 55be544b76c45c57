//! Checkpoints beyond the members' regular ones: by the clock, when a worker has notice, and on demand.
//!
//! A wish stays until the store shows a state that is newer than it; so a lost order, a crash in the middle of an upload or a
//! store that is down delays it and never loses it. Wishes do not pile up: a newer one takes the older one's place.

use super::{Coordinator, CoordinatorEffect};
use crate::message::{Order, Time};
use varuna_plan::{Generation, Plan, StateId, Step};

#[derive(Default)]
pub(super) struct Saves {
    wish: Option<Wish>,
    newest: Option<StateId>,
    /// When the newest came, or the clock's last wish.
    at: Option<Time>,
    listed_at: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wish {
    /// A state beyond this step is wanted; not set before the first order.
    after: Option<Step>,
    /// In which generation it was ordered.
    generation: Generation,
}

impl Coordinator {
    pub(super) fn want_save(&mut self) {
        if self.config.final_checkpoint {
            self.saves.wish = Some(Wish {
                after: None,
                generation: Generation(0),
            });
        }
    }

    /// The store was listed.
    pub(super) fn saved(&mut self, now: Time, list: &[StateId]) {
        let newest = list.iter().max().copied();
        if newest > self.saves.newest {
            self.saves.newest = newest;
            self.saves.at = Some(now);
        }
        let after = self.saves.wish.and_then(|w| w.after);
        if after.is_some_and(|after| newest.is_some_and(|n| n.step > after)) {
            self.saves.wish = None;
        }
    }

    /// Orders what is wanted, in a generation that runs.
    pub(super) fn save(&mut self, now: Time, target: &Plan, effects: &mut Vec<CoordinatorEffect>) {
        let since = *self.saves.at.get_or_insert(now);
        if self
            .config
            .save_every
            .is_some_and(|every| now >= since.after(every))
        {
            self.saves.at = Some(now);
            self.want_save();
        }
        let Some(mut wish) = self.saves.wish else { return };
        let members = target.members();
        let at = members.iter().filter_map(|w| self.status(*w)).map(|s| s.at.step);
        let after = match wish.after {
            // Whoever was to save may be gone, and steps may have been given up: what counts is a state of this generation.
            Some(after) if wish.generation == target.generation => after,
            _ => at.max().unwrap_or_default(),
        };
        wish = Wish {
            after: Some(after),
            generation: target.generation,
        };
        self.saves.wish = Some(wish);
        for to in members {
            self.order(now, to, Order::Save { after }, effects);
        }
        if now >= self.saves.listed_at {
            self.saves.listed_at = now.after(self.config.timing.heartbeat);
            effects.push(CoordinatorEffect::ListCheckpoints);
        }
    }
}
