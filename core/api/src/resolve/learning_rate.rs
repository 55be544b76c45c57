//! `spec.training.optimizer`: the learning rate over the steps.

use super::check::Check;
use crate::choices::{DECAYS, Decay};
use crate::learning_rate::{LearningRate, Schedule};
use crate::limits;
use crate::manifest::OptimizerSpec;

/// `steps`: the steps of the run, which are the end of the decay if the job does not set one.
pub(super) fn learning_rate(check: &mut Check, written: &OptimizerSpec, steps: u64) -> LearningRate {
    let decay = check.choice(&at("schedule"), written.schedule.clone(), &DECAYS);
    refuse_unused_fields(check, written, decay);
    let peak = check.above_zero(
        &at("learningRate"),
        written.learning_rate,
        limits::LEARNING_RATE_MAX,
    );
    let min = written.min_learning_rate.unwrap_or(peak / 10.0);
    if written.min_learning_rate.is_some() && !(0.0..=peak).contains(&min) {
        let allowed = format!("0 to learningRate ({peak})");
        check.0.push(&at("minLearningRate"), min, allowed);
    }
    let mut count = |field: &str, steps| check.within(&at(field), steps, limits::COUNT_OR_NONE);
    let warmup_steps = count("warmupSteps", written.warmup_steps.unwrap_or(0));
    let decay_steps = count("decaySteps", written.decay_steps.unwrap_or(steps));
    let stable_steps = written.stable_steps.map(|steps| count("stableSteps", steps));
    let end = written.decay_steps.map_or("steps", |_| "decaySteps");
    at_most(check, ("warmupSteps", warmup_steps), (end, decay_steps));
    if let Some(stable_steps) = stable_steps {
        at_most(
            check,
            ("warmupSteps", warmup_steps),
            ("stableSteps", stable_steps),
        );
        at_most(check, ("stableSteps", stable_steps), (end, decay_steps));
    }
    LearningRate {
        peak,
        min,
        warmup_steps,
        decay_steps,
        schedule: match decay {
            Decay::Cosine => Schedule::Cosine,
            Decay::Linear => Schedule::Linear,
            Decay::AfterStable => Schedule::WarmupStableDecay {
                stable_steps: stable_steps.unwrap_or_else(|| default_stable(warmup_steps, decay_steps)),
            },
            Decay::Never => Schedule::Constant,
        },
    }
}

fn at(field: &str) -> String {
    format!("spec.training.optimizer.{field}")
}

/// The last tenth of the steps decays, as in the experiments of the schedule's authors (Hu et al. 2024).
fn default_stable(warmup_steps: u64, decay_steps: u64) -> u64 {
    (decay_steps - decay_steps / 10).max(warmup_steps)
}

fn at_most(check: &mut Check, (field, value): (&str, u64), (limit, most): (&str, u64)) {
    let of_limit = match limit {
        "steps" => "spec.training.steps".to_owned(),
        field => at(field),
    };
    if value > most && !check.0.has(&of_limit) {
        check
            .0
            .push(&at(field), value, format!("at most {limit} ({most})"));
    }
}

fn refuse_unused_fields(check: &mut Check, written: &OptimizerSpec, decay: Decay) {
    let mut refuse = |field: &str, value: Option<String>, allowed: &str| {
        if let Some(value) = value {
            check.0.push(&at(field), value, allowed);
        }
    };
    let stable = written.stable_steps.map(|s| s.to_string());
    if decay == Decay::Never {
        let allowed = "nothing with schedule constant, which has no decay";
        let min = written.min_learning_rate.map(|m| m.to_string());
        refuse("minLearningRate", min, allowed);
        refuse("decaySteps", written.decay_steps.map(|s| s.to_string()), allowed);
        refuse("stableSteps", stable, allowed);
    } else if decay != Decay::AfterStable {
        let allowed = "nothing but with schedule wsd: other decays begin after the warm-up";
        refuse("stableSteps", stable, allowed);
    }
}
