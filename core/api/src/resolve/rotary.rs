//! `spec.model.ropeTheta` and `spec.model.ropeScaling`: by how much rotary positions turn queries and keys.

use super::check::Check;
use crate::choices::{ROPE_SCALINGS, RopeScaling};
use crate::limits;
use crate::manifest::{ModelSpec, RopeScalingSpec};
use varuna_model::{Positions, Real, Rotary, Scaling};

const THETA: &str = "spec.model.ropeTheta";
const SCALING: &str = "spec.model.ropeScaling";

/// The preset's rotary positions, with the job's changes.
pub(super) fn positions(check: &mut Check, written: &ModelSpec, positions: Positions) -> Positions {
    let Positions::Rotary(preset) = positions else {
        refuse(check, written);
        return positions;
    };
    let theta = written.rope_theta.unwrap_or(preset.theta.get());
    let theta = check.above_zero(THETA, Some(theta), limits::ROPE_THETA_MAX);
    Positions::Rotary(Rotary {
        theta: Real::new(theta),
        scaling: match &written.rope_scaling {
            Some(written) => scaling(check, written),
            None => preset.scaling,
        },
    })
}

/// Learned positions have no angles.
fn refuse(check: &mut Check, written: &ModelSpec) {
    let allowed =
        "nothing, or a preset of Llama 3 or Qwen 3 in spec.model.preset: this model's positions are learned";
    if let Some(theta) = written.rope_theta {
        check.0.push(THETA, theta, allowed);
    }
    if written.rope_scaling.is_some() {
        check.0.push(SCALING, "given", allowed);
    }
}

fn scaling(check: &mut Check, written: &RopeScalingSpec) -> Option<Scaling> {
    let at = |field: &str| format!("{SCALING}.{field}");
    if check.choice(&at("kind"), written.kind.clone(), &ROPE_SCALINGS) == RopeScaling::Off {
        let alone = RopeScalingSpec {
            kind: written.kind.clone(),
            ..RopeScalingSpec::default()
        };
        if *written != alone {
            let allowed = "kind none alone: angles stay as spec.model.ropeTheta has them";
            check.0.push(SCALING, "kind none and others", allowed);
        }
        return None;
    }
    let mut number =
        |field: &str, value: Option<f64>| check.above_zero(&at(field), value, limits::ROPE_FACTOR_MAX);
    let usual = Scaling::llama3(number("factor", written.factor));
    let [low, high] = [
        (
            "lowFrequencyFactor",
            written.low_frequency_factor,
            usual.low_turns,
        ),
        (
            "highFrequencyFactor",
            written.high_frequency_factor,
            usual.high_turns,
        ),
    ]
    .map(|(field, value, usual)| number(field, Some(value.unwrap_or(usual.get()))));
    if low >= high {
        let allowed = format!("more than lowFrequencyFactor ({low})");
        check.0.push(&at("highFrequencyFactor"), high, allowed);
    }
    let length = written.original_sequence_length.unwrap_or(usual.original_length);
    Some(Scaling {
        low_turns: Real::new(low),
        high_turns: Real::new(high),
        original_length: check.within(&at("originalSequenceLength"), length, limits::WIDTH),
        ..usual
    })
}
