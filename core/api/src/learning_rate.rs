//! The learning rate as a function of the optimizer steps that were applied.
//!
//! All workers compute it from the job and their state's counters, so it must never depend on anything else.

use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// The learning rate over the steps: a linear warm-up, and what follows it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LearningRate {
    /// Rate at the end of the warm-up.
    pub peak: f64,
    /// Rate at and after `decay_steps`, at most `peak`.
    pub min: f64,
    /// Steps of linear warm-up. Like those of the decay they are optimizer steps; skipped steps are not counted.
    pub warmup_steps: u64,
    /// Step at which the decay ends, at least `warmup_steps`.
    pub decay_steps: u64,
    /// How the rate goes from `peak` to `min`. Not in the hash of jobs with a cosine: their hash is the same as before there was a choice.
    #[serde(default, skip_serializing_if = "Schedule::is_cosine")]
    pub schedule: Schedule,
}

/// What follows the warm-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Schedule {
    /// Half a period of a cosine (Loshchilov & Hutter 2017).
    #[default]
    Cosine,
    /// A straight line.
    Linear,
    /// Warm-up, stable, decay (Hu et al. 2024): the peak, then a straight line.
    WarmupStableDecay {
        /// Step at which the decay begins: from `warmup_steps` to `decay_steps`.
        stable_steps: u64,
    },
    /// The peak for ever. `min` and `decay_steps` are not used.
    Constant,
}

impl Schedule {
    fn is_cosine(&self) -> bool {
        *self == Schedule::Cosine
    }
}

impl LearningRate {
    /// The rate of the step that follows `applied` applied ones (0-based).
    #[must_use]
    pub fn at(&self, applied: u64) -> f64 {
        if applied < self.warmup_steps {
            return self.peak * number(applied + 1) / number(self.warmup_steps);
        }
        let decay_from = match self.schedule {
            Schedule::Cosine | Schedule::Linear => self.warmup_steps,
            Schedule::WarmupStableDecay { stable_steps } => stable_steps,
            Schedule::Constant => return self.peak,
        };
        if applied >= self.decay_steps {
            return self.min;
        }
        if applied < decay_from {
            return self.peak;
        }
        let done = number(applied - decay_from) / number(self.decay_steps - decay_from);
        let range = self.peak - self.min;
        match self.schedule {
            Schedule::Cosine => self.min + 0.5 * range * (1.0 + (PI * done).cos()),
            Schedule::Linear | Schedule::WarmupStableDecay { .. } | Schedule::Constant => {
                self.peak - range * done
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "step counts are far below 2^52")]
fn number(steps: u64) -> f64 {
    steps as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn any_rate()(
            peak in 1e-6..1.0f64,
            min_share in 0.0..=1.0f64,
            warmup_steps in 0u64..100,
            stable in 0u64..100,
            decay in 1u64..2000,
            kind in 0u8..4,
        ) -> LearningRate {
            let stable_steps = warmup_steps + stable;
            LearningRate {
                peak,
                min: peak * min_share,
                warmup_steps,
                decay_steps: stable_steps + decay,
                schedule: match kind {
                    0 => Schedule::Cosine,
                    1 => Schedule::Linear,
                    2 => Schedule::WarmupStableDecay { stable_steps },
                    _ => Schedule::Constant,
                },
            }
        }
    }

    /// The last step at the peak.
    fn peak_until(rate: &LearningRate) -> u64 {
        match rate.schedule {
            Schedule::WarmupStableDecay { stable_steps } => stable_steps,
            _ => rate.warmup_steps,
        }
    }

    proptest! {
        #[test]
        fn the_warm_up_rises_in_equal_steps_to_the_peak(rate in any_rate()) {
            for step in 0..rate.warmup_steps {
                let expected = rate.peak * (step + 1) as f64 / rate.warmup_steps as f64;
                prop_assert!((rate.at(step) - expected).abs() <= 1e-12 * rate.peak);
            }
            for step in [rate.warmup_steps, peak_until(&rate)] {
                prop_assert!((rate.at(step) - rate.peak).abs() <= 1e-12 * rate.peak);
            }
        }

        #[test]
        fn rate_never_rises_after_the_warmup_and_ends_at_the_minimum(rate in any_rate()) {
            for step in rate.warmup_steps..rate.decay_steps + 10 {
                let (now, next) = (rate.at(step), rate.at(step + 1));
                prop_assert!(next <= now, "{now} at {step}, then {next}");
                prop_assert!(now >= rate.min && now <= rate.peak * (1.0 + 1e-12), "{now} at {step}");
            }
            let end = if rate.schedule == Schedule::Constant { rate.peak } else { rate.min };
            for step in [rate.decay_steps, rate.decay_steps + 1, u64::MAX] {
                prop_assert_eq!(rate.at(step), end);
            }
        }

        #[test]
        fn no_step_changes_the_rate_by_more_than_its_share(rate in any_rate()) {
            // A cosine is steepest in its middle: pi / 2 times as steep as a straight line.
            let decay = rate.decay_steps - peak_until(&rate);
            let most = PI / 2.0 * (rate.peak - rate.min) / decay as f64 + 1e-12 * rate.peak;
            for step in rate.warmup_steps..rate.decay_steps + 10 {
                let change = rate.at(step) - rate.at(step + 1);
                prop_assert!(change <= most, "{change} at {step}, at most {most}");
            }
        }
    }

    fn of(schedule: Schedule) -> LearningRate {
        LearningRate {
            peak: 1.0,
            min: 0.2,
            warmup_steps: 10,
            decay_steps: 110,
            schedule,
        }
    }

    #[test]
    fn each_schedule_has_its_own_middle() {
        let stable = Schedule::WarmupStableDecay { stable_steps: 90 };
        for (schedule, step, expected) in [
            (Schedule::Cosine, 35, 0.2 + 0.4 * (1.0 + 0.5f64.sqrt())),
            (Schedule::Cosine, 60, 0.6),
            (Schedule::Linear, 35, 0.8),
            (Schedule::Linear, 60, 0.6),
            (stable, 60, 1.0),
            (stable, 90, 1.0),
            (stable, 95, 0.8),
            (stable, 100, 0.6),
            (Schedule::Constant, 60, 1.0),
            (Schedule::Constant, 110, 1.0),
        ] {
            let found = of(schedule).at(step);
            assert!(
                (found - expected).abs() < 1e-12,
                "{schedule:?} at {step}: {found}, not {expected}"
            );
        }
    }

    #[test]
    fn the_bits_of_a_cosine_are_those_of_earlier_releases() {
        // Values of the release before the schedule could be chosen.
        let rate = LearningRate {
            peak: 3e-4,
            min: 3e-5,
            warmup_steps: 7,
            decay_steps: 200,
            schedule: Schedule::Cosine,
        };
        for (step, bits) in COSINE_BITS {
            assert_eq!(rate.at(step).to_bits(), bits, "{step}");
        }
    }

    const COSINE_BITS: [(u64, u64); 6] = [
        (0, 0x3f06_7830_373c_cbdd),
        (4, 0x3f2c_163c_450b_fed3),
        (7, 0x3f33_a92a_3055_3261),
        (50, 0x3f31_94a3_22a0_3b21),
        (199, 0x3eff_79dd_5299_c242),
        (200, 0x3eff_7510_4d55_1d69),
    ];

    #[test]
    fn schedule_without_decay_steps_from_peak_to_minimum() {
        for schedule in [
            Schedule::Cosine,
            Schedule::Linear,
            Schedule::WarmupStableDecay { stable_steps: 10 },
        ] {
            let rate = LearningRate {
                decay_steps: 10,
                ..of(schedule)
            };
            assert_eq!((rate.at(9), rate.at(10)), (1.0, 0.2), "{schedule:?}");
        }
    }

    #[test]
    fn the_hash_of_a_cosine_has_no_schedule() {
        let text = |schedule| serde_json::to_string(&of(schedule)).unwrap();
        let cosine = r#"{"peak":1.0,"min":0.2,"warmupSteps":10,"decaySteps":110}"#;
        assert_eq!(text(Schedule::Cosine), cosine);
        for schedule in [
            Schedule::Linear,
            Schedule::Constant,
            Schedule::WarmupStableDecay { stable_steps: 3 },
        ] {
            let rate = of(schedule);
            let read: LearningRate = serde_json::from_str(&text(schedule)).unwrap();
            assert_ne!(text(schedule), cosine);
            assert_eq!(read, rate);
        }
    }
}
