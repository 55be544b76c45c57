//! Converts costs of whole blocks to costs of their halves: profiles of other frameworks know only whole blocks, but plans may cut between
//! attention and MLP.

use super::{Costs, Device, SegmentCost, SegmentKind};
use varuna_model::ModelSpec;

impl Costs {
    /// These costs with a segment for each half of a block. They are returned unchanged if they have that already; none if their number of
    /// segments does not match the model. Each quantity of a whole block is divided as in an estimate of the model, so both halves together
    /// cost what the block did.
    #[must_use]
    pub fn with_halves(&self, model: &ModelSpec) -> Option<Costs> {
        let (has, halved) = (self.segments.len(), model.segments.len());
        if self.layout().tied != (model.tied_parameters > 0) {
            return None;
        }
        if has == halved {
            return Some(self.clone());
        }
        if has != model.whole_block_segments() {
            return None;
        }
        let estimate = Costs::estimate(model, Device::CPU_CORE);
        let [attention, mlp] = [&estimate.segments[1], &estimate.segments[2]];
        let mut segments = Vec::with_capacity(halved);
        for (i, whole) in self.segments.iter().enumerate() {
            if i == 0 || i + 1 == has {
                segments.push(whole.clone());
            } else {
                segments.extend(halves(whole, attention, mlp));
            }
        }
        Some(Costs {
            segments,
            ..self.clone()
        })
    }
}

/// Divides a block's costs in the proportions of these two.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "costs are estimates"
)]
fn halves(whole: &SegmentCost, attention: &SegmentCost, mlp: &SegmentCost) -> [SegmentCost; 2] {
    let share =
        |of: fn(&SegmentCost) -> f64| of(attention) / (of(attention) + of(mlp)).max(f64::MIN_POSITIVE);
    let compute = share(|s| s.forward_ms);
    let state = share(|s| s.parameters as f64);
    let saved = share(|s| s.saved_bytes as f64);
    let part = |all: u64, share: f64| ((all as f64 * share).round() as u64).min(all);
    let first = SegmentCost {
        kind: SegmentKind::Attention,
        forward_ms: whole.forward_ms * compute,
        backward_ms: whole.backward_ms * compute,
        forward_fixed_ms: whole.forward_fixed_ms / 2.0,
        backward_fixed_ms: whole.backward_fixed_ms / 2.0,
        parameters: part(whole.parameters, state),
        saved_bytes: part(whole.saved_bytes, saved),
        // It is not known which half needs it.
        working_bytes: whole.working_bytes,
        forward_bytes: whole.forward_bytes,
        chunked: whole.chunked,
        input_bytes: whole.input_bytes,
        optimizer_ms: whole.optimizer_ms * state,
    };
    let second = SegmentCost {
        kind: SegmentKind::Mlp,
        forward_ms: whole.forward_ms - first.forward_ms,
        backward_ms: whole.backward_ms - first.backward_ms,
        parameters: whole.parameters - first.parameters,
        saved_bytes: whole.saved_bytes - first.saved_bytes,
        optimizer_ms: whole.optimizer_ms - first.optimizer_ms,
        ..first.clone()
    };
    [first, second]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::SegmentRange;
    use varuna_model::{Transformer, gpt2};

    const GPT: Transformer = Transformer {
        layers: 3,
        hidden_size: 64,
        sequence_length: 32,
        vocabulary_size: 300,
        ..gpt2::SMALL
    };

    /// The estimate with the halves of each block combined.
    pub(crate) fn whole_blocks(gpt: &Transformer) -> Costs {
        let mut costs = Costs::estimate(&gpt.spec(), Device::CPU_CORE);
        for block in (1..=gpt.layers as usize).rev() {
            let mlp = costs.segments.remove(2 * block);
            let first = &mut costs.segments[2 * block - 1];
            first.kind = SegmentKind::Block;
            first.forward_ms += mlp.forward_ms;
            first.backward_ms += mlp.backward_ms;
            first.forward_fixed_ms += mlp.forward_fixed_ms;
            first.backward_fixed_ms += mlp.backward_fixed_ms;
            first.parameters += mlp.parameters;
            first.saved_bytes += mlp.saved_bytes;
        }
        costs
    }

    #[test]
    fn profile_of_whole_blocks_divides_like_an_estimate() {
        let estimate = Costs::estimate(&GPT.spec(), Device::CPU_CORE);
        let divided = whole_blocks(&GPT).with_halves(&GPT.spec()).unwrap();
        assert_eq!(divided.layout(), estimate.layout());
        for (a, b) in divided.segments.iter().zip(&estimate.segments) {
            assert_eq!(
                (a.kind, a.parameters, a.saved_bytes),
                (b.kind, b.parameters, b.saved_bytes)
            );
            assert!(
                (a.forward_ms - b.forward_ms).abs() < 1e-12 && (a.backward_ms - b.backward_ms).abs() < 1e-12
            );
        }
        assert_eq!(estimate.with_halves(&GPT.spec()), Some(estimate));
    }

    #[test]
    fn halves_cost_as_much_as_the_block() {
        let mut whole = whole_blocks(&GPT);
        whole.segments[2].parameters = 12_345;
        whole.segments[2].forward_ms = 7.7;
        let divided = whole.with_halves(&GPT.spec()).unwrap();
        let block = SegmentRange { start: 2, end: 3 };
        let both = SegmentRange { start: 3, end: 5 };
        assert_eq!(divided.parameters(both), 12_345);
        assert!((divided.forward_ms(both, 4) - whole.forward_ms(block, 4)).abs() < 1e-9);
        assert!((divided.backward_ms(both, 4) - whole.backward_ms(block, 4)).abs() < 1e-9);
        assert_eq!(whole.with_halves(&Transformer { layers: 4, ..GPT }.spec()), None);
        assert_eq!(
            whole.with_halves(
                &Transformer {
                    tied_head: false,
                    ..GPT
                }
                .spec()
            ),
            None
        );
    }
}
