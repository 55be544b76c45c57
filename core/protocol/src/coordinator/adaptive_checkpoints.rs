//! Checkpoints beyond those of the job's interval, while workers are lost so often that they repay their cost.

use super::event::Event;
use super::shared::Shared;
use super::turn::Turn;
use crate::message::Time;
use std::time::Duration;
use varuna_plan::Plan;
use varuna_plan::state_losses::{checkpoint_interval_ms, losses_of_state};

/// By how much a checkpoint slows training while it is on its way, as an estimate: it takes processor time and bandwidth from the workers.
/// A step of `make bench-checkpoint` that saves takes 0.8 % longer, and on a GPU 4 to 5 %.
const SLOWDOWN: f64 = 0.05;

impl Shared {
    /// A plan runs: the losses so far are weighed anew.
    pub(super) fn weigh_losses(&mut self, plan: &Plan) {
        if self.config.adaptive_checkpoints && self.config.final_checkpoint {
            self.checkpoints.losses_of_state = losses_of_state(plan, self.roster.losses.sizes());
        }
    }

    /// The time between two checkpoints that the losses so far are worth. None before the first loss that would have cost state, or if the job
    /// makes checkpoints as often itself.
    pub(super) fn adaptive_interval(&self, now: Time) -> Option<Duration> {
        let losses = self.checkpoints.losses_of_state;
        if losses <= 0.0 {
            return None;
        }
        let seen = self.roster.losses.seen_for(now, self.config.timing.stay);
        // What a checkpoint costs is not known before the first one.
        let took = self.checkpoints.took().unwrap_or_default();
        let interval = interval(took, seen.as_secs_f64() * 1e3 / losses)?;
        let is_shorter = self.regular_interval().is_none_or(|regular| interval < regular);
        is_shorter.then_some(interval)
    }

    /// The interval of the job's own checkpoints. None if it is a number of steps and no step was observed yet.
    fn regular_interval(&self) -> Option<Duration> {
        let step = self.progress.commits.mean_step_time();
        let steps = self.config.save_every_steps.zip(step);
        let by_steps =
            steps.map(|(steps, step)| step.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX)));
        self.config.save_every.into_iter().chain(by_steps).min()
    }

    /// The time between two checkpoints if losses of state come at this distance: for estimates of what such a loss costs. None if
    /// checkpoints do not follow losses, or none was ordered yet.
    pub(super) fn interval_between_losses(&self, milliseconds: f64) -> Option<Duration> {
        let follows = self.config.adaptive_checkpoints && self.config.final_checkpoint;
        let took = self.checkpoints.took().filter(|_| follows)?;
        interval(took, milliseconds)
    }

    /// Reports that checkpoints are made at another interval than the job's, or at the job's again. Small changes are not reported: where both
    /// intervals are much the same, the times of single steps and uploads say which is the shorter one, and the reports would take turns.
    pub(super) fn report_interval(&mut self, interval: Option<Duration>, turn: &mut Turn<'_>) {
        // Before the first of them it is not known what one costs.
        if interval.is_some() && self.checkpoints.took().is_none() {
            return;
        }
        let worth_some = self.checkpoints.losses_of_state > 0.0;
        let regular = self.regular_interval().filter(|_| worth_some);
        let reported = &mut self.last_reports.checkpoint_interval;
        let is_alike = match (reported.or(regular), interval.or(regular)) {
            (Some(before), Some(now)) => now <= before.saturating_mul(2) && before <= now.saturating_mul(2),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !is_alike {
            *reported = interval;
            turn.event(Event::CheckpointInterval {
                seconds: interval.map(|time| time.as_secs_f64()),
            });
        }
    }
}

/// The time between two checkpoints that take so long, if state is lost once in this many milliseconds.
fn interval(took: Duration, between_losses_ms: f64) -> Option<Duration> {
    let cost_ms = took.as_secs_f64() * 1e3 * SLOWDOWN;
    let interval_ms = checkpoint_interval_ms(cost_ms, between_losses_ms);
    let interval = Duration::try_from_secs_f64(interval_ms / 1e3).ok()?;
    // The store is not occupied for more than half of the time.
    Some(interval.max(took.saturating_mul(2)))
}
