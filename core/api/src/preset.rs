//! Named model sizes: the GPT-2 family (Radford et al. 2019), and a small one for CPUs.

use crate::model::Model;

/// Names that `spec.model.preset` takes, for error messages.
pub const NAMES: &str = "gpt2-tiny, gpt2-small, gpt2-medium, gpt2-large or gpt2-1.5b";

/// Sequence and vocabulary of GPT-2; its BPE has 50,257 tokens.
const GPT2: (u32, u32) = (1024, 50_257);
/// 10.8 M parameters with the byte tokenizer. Its 257 tokens are rounded up to a multiple of 64, so that the head's matrix
/// product has no ragged edge; the extra rows are never looked up and their logits are learnt away.
const TINY: (u32, u32) = (256, 320);

/// The model of a preset; none for a name that is not one.
#[must_use]
pub fn model(name: &str) -> Option<Model> {
    let (layers, hidden_size, heads, (sequence_length, vocabulary_size)) = match name {
        "gpt2-tiny" => (6, 384, 6, TINY),
        "gpt2-small" => (12, 768, 12, GPT2),
        "gpt2-medium" => (24, 1024, 16, GPT2),
        "gpt2-large" => (36, 1280, 20, GPT2),
        "gpt2-1.5b" | "gpt2-xl" => (48, 1600, 25, GPT2),
        _ => return None,
    };
    // Dropout is off: one pass over much data needs none, and attention with dropout leaves the fused kernel (2.3x slower).
    let dropout = 0.0;
    Some(Model {
        layers,
        hidden_size,
        heads,
        sequence_length,
        vocabulary_size,
        tied_head: true,
        dropout,
    })
}

#[cfg(test)]
mod tests {
    use super::model;

    #[test]
    fn presets_have_the_published_number_of_parameters() {
        let millions = |name| model(name).unwrap().parameters() as f64 / 1e6;
        for (name, published) in [
            ("gpt2-small", 124.4),
            ("gpt2-medium", 354.8),
            ("gpt2-large", 774.0),
            ("gpt2-1.5b", 1557.6),
        ] {
            assert!(
                (millions(name) - published).abs() < 0.1,
                "{name}: {}",
                millions(name)
            );
        }
        assert!((10.0..11.0).contains(&millions("gpt2-tiny")));
        assert_eq!(model("gpt2-xl"), model("gpt2-1.5b"));
    }
}
