//! `spec.model.positions`, and by how much rotary ones turn queries and keys: `spec.model.ropeTheta` and `spec.model.ropeScaling`.

use super::check::Check;
use crate::choices::{POSITIONS, PositionKind, ROPE_SCALINGS, RopeScaling};
use crate::limits;
use crate::manifest::{ModelSpec, RopeScalingSpec};
use varuna_model::{Positions, Real, Rotary, Scaling};

const KIND: &str = "spec.model.positions";
const THETA: &str = "spec.model.ropeTheta";
const SCALING: &str = "spec.model.ropeScaling";

/// The preset's positions, with the job's changes. `preset` is none if the preset is not known.
pub(super) fn positions(check: &mut Check, written: &ModelSpec, preset: Option<Positions>) -> Positions {
    let kind = match (&written.positions, preset) {
        (Some(name), _) => check.one_of(KIND, Some(name.clone()), &POSITIONS),
        (None, Some(Positions::Learned)) => Some(PositionKind::Learned),
        (None, Some(Positions::Rotary(_))) => Some(PositionKind::Rotary),
        (None, None) => None,
    };
    match kind {
        Some(PositionKind::Rotary) => {
            let known = match preset {
                Some(Positions::Rotary(known)) => known,
                Some(Positions::Learned) | None => Rotary::ORIGINAL,
            };
            Positions::Rotary(rotary(check, written, known))
        }
        Some(PositionKind::Learned) => {
            refuse(check, written);
            Positions::Learned
        }
        // An error is noted: it is not known whether the angles would be allowed.
        None => preset.unwrap_or_default(),
    }
}

/// The known angles, with the job's changes.
fn rotary(check: &mut Check, written: &ModelSpec, known: Rotary) -> Rotary {
    let theta = written.rope_theta.unwrap_or(known.theta.get());
    let theta = check.above_zero(THETA, Some(theta), limits::ROPE_THETA_MAX);
    Rotary {
        theta: Real::new(theta),
        scaling: match &written.rope_scaling {
            Some(written) => scaling(check, written),
            None => known.scaling,
        },
    }
}

/// Learned positions have no angles.
fn refuse(check: &mut Check, written: &ModelSpec) {
    let allowed = "nothing, or rotary as spec.model.positions: learned positions have no angles";
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
