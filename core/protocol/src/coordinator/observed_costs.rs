//! What a generation's first steps show about the costs that plans are made with.
//!
//! This module takes one figure from each generation and hands it to the planner, which decides whether the costs are wrong. It must never
//! cause a plan: a correction only affects later plans.

use varuna_plan::Generation;

/// Number of steps whose median a correction is made from: a single step may have been delayed. The generation's first step is not timed,
/// since caches are cold.
const STEPS: usize = 5;

/// The step times of one generation until there are enough, and the result of all generations.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedCosts {
    generation: Generation,
    /// Step times in milliseconds.
    took: Vec<f64>,
    /// The generation whose steps corrected the costs last.
    corrected_in: Option<Generation>,
    /// Correction factor on the estimated compute times; none while the first estimate is used.
    factor: Option<f64>,
}

impl ObservedCosts {
    /// Notes the time of a step in milliseconds. Returns the median of the generation's first steps, once.
    pub(super) fn note(&mut self, generation: Generation, ms: f64) -> Option<f64> {
        if self.generation != generation {
            self.generation = generation;
            self.took.clear();
        }
        if self.took.len() == STEPS {
            return None;
        }
        self.took.push(ms);
        if self.took.len() < STEPS {
            return None;
        }
        let mut sorted = self.took.clone();
        sorted.sort_by(f64::total_cmp);
        Some(sorted[STEPS / 2])
    }

    /// The planner has derived a factor from the steps of this generation.
    pub(super) fn corrected(&mut self, generation: Generation, factor: f64) {
        self.corrected_in = Some(generation);
        self.factor = Some(factor);
    }

    /// Whether the prediction for this generation was corrected by its own steps.
    pub(super) fn is_corrected(&self, generation: Generation) -> bool {
        self.corrected_in == Some(generation)
    }

    /// Correction factor on the estimated compute times; none while the first estimate is used.
    pub(super) fn factor(&self) -> Option<f64> {
        self.factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_first_steps_is_reported_once_per_generation() {
        let mut costs = ObservedCosts::default();
        for generation in [Generation(1), Generation(4)] {
            for ms in [10.0, 900.0, 12.0, 11.0] {
                assert_eq!(costs.note(generation, ms), None);
            }
            assert_eq!(costs.note(generation, 13.0), Some(12.0));
            assert_eq!(costs.note(generation, 50.0), None);
        }
    }

    #[test]
    fn steps_of_two_generations_are_not_mixed() {
        let mut costs = ObservedCosts::default();
        for _ in 0..STEPS - 1 {
            assert_eq!(costs.note(Generation(1), 1000.0), None);
        }
        for _ in 0..STEPS - 1 {
            assert_eq!(costs.note(Generation(2), 10.0), None);
        }
        assert_eq!(costs.note(Generation(2), 10.0), Some(10.0));
    }
}
