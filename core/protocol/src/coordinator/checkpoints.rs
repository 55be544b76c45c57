//! Checkpoints beyond the members' regular ones: by the clock, when a worker has notice, and on demand.
//!
//! A request stays until the store shows a state that is newer than it; so a lost order, a crash in the middle of an upload or a
//! store that is down delays it and never loses it. Requests do not pile up: a newer one takes the older one's place.

use super::final_checkpoint::FinalCheckpoint;
use crate::message::Time;
use std::time::Duration;
use varuna_plan::{Generation, StateId, Step};

/// What the store shows, and which checkpoint is wanted.
#[derive(Default)]
pub(super) struct Checkpoints {
    request: Option<Request>,
    newest: Option<StateId>,
    /// The greatest generation of a checkpoint, also of an earlier run on the same store.
    newest_generation: Generation,
    /// When the newest came, or the clock's last request.
    clock: Option<Time>,
    list_at: Time,
    /// From the order of one until the store showed it, the longest lately: each later one halves what came before. One that the members' regular
    /// checkpoint came before took no time.
    took: Option<Duration>,
    /// When the member goes before whose end the last one was ordered.
    saved_before: Option<Time>,
    /// What is known of that of the last step.
    pub(super) last: FinalCheckpoint,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Request {
    /// A state beyond this step is wanted; not set before the first order.
    after: Option<Step>,
    /// In which generation it was ordered.
    generation: Generation,
    /// When.
    at: Time,
}

impl Checkpoints {
    pub(super) fn newest_generation(&self) -> Generation {
        self.newest_generation
    }

    /// A state beyond the present one is wanted.
    pub(super) fn request(&mut self) {
        self.request = Some(Request {
            after: None,
            generation: Generation(0),
            at: Time(0),
        });
    }

    /// Takes note of the newest generation in the store: none up to it is used again.
    pub(super) fn note_generation(&mut self, newest: Generation) {
        self.newest_generation = self.newest_generation.max(newest);
    }

    /// The store was listed.
    pub(super) fn listed(&mut self, now: Time, list: &[StateId]) {
        let newest = list.iter().max().copied();
        if newest > self.newest {
            self.newest = newest;
            self.clock = Some(now);
        }
        let is_there = |r: &Request| {
            r.after
                .is_some_and(|after| newest.is_some_and(|n| n.step > after))
        };
        if let Some(request) = self.request.take_if(|r| is_there(r)) {
            let before = self.took.unwrap_or_default() / 2;
            self.took = Some(now.since(request.at).max(before));
        }
    }

    /// Whether one that is ordered now is the last to be there before a member goes at `leaves_at`; true once for each such time. It begins with the end
    /// of the step after the one that runs, and takes as long as others lately, and half as long again in reserve.
    pub(super) fn is_last_before(&mut self, now: Time, leaves_at: Time, step: Duration) -> bool {
        let Some(took) = self.took else {
            return false;
        };
        let lead = step * 2 + took + took / 2;
        let due = now < leaves_at && now.after(lead) >= leaves_at;
        due && self.saved_before.replace(leaves_at) != Some(leaves_at)
    }

    /// Whether the newest checkpoint is older than `every`; true once per interval.
    pub(super) fn is_too_old(&mut self, now: Time, every: Option<Duration>) -> bool {
        let since = *self.clock.get_or_insert(now);
        let old = every.is_some_and(|every| now >= since.after(every));
        if old {
            self.clock = Some(now);
        }
        old
    }

    /// The step beyond which members of the generation are to make a checkpoint, where one is wanted. `reached`: the step that
    /// they are at.
    pub(super) fn wanted_after(
        &mut self,
        now: Time,
        generation: Generation,
        reached: impl FnOnce() -> Step,
    ) -> Option<Step> {
        let request = self.request.as_mut()?;
        // Whoever was to save may be gone, and steps may have been given up: what counts is a state of this generation.
        if request.after.is_none() || request.generation != generation {
            *request = Request {
                after: Some(reached()),
                generation,
                at: now,
            };
        }
        request.after
    }

    /// Whether the store is to be listed; asked again after `every`.
    pub(super) fn is_listing_due(&mut self, now: Time, every: Duration) -> bool {
        let due = now >= self.list_at;
        if due {
            self.list_at = now.after(every);
        }
        due
    }
}
