//! What workers observe of their steps, and what plans make of it: a slow worker is found and planned around.

use super::speeds::Observed;
use super::{Coordinator, CoordinatorEffect, Event};
use varuna_plan::{Generation, WorkerId};

impl Coordinator {
    /// What a worker said of its speed, and what was observed since.
    pub(super) fn speed(&self, id: WorkerId) -> f64 {
        self.said_speed(id) * self.speeds.speed(id)
    }

    fn said_speed(&self, id: WorkerId) -> f64 {
        let hello = self.workers.get(&id).and_then(|w| w.hello.as_ref());
        hello.map_or(1.0, |h| h.speed).max(f64::MIN_POSITIVE)
    }

    /// Takes in where the time of a worker's step went.
    pub(super) fn observe(&mut self, from: WorkerId, observed: &Observed) {
        if let Some(plan) = &self.record.plan {
            self.speeds.begin(plan.generation);
            if plan.has(from) {
                self.speeds.observe(from, observed);
            }
        }
    }

    /// Looks at the speeds once every member has reported for long enough; true where they changed.
    pub(super) fn looks_anew(&mut self, members: &[WorkerId]) -> bool {
        if !self.speeds.is_due(members) {
            return false;
        }
        let planner = &self.planner;
        let mut estimates = self
            .speeds
            .estimates(|segment, samples| planner.expected_ms(segment, samples));
        // What a worker said of itself is in its times already.
        for (worker, speed) in &mut estimates.speeds {
            *speed /= self.said_speed(*worker);
        }
        let changed = self.speeds.look(&estimates);
        if changed {
            self.planner.learn(&estimates.factors);
            // Made from what segments were thought to cost.
            self.warm.forget();
        }
        changed
    }

    /// Who holds the others up, in words.
    pub(super) fn slowest(&self, members: &[WorkerId]) -> String {
        let order = |a: &&WorkerId, b: &&WorkerId| self.speed(**a).total_cmp(&self.speed(**b));
        let slowest = members.iter().min_by(order).copied();
        slowest.map_or_else(String::new, |w| match self.speed(w) {
            // One that was slow is so no more.
            speed if speed > 0.95 => "all workers compute at one speed".into(),
            speed => format!("{} computes at {speed:.2} of the others' speed", self.name(w)),
        })
    }

    /// What a step took against what was predicted.
    pub(super) fn compare(&mut self, generation: Generation, effects: &mut Vec<CoordinatorEffect>) {
        let plan = self.record.plan.as_ref().filter(|p| p.generation == generation);
        let (Some(plan), Some(took)) = (plan, self.published.took()) else {
            return;
        };
        let predicted = plan.shape.predicted;
        let observed_ms = took.as_secs_f64() * 1e3;
        self.speeds.begin(generation);
        if self.speeds.is_off(predicted.step_ms, observed_ms) {
            effects.push(CoordinatorEffect::Event(Event::StepTimeOff {
                generation,
                predicted_ms: predicted.step_ms,
                observed_ms,
                calibrated: predicted.calibrated,
            }));
        }
    }
}
