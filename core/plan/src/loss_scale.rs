//! The loss scale and the optimizer's other counters, and how each committed step updates them.
//!
//! Small gradients vanish in fp16, whose least positive number is 2^-24. So the loss is multiplied by a scale before the backward, and
//! the gradients are divided by it in fp32 (Micikevicius et al. 2018, "Mixed Precision Training"). Too large a scale makes gradients
//! infinite: such a step is skipped and the scale halved; after a window of steps that were not skipped it is doubled.
//!
//! All of this follows from the committed steps alone, so all workers have the same values, and so has a run that is resumed.

use serde::{Deserialize, Serialize};

/// A factor of the loss: a power of two, so that multiplying and dividing by it is exact.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct ScaleFactor {
    exponent: u8,
}

/// An error: the number cannot be a loss scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a loss scale of {0}: powers of two from 1 to {most} are allowed", most = ScaleFactor::GREATEST.value())]
pub struct ImpossibleScale(pub u64);

impl ScaleFactor {
    /// The loss unchanged.
    pub const ONE: ScaleFactor = ScaleFactor { exponent: 0 };
    /// 2^32: a gradient that is still finite in fp16 under a greater scale is below 2^-16, and needs none.
    pub const GREATEST: ScaleFactor = ScaleFactor { exponent: 32 };

    /// 2 to this power, at most [`ScaleFactor::GREATEST`].
    #[must_use]
    pub const fn two_to(exponent: u8) -> ScaleFactor {
        if exponent < ScaleFactor::GREATEST.exponent {
            ScaleFactor { exponent }
        } else {
            ScaleFactor::GREATEST
        }
    }

    /// The factor as a number.
    #[must_use]
    pub const fn value(self) -> u64 {
        1 << self.exponent
    }

    /// The factor as the arithmetic takes it; exact.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a power of two up to 2^32")]
    pub const fn as_f64(self) -> f64 {
        self.value() as f64
    }

    fn halved(self) -> ScaleFactor {
        ScaleFactor::two_to(self.exponent.saturating_sub(1))
    }

    fn doubled(self) -> ScaleFactor {
        ScaleFactor::two_to(self.exponent + 1)
    }
}

impl TryFrom<u64> for ScaleFactor {
    type Error = ImpossibleScale;
    fn try_from(value: u64) -> Result<ScaleFactor, ImpossibleScale> {
        if !value.is_power_of_two() || value > ScaleFactor::GREATEST.value() {
            return Err(ImpossibleScale(value));
        }
        let exponent = u8::try_from(value.trailing_zeros()).map_err(|_| ImpossibleScale(value))?;
        Ok(ScaleFactor { exponent })
    }
}

impl From<ScaleFactor> for u64 {
    fn from(factor: ScaleFactor) -> u64 {
        factor.value()
    }
}

/// How a job scales its loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LossScaling {
    /// By one constant factor; by 1 if the format's range is wide enough.
    Static(ScaleFactor),
    /// By a factor that adapts to overflows.
    #[serde(rename_all = "camelCase")]
    Dynamic {
        /// Scale at the run's start.
        initial: ScaleFactor,
        /// The scale is never below it.
        minimum: ScaleFactor,
        /// The number of steps in a row without overflow after which the scale is doubled.
        window: u32,
    },
}

impl LossScaling {
    /// No loss scaling.
    pub const OFF: LossScaling = LossScaling::Static(ScaleFactor::ONE);

    /// Whether the loss is left as it is.
    #[must_use]
    pub fn is_off(&self) -> bool {
        *self == LossScaling::OFF
    }

    /// The scale of the first step.
    #[must_use]
    pub fn initial(&self) -> LossScale {
        let (LossScaling::Static(factor) | LossScaling::Dynamic { initial: factor, .. }) = *self;
        LossScale {
            factor,
            clean_steps: 0,
        }
    }

    /// The scale after resuming from a checkpoint. `saved` is none if the checkpoint's job had no dynamic scale.
    #[must_use]
    pub fn resumed(&self, saved: Option<LossScale>) -> LossScale {
        match (*self, saved) {
            (LossScaling::Dynamic { minimum, .. }, Some(saved)) if !bug!(ForgetSavedScale) => LossScale {
                factor: saved.factor.max(minimum),
                ..saved
            },
            _ => self.initial(),
        }
    }

    /// The scale that is written into a checkpoint; none for a static one, which is in the job file.
    #[must_use]
    pub fn saved(&self, scale: LossScale) -> Option<LossScale> {
        matches!(self, LossScaling::Dynamic { .. }).then_some(scale)
    }

    fn next(&self, scale: LossScale, overflow: bool) -> LossScale {
        let LossScaling::Dynamic { minimum, window, .. } = *self else {
            return scale;
        };
        let LossScale { factor, clean_steps } = scale;
        let clean_steps = if overflow && !bug!(OverflowKeepsWindow) {
            0
        } else {
            clean_steps.saturating_add(1)
        };
        if overflow {
            let least = if bug!(ScaleBelowMinimum) {
                ScaleFactor::ONE
            } else {
                minimum
            };
            let factor = factor.halved().max(least);
            LossScale { factor, clean_steps }
        } else if clean_steps >= window {
            LossScale {
                factor: factor.doubled(),
                clean_steps: if bug!(DoublingKeepsWindow) { clean_steps } else { 0 },
            }
        } else {
            LossScale { factor, clean_steps }
        }
    }

    /// Whether a smaller scale could avoid the overflow of a step under this one.
    fn may_fall(&self, scale: LossScale) -> bool {
        matches!(self, LossScaling::Dynamic { minimum, .. } if scale.factor > *minimum)
    }
}

/// The present loss scale.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LossScale {
    /// What the loss is multiplied by.
    pub factor: ScaleFactor,
    /// Steps in a row without overflow since it was last changed.
    pub clean_steps: u32,
}

/// The optimizer's counters: the part of the state that is the same for all units. A function of the committed steps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OptimizerProgress {
    /// Optimizer steps applied (skipped ones not counted): the learning rate and Adam's corrections follow it.
    pub adam_steps: u64,
    /// The scale of the next step's loss.
    pub loss_scale: LossScale,
    /// Steps in a row that were skipped and that no smaller loss scale would have saved.
    pub failed_in_a_row: u32,
}

impl OptimizerProgress {
    /// Before the first step of a job that does not scale its loss.
    pub const START: OptimizerProgress = OptimizerProgress {
        adam_steps: 0,
        loss_scale: LossScale {
            factor: ScaleFactor::ONE,
            clean_steps: 0,
        },
        failed_in_a_row: 0,
    };

    /// The counters before the first step.
    #[must_use]
    pub fn initial(scaling: &LossScaling) -> OptimizerProgress {
        OptimizerProgress {
            loss_scale: scaling.initial(),
            ..OptimizerProgress::START
        }
    }

    /// The counters after one more committed step. A step with an `overflow` was skipped. It counts as failed only if the scale could not
    /// be lowered: a scale that starts too large is no fault.
    #[must_use]
    pub fn after(self, overflow: bool, scaling: &LossScaling) -> OptimizerProgress {
        let failed = overflow && (!scaling.may_fall(self.loss_scale) || bug!(EverySkippedStepFails));
        OptimizerProgress {
            adam_steps: self
                .adam_steps
                .saturating_add(u64::from(!overflow || bug!(CountSkippedSteps))),
            loss_scale: scaling.next(self.loss_scale, overflow),
            failed_in_a_row: match (overflow, failed) {
                (false, _) if bug!(FailuresAreNeverForgiven) => self.failed_in_a_row,
                (false, _) => 0,
                (true, true) => self.failed_in_a_row.saturating_add(1),
                (true, false) => self.failed_in_a_row,
            },
        }
    }
}

impl Default for OptimizerProgress {
    fn default() -> OptimizerProgress {
        OptimizerProgress::START
    }
}

#[cfg(test)]
mod tests {
    use super::ScaleFactor as Factor;
    use super::*;
    use proptest::prelude::*;

    fn dynamic(initial: u8, minimum: u8, window: u32) -> LossScaling {
        LossScaling::Dynamic {
            initial: Factor::two_to(initial),
            minimum: Factor::two_to(minimum),
            window,
        }
    }

    fn run(scaling: &LossScaling, from: OptimizerProgress, overflows: &[bool]) -> OptimizerProgress {
        overflows
            .iter()
            .fold(from, |progress, overflow| progress.after(*overflow, scaling))
    }

    fn start(scaling: &LossScaling) -> OptimizerProgress {
        OptimizerProgress::initial(scaling)
    }

    #[test]
    fn overflow_halves_the_scale_and_clean_steps_double_it() {
        let scaling = dynamic(16, 0, 3);
        let factors = |overflows: &[bool]| -> Vec<u64> {
            (0..=overflows.len())
                .map(|n| run(&scaling, start(&scaling), &overflows[..n]))
                .map(|p| p.loss_scale.factor.value())
                .collect()
        };
        let (bad, good) = (true, false);
        assert_eq!(
            factors(&[bad, good, good, bad, good, good, good, good]),
            [65536, 32768, 32768, 32768, 16384, 16384, 16384, 32768, 32768]
        );
    }

    #[test]
    fn skipped_steps_fail_only_where_the_scale_cannot_fall() {
        let failed =
            |scaling: &LossScaling, n: usize| run(scaling, start(scaling), &vec![true; n]).failed_in_a_row;
        let scaling = dynamic(5, 2, 10);
        assert_eq!([0, 3, 4, 9].map(|n| failed(&scaling, n)), [0, 0, 1, 6]);
        let fixed = LossScaling::Static(Factor::two_to(5));
        assert_eq!([0, 1, 9].map(|n| failed(&fixed, n)), [0, 1, 9]);
        assert_eq!(failed(&LossScaling::OFF, 7), 7);
        let after = run(&scaling, start(&scaling), &[true; 9]).after(false, &scaling);
        assert_eq!((after.failed_in_a_row, after.adam_steps), (0, 1));
    }

    #[test]
    fn a_checkpoint_of_another_scaling_leads_to_the_jobs_own_scale() {
        let saved = LossScale {
            factor: Factor::two_to(3),
            clean_steps: 7,
        };
        let scaling = dynamic(16, 0, 1000);
        assert_eq!(scaling.resumed(Some(saved)), saved);
        assert_eq!(scaling.saved(saved), Some(saved));
        assert_eq!(scaling.resumed(None), scaling.initial());
        assert_eq!(
            dynamic(16, 5, 1000).resumed(Some(saved)).factor,
            Factor::two_to(5)
        );
        for fixed in [LossScaling::OFF, LossScaling::Static(Factor::two_to(9))] {
            assert_eq!(fixed.resumed(Some(saved)), fixed.initial());
            assert_eq!(fixed.saved(saved), None);
        }
    }

    #[test]
    fn factors_are_powers_of_two_and_read_back() {
        for exponent in 0..=32 {
            let text = serde_json::to_string(&Factor::two_to(exponent)).unwrap();
            assert_eq!(text, (1u64 << exponent).to_string());
            assert_eq!(
                serde_json::from_str::<ScaleFactor>(&text).unwrap(),
                Factor::two_to(exponent)
            );
        }
        for refused in [0, 3, 65535, 1 << 33, u64::MAX] {
            let error = serde_json::from_str::<ScaleFactor>(&refused.to_string()).unwrap_err();
            let expected =
                format!("a loss scale of {refused}: powers of two from 1 to 4294967296 are allowed");
            assert!(error.to_string().contains(&expected), "{error}");
        }
    }

    fn any_scaling() -> impl Strategy<Value = LossScaling> {
        prop_oneof![
            (0..=32u8).prop_map(|e| LossScaling::Static(Factor::two_to(e))),
            (0..=32u8, 0..=32u8, 1..40u32).prop_map(|(a, b, window)| dynamic(a.max(b), a.min(b), window)),
        ]
    }

    proptest! {
        #[test]
        fn it_makes_no_difference_where_a_run_is_interrupted(
            scaling in any_scaling(),
            overflows in proptest::collection::vec(proptest::bool::weighted(0.3), 0..200),
            at in 0..200usize,
        ) {
            let (first, rest) = overflows.split_at(at.min(overflows.len()));
            let whole = run(&scaling, start(&scaling), &overflows);
            let stopped = run(&scaling, start(&scaling), first);
            // The values in a checkpoint, written and read.
            let text = serde_json::to_string(&(stopped, scaling.saved(stopped.loss_scale))).unwrap();
            let (mut read, saved): (OptimizerProgress, Option<LossScale>) = serde_json::from_str(&text).unwrap();
            read.loss_scale = scaling.resumed(saved);
            prop_assert_eq!(run(&scaling, read, rest), whole);
            let applied = overflows.iter().filter(|o| !**o).count() as u64;
            prop_assert_eq!(whole.adam_steps, applied);
        }

        #[test]
        fn the_scale_stays_within_its_bounds_and_moves_by_one_power(
            scaling in any_scaling(),
            overflows in proptest::collection::vec(any::<bool>(), 0..200),
        ) {
            let mut progress = start(&scaling);
            for overflow in overflows {
                let next = progress.after(overflow, &scaling);
                let (from, to) = (progress.loss_scale.factor, next.loss_scale.factor);
                match scaling {
                    LossScaling::Static(fixed) => prop_assert_eq!(to, fixed),
                    LossScaling::Dynamic { minimum, window, .. } => {
                        prop_assert!((minimum..=ScaleFactor::GREATEST).contains(&to));
                        let expected = if overflow { [from.halved().max(minimum); 2] } else { [from, from.doubled()] };
                        prop_assert!(expected.contains(&to));
                        prop_assert!(next.loss_scale.clean_steps < window);
                    }
                }
                progress = next;
            }
        }
    }
}
