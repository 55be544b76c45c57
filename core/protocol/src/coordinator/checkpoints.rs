//! Checkpoints in addition to the members' regular ones: at a time interval, when a worker announces that it will leave, and on demand.
//!
//! A request stays open until the store shows a newer state. So a lost order, a crash during an upload or an unavailable store delays it
//! but never loses it. Requests do not pile up: a newer one replaces the older one.

use super::final_checkpoint::FinalCheckpoint;
use crate::message::Time;
use std::time::Duration;
use varuna_plan::{Generation, StateId, Step};

/// What the store shows, and which checkpoint is requested.
#[derive(Default)]
pub(super) struct Checkpoints {
    request: Option<Request>,
    newest: Option<StateId>,
    /// The greatest generation of a checkpoint, including those of an earlier run in the same store.
    newest_generation: Generation,
    /// When the newest checkpoint appeared, or the last one was requested because of the time interval.
    clock: Option<Time>,
    list_at: Time,
    /// The longest recent time from ordering a checkpoint until the store showed it; each later checkpoint halves the influence of earlier
    /// ones. If the members' regular checkpoint came first, the order took no time.
    took: Option<Duration>,
    /// The time at which the member leaves before whose end the last checkpoint was ordered.
    saved_before: Option<Time>,
    /// What is known about the checkpoint of the last step.
    pub(super) last: FinalCheckpoint,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Request {
    /// A state beyond this step is requested; not set before the first order.
    after: Option<Step>,
    /// Generation of the order.
    generation: Generation,
    /// Time of the order.
    at: Time,
}

impl Checkpoints {
    pub(super) fn newest_generation(&self) -> Generation {
        self.newest_generation
    }

    /// Requests a checkpoint beyond the present state.
    pub(super) fn request(&mut self) {
        self.request = Some(Request {
            after: None,
            generation: Generation(0),
            at: Time(0),
        });
    }

    /// Whether a requested checkpoint is not in the store yet.
    pub(super) fn is_requested(&self) -> bool {
        self.request.is_some()
    }

    /// Notes the newest generation in the store: no generation up to it is used again.
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

    /// Whether a checkpoint that is ordered now is the last one that can be complete before a member leaves at `leaves_at`; true once for
    /// each such time. It begins at the end of the step after the running one, and is expected to take as long as recent ones, plus half of
    /// that in reserve.
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

    /// The step beyond which members of the generation have to make a checkpoint, if one is requested. `reached`: the step that they have
    /// reached.
    pub(super) fn wanted_after(
        &mut self,
        now: Time,
        generation: Generation,
        reached: impl FnOnce() -> Step,
    ) -> Option<Step> {
        let request = self.request.as_mut()?;
        // The workers that were ordered to save may be gone, and steps may have been given up: only a state of this generation counts.
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
