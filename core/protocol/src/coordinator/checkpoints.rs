//! Checkpoints in addition to the members' regular ones: at a time interval, when a worker announces that it will leave, on demand, and
//! while losses of workers are frequent.
//!
//! A request stays open until the store shows a newer state. So a lost order, a crash during an upload or an unavailable store delays it
//! but never loses it. Requests do not pile up: a newer one replaces the older one.

use super::config::CoordinatorConfig;
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
    /// When the newest checkpoint appeared, or the last one was requested because of its age: on the clock with the skipped time.
    clock: Option<Time>,
    /// Time that the clock did not show.
    skipped: Duration,
    /// How many of the losses so far would have cost state under the plan in force: the expected number.
    pub(super) losses_of_state: f64,
    /// Checkpoints in the store that were ordered only because of losses.
    extra: Vec<StateId>,
    /// The newest of the others in the store, and when it appeared: on the clock with the skipped time.
    regular: Option<(StateId, Time)>,
    list_at: Time,
    /// The longest recent time from the commit of a state until the store showed its checkpoint; each later checkpoint halves the influence
    /// of earlier ones.
    took: Option<Duration>,
    /// The time at which the member leaves before whose end a last checkpoint was ordered.
    saved_before: Option<Time>,
    /// When a worker last gave notice.
    noticed_at: Option<Time>,
    /// What is known about the checkpoint of the last step.
    pub(super) last: FinalCheckpoint,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Request {
    /// A state beyond this step is requested; not set before the first order.
    after: Option<Step>,
    /// Generation of the order.
    generation: Generation,
    ordered_at: Time,
    /// When a state beyond that step was first known to be committed.
    committed_at: Option<Time>,
    purpose: Purpose,
}

/// Why a checkpoint is requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// The job's interval, a notice, or a user.
    Regular,
    /// Only losses of workers: those so far, or one that is announced and for which there is a regular checkpoint already. Such a checkpoint
    /// is kept for a shorter time.
    Extra,
}

impl Checkpoints {
    pub(super) fn newest_generation(&self) -> Generation {
        self.newest_generation
    }

    /// Requests a checkpoint beyond the present state.
    pub(super) fn request(&mut self, purpose: Purpose) {
        self.request = Some(Request {
            after: None,
            generation: Generation(0),
            ordered_at: Time(0),
            committed_at: None,
            purpose,
        });
    }

    /// Requests a checkpoint if the newest one is older than the job allows (`every`), or than the losses so far are worth. One that is on its
    /// way is not replaced: a short interval would put it off again and again.
    pub(super) fn request_by_age(
        &mut self,
        now: Time,
        every: Option<Duration>,
        while_lost: Option<Duration>,
    ) {
        let clock = now.after(self.skipped);
        let age = clock.since(*self.clock.get_or_insert(clock));
        let is_older = |than: Option<Duration>| than.is_some_and(|than| age >= than);
        let purpose = match (is_older(every), is_older(while_lost)) {
            (true, _) => Purpose::Regular,
            (false, true) => Purpose::Extra,
            (false, false) => return,
        };
        if self.request.is_none() {
            self.clock = Some(clock);
            self.request(purpose);
        }
    }

    /// The time until the newest checkpoint is as old as this.
    pub(super) fn due_in(&self, now: Time, age: Duration) -> Duration {
        let clock = now.after(self.skipped);
        age.saturating_sub(self.clock.map_or(Duration::ZERO, |since| clock.since(since)))
    }

    /// Time that the clock did not show.
    pub(super) fn skip(&mut self, time: Duration) {
        self.skipped = self.skipped.saturating_add(time);
    }

    /// The longest recent time from the commit of a state until the store showed its checkpoint. None if none was ordered yet.
    pub(super) fn took(&self) -> Option<Duration> {
        self.took
    }

    /// The checkpoints in the store that were ordered only because of losses.
    pub(super) fn extra(&self) -> &[StateId] {
        &self.extra
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
    pub(super) fn listed(&mut self, now: Time, list: &[StateId], config: &CoordinatorConfig) {
        let clock = now.after(self.skipped);
        let newest = list.iter().max().copied();
        if newest > self.newest {
            self.newest = newest;
            self.clock = Some(clock);
        }
        self.extra.retain(|id| list.contains(id));
        let is_there = |r: &Request| {
            r.after
                .is_some_and(|after| newest.is_some_and(|n| n.step > after))
        };
        if let Some(request) = self.request.take_if(|r| is_there(r)) {
            let before = self.took.unwrap_or_default() / 2;
            let since = request.committed_at.unwrap_or(request.ordered_at);
            self.took = Some(now.since(since).max(before));
            let made = list.iter().filter(|id| request.after < Some(id.step)).min();
            let extra =
                made.filter(|id| request.purpose == Purpose::Extra && !self.is_due(**id, clock, config));
            self.extra.extend(extra);
        }
        let regular = list.iter().filter(|id| !self.extra.contains(id)).max().copied();
        if self.regular.map(|(id, _)| id) != regular {
            self.regular = regular.map(|id| (id, clock));
        }
    }

    /// Whether the job's intervals would have asked for this checkpoint, or for one since the newest regular one: one that is on its way because
    /// of losses can be in the way of a regular one, and then takes its place.
    fn is_due(&self, id: StateId, clock: Time, config: &CoordinatorConfig) -> bool {
        let Some((newest, at)) = self.regular else {
            return true;
        };
        let by_steps = |every: u64| {
            let since = id.step.0.saturating_sub(newest.step.0);
            id.step.0.is_multiple_of(every.max(1)) || since >= every
        };
        config.save_every_steps.is_some_and(by_steps)
            || config.save_every.is_some_and(|every| clock.since(at) >= every)
    }

    /// The checkpoint to order now because a member leaves at `leaves_at`. The first one is ordered when two steps and the checkpoint just
    /// fit, since it may begin a step late; it is expected to take as long as recent ones, and half of that is kept in reserve. Once that is
    /// complete, more follow for as long as they can be complete in time: they need no reserve. `step_ends`: when the running step is
    /// expected to end; `step`: what a step takes.
    pub(super) fn due_before(
        &mut self,
        now: Time,
        leaves_at: Time,
        step_ends: Time,
        step: Duration,
    ) -> Option<Purpose> {
        let took = self.took.filter(|_| now < leaves_at)?;
        if self.saved_before != Some(leaves_at) {
            let lead = step * 2 + took + took / 2;
            let is_due = now.after(lead) >= leaves_at;
            return is_due.then(|| {
                self.saved_before = Some(leaves_at);
                Purpose::Regular
            });
        }
        let in_time = step_ends.after(took) <= leaves_at;
        (in_time && self.request.is_none()).then_some(Purpose::Extra)
    }

    /// A worker gave notice.
    pub(super) fn note_notice(&mut self, now: Time) {
        self.noticed_at = Some(now);
    }

    /// Whether another checkpoint is due if a member that gave notice may end at any time now. `stays`: how long after its notice it is assumed
    /// to be there.
    pub(super) fn is_due_before_an_unknown_end(&self, now: Time, stays: Duration) -> bool {
        let soon = |at: Time| now < at.after(stays);
        self.request.is_none() && self.noticed_at.is_some_and(soon)
    }

    /// The step beyond which members of the generation have to make a checkpoint, if one is requested. `reached`: the step that they are known
    /// to have committed.
    pub(super) fn wanted_after(&mut self, now: Time, generation: Generation, reached: Step) -> Option<Step> {
        let request = self.request.as_mut()?;
        // The workers that were ordered to save may be gone, and steps may have been given up: only a state of this generation counts.
        if request.after.is_none() || request.generation != generation {
            *request = Request {
                after: Some(reached),
                generation,
                ordered_at: now,
                committed_at: None,
                purpose: request.purpose,
            };
        } else if Some(reached) > request.after {
            request.committed_at.get_or_insert(now);
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
