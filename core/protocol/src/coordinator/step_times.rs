//! What workers observe about their steps, and how plans use it: a slow worker is found and planned around.

use super::config::Hello;
use super::event::Event;
use super::shared::Shared;
use super::speeds::Observed;
use super::turn::Turn;
use varuna_plan::{Generation, Plan, WorkerId};

impl Shared {
    /// The worker's own measurement of its speed, corrected by later observations.
    pub(super) fn speed(&self, id: WorkerId) -> f64 {
        self.measured_speed(id) * self.speeds.speed(id)
    }

    /// The speed that the worker reported, and what is known about its kind of device.
    fn measured_speed(&self, id: WorkerId) -> f64 {
        let of = |hello: &Hello| {
            let device = hello.hardware.as_ref().map(|h| self.planner.speed_of(h));
            hello.speed * device.unwrap_or(1.0)
        };
        let measured = self.roster.hello(id).map_or(1.0, of);
        measured.max(f64::MIN_POSITIVE)
    }

    /// Takes in where the time of a worker's step went.
    pub(super) fn observe(&mut self, from: WorkerId, observed: &Observed) {
        if let Some(plan) = &self.record.stored.plan {
            self.speeds.begin(plan.generation);
            if plan.has(from) {
                self.speeds.observe(from, observed);
            }
        }
    }

    /// Adopts the observed speeds once every member has reported for long enough. True if they changed.
    pub(super) fn update_speeds(&mut self, members: &[WorkerId]) -> bool {
        if !self.speeds.is_due(members) {
            return false;
        }
        let planner = &self.planner;
        let mut estimates = self
            .speeds
            .estimates(|segment, samples| planner.expected_ms(segment, samples));
        // What the worker measured itself is already contained in its times.
        for (worker, speed) in &mut estimates.speeds {
            *speed /= self.measured_speed(*worker);
        }
        let changed = self.speeds.adopt(&estimates);
        if changed {
            self.planner.learn(&estimates.factors);
            // They were made with the earlier costs of segments.
            self.prepared_plans.forget();
        }
        changed
    }

    /// Which worker slows the others down, as text for people.
    pub(super) fn slowest(&self, members: &[WorkerId]) -> String {
        let order = |a: &&WorkerId, b: &&WorkerId| self.speed(**a).total_cmp(&self.speed(**b));
        let slowest = members.iter().min_by(order).copied();
        slowest.map_or_else(String::new, |w| match self.speed(w) {
            // A worker that was slow no longer is.
            speed if speed > 0.95 => "all workers compute at one speed".into(),
            speed => {
                let name = self.roster.name(w);
                format!("{name} computes at {speed:.2} of the others' speed")
            }
        })
    }

    /// Compares the time of a step with the prediction. Costs that nobody measured are corrected by a generation's first steps, and a
    /// difference that remains is reported.
    pub(super) fn compare_step_time(&mut self, generation: Generation, turn: &mut Turn<'_>) {
        let plan = self.record.stored.plan.clone();
        let plan = plan.filter(|p| p.generation == generation);
        let (Some(plan), Some(took)) = (plan, self.progress.commits.took()) else {
            return;
        };
        let predicted = plan.shape.predicted;
        let observed_ms = took.as_secs_f64() * 1e3;
        if let Some(median_ms) = self.speeds.costs.note(generation, observed_ms) {
            self.correct_costs(&plan, median_ms, turn);
        }
        if self.speeds.costs.is_corrected(generation) {
            return;
        }
        self.speeds.begin(generation);
        if self.speeds.is_off(predicted.step_ms, observed_ms) {
            turn.event(Event::StepTimeOff {
                generation,
                predicted_ms: predicted.step_ms,
                observed_ms,
                calibrated: predicted.calibrated,
            });
        }
    }

    /// Lets the planner correct an estimate by the step times of this plan.
    fn correct_costs(&mut self, plan: &Plan, observed_ms: f64, turn: &mut Turn<'_>) {
        let workers = self.infos(plan.members());
        let predicted_ms = self.predicted_ms(plan, plan.members());
        let Some(factor) = self.planner.correct(&plan.shape, &workers, observed_ms) else {
            return;
        };
        self.speeds.costs.corrected(plan.generation, factor);
        // They were made with the earlier cost of compute.
        self.prepared_plans.forget();
        turn.event(Event::CostsCorrected {
            generation: plan.generation,
            predicted_ms,
            observed_ms,
            factor,
        });
    }
}
