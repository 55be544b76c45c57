//! What workers observe of their steps, and what plans make of it: a slow worker is found and planned around.

use super::config::Hello;
use super::event::Event;
use super::shared::Shared;
use super::speeds::Observed;
use super::turn::Turn;
use varuna_plan::{Generation, Plan, WorkerId};

impl Shared {
    /// The worker's own measure of its speed, corrected by what was observed since.
    pub(super) fn speed(&self, id: WorkerId) -> f64 {
        self.measured_speed(id) * self.speeds.speed(id)
    }

    /// What it said of its speed, and what is known of its kind of device.
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

    /// Takes over the observed speeds once every member has reported for long enough; true where they changed.
    pub(super) fn update_speeds(&mut self, members: &[WorkerId]) -> bool {
        if !self.speeds.is_due(members) {
            return false;
        }
        let planner = &self.planner;
        let mut estimates = self
            .speeds
            .estimates(|segment, samples| planner.expected_ms(segment, samples));
        // What a worker measured itself is in its times already.
        for (worker, speed) in &mut estimates.speeds {
            *speed /= self.measured_speed(*worker);
        }
        let changed = self.speeds.adopt(&estimates);
        if changed {
            self.planner.learn(&estimates.factors);
            // Made from what segments were thought to cost.
            self.prepared_plans.forget();
        }
        changed
    }

    /// Who holds the others up, for people.
    pub(super) fn slowest(&self, members: &[WorkerId]) -> String {
        let order = |a: &&WorkerId, b: &&WorkerId| self.speed(**a).total_cmp(&self.speed(**b));
        let slowest = members.iter().min_by(order).copied();
        slowest.map_or_else(String::new, |w| match self.speed(w) {
            // One that was slow is so no more.
            speed if speed > 0.95 => "all workers compute at one speed".into(),
            speed => {
                let name = self.roster.name(w);
                format!("{name} computes at {speed:.2} of the others' speed")
            }
        })
    }

    /// Compares what a step took with what was predicted: costs that nobody measured are corrected by a generation's first steps, and
    /// what stays off is told.
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

    /// Lets the planner correct an estimate by what steps of this plan took.
    fn correct_costs(&mut self, plan: &Plan, observed_ms: f64, turn: &mut Turn<'_>) {
        let workers = self.infos(plan.members());
        let predicted_ms = self.predicted_ms(plan, plan.members());
        let Some(factor) = self.planner.correct(&plan.shape, &workers, observed_ms) else {
            return;
        };
        self.speeds.costs.corrected(plan.generation, factor);
        // Made from what compute was thought to cost.
        self.prepared_plans.forget();
        turn.event(Event::CostsCorrected {
            generation: plan.generation,
            predicted_ms,
            observed_ms,
            factor,
        });
    }
}
