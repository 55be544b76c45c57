//! Limits on what workers of a job can send each other.

use crate::transport::ring::MESSAGE_ELEMENTS;
use varuna_frames::{ElementFormat, Limits};
use varuna_model::{Layout, Model};
use varuna_plan::Moments;

/// Bytes of a protocol message without its norms: a handful of numbers.
const MESSAGE: u32 = 64;
/// Bytes of one unit's norms in a message, at most: its number and three floats, each with what tells that it is there.
const NORMS: u32 = 32;

/// The limits of a job with this model, whose state has the units of `layout`, and micro-batches of at most this many samples; its
/// boundaries are in this format and its optimizer keeps these moments.
#[must_use]
pub fn of_job(
    (model, layout): (&Model, Layout),
    samples_max: u64,
    boundary: ElementFormat,
    moments: Moments,
) -> Limits {
    let elements = |unit| {
        let whole = model.unit_parameter_count(layout.whole_of(unit));
        let own = layout.elements_of(unit, usize::try_from(whole).unwrap_or(usize::MAX));
        own.len() as u64
    };
    let sample = model.boundary_elements();
    let boundary_elements = u32::try_from(samples_max.saturating_mul(sample)).unwrap_or(u32::MAX);
    // A job whose micro-batches are longer than a frame can be is refused; without a size of micro-batches, its whole batch may be.
    let frame_elements = u32::MAX / boundary.bytes();
    let units = u32::try_from(layout.units()).unwrap_or(u32::MAX);
    let default = Limits::default();
    Limits {
        tensor_elements: boundary_elements.min(frame_elements).max(MESSAGE_ELEMENTS),
        boundary_format: Some(boundary),
        message_bytes: units
            .saturating_mul(NORMS)
            .saturating_add(MESSAGE)
            .min(default.message_bytes),
        unit_parameters: Some(layout.all_units().map(elements).collect()),
        moments,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::state::UnitNorm;
    use varuna_plan::{Generation, Step, Unit};
    use varuna_protocol::{Norms, PeerMessage};

    #[test]
    fn limits_fit_what_the_job_can_send() {
        let gpt2 = varuna_model::presets::preset("gpt2-tiny").unwrap();
        let model = Model::from(gpt2.clone());
        let limits = of_job(
            (&model, model.layout()),
            8,
            ElementFormat::BFloat16,
            Moments::Momentum,
        );
        let units: Vec<Unit> = model.layout().all_units().collect();
        let norm = UnitNorm {
            norm2: f64::MAX,
            overflow: true,
            before: varuna_plan::OptimizerProgress::START,
            loss: f64::MAX,
            eval_loss: Some(f64::MAX),
        };
        let longest = PeerMessage::Norm(Norms {
            step: Step(u64::MAX),
            units: units.iter().map(|unit| (*unit, norm)).collect(),
            armed: Generation(u64::MAX),
            save: true,
            store_busy: true,
        });
        let bytes = postcard::to_stdvec(&longest).unwrap().len();
        let most = limits.message_bytes as usize;
        assert!((bytes..2 * bytes).contains(&most), "{bytes} of {most}");
        assert_eq!(
            u64::from(limits.tensor_elements),
            (8 * u64::from(gpt2.sequence_length) * u64::from(gpt2.hidden_size)).max(1 << 18)
        );
        assert_eq!(limits.boundary_format, Some(ElementFormat::BFloat16));
        assert_eq!(limits.unit_parameters.unwrap().len(), units.len());
        assert_eq!(limits.moments, Moments::Momentum);
    }

    #[test]
    fn boundary_limit_is_the_frame_limit() {
        let mut wide = varuna_model::presets::preset("gpt2-tiny").unwrap();
        (wide.hidden_size, wide.heads, wide.sequence_length) = (8192, 64, 8192);
        let model = Model::from(wide);
        let elements = |samples, format| {
            let limits = of_job((&model, model.layout()), samples, format, Moments::Adam);
            limits.tensor_elements
        };
        assert_eq!(elements(8, ElementFormat::BFloat16), 1 << 29);
        assert_eq!(elements(8, ElementFormat::Float32), 1 << 29);
        assert_eq!(elements(1 << 40, ElementFormat::BFloat16), u32::MAX / 2);
        assert_eq!(elements(1 << 40, ElementFormat::Float32), u32::MAX / 4);
    }
}
