//! How samples with several documents are treated.

use serde::{Deserialize, Serialize};
use varuna_model::{Positions, Transformer};

/// Bytes of an angle's cosine or sine.
const ANGLE_BYTES: u64 = 4;

/// Samples are windows of the concatenated documents, so a sample may hold the end of one document, several whole ones, and the beginning
/// of another. These options separate them. With no option on, a sample is treated as one text, as in GPT-2's training.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Packing {
    /// Whether tokens see only those of their own document.
    pub block_mask: bool,
    /// Whether positions are counted from the beginning of each document.
    pub reset_positions: bool,
    /// Whether the last token of a document is not trained to predict the first of the next: the loss is then the mean over all other
    /// tokens.
    pub mask_loss: bool,
}

impl Packing {
    /// Whether samples are treated as one text.
    #[must_use]
    pub fn is_off(&self) -> bool {
        *self == Packing::default()
    }

    /// Whether the forward depends on where documents begin.
    #[must_use]
    pub fn is_in_forward(self) -> bool {
        self.block_mask || self.reset_positions
    }

    /// Bytes that the attention of a stage keeps for each sample, shared by all blocks: the mask that is added to the scores, (t, t) in the
    /// format of the elements, and the cosines and sines of rotary positions, two of (t, e / 2).
    #[must_use]
    pub fn kept_bytes(self, model: &Transformer, element_bytes: u64) -> u64 {
        let [tokens, width] = [model.sequence_length, model.head_size()].map(u64::from);
        let mask = u64::from(self.block_mask) * tokens * tokens * element_bytes;
        let is_rotary = matches!(model.features.positions, Positions::Rotary(_));
        let angles = u64::from(self.reset_positions && is_rotary) * tokens * width * ANGLE_BYTES;
        mask + angles
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_model::{gpt2, presets};

    #[test]
    fn what_is_kept_is_the_mask_and_the_angles() {
        let packing = |block_mask, reset_positions| Packing {
            block_mask,
            reset_positions,
            mask_loss: true,
        };
        let gpt2 = gpt2::SMALL;
        assert_eq!(
            packing(false, true).kept_bytes(&gpt2, 2),
            0,
            "a lookup keeps numbers alone"
        );
        assert_eq!(packing(true, true).kept_bytes(&gpt2, 2), 1024 * 1024 * 2);
        let mut llama = presets::preset("llama-tiny").unwrap();
        (llama.sequence_length, llama.features.head_size) = (32, Some(16));
        assert_eq!(packing(false, true).kept_bytes(&llama, 4), 2 * 32 * 8 * 4);
        assert_eq!(
            packing(true, true).kept_bytes(&llama, 4),
            32 * 32 * 4 + 2 * 32 * 8 * 4
        );
        assert_eq!(packing(true, false).kept_bytes(&llama, 4), 32 * 32 * 4);
    }
}
