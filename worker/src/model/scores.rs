//! The memory of attention that computes and keeps all scores: libtorch's "math" backend, with matrix products and a softmax.

use super::attention_shape;
use crate::numerics::Numerics;
use tch::Kind;
use varuna_api::Packing;
use varuna_model::Transformer;
use varuna_plan::ScoreMemory;
use varuna_torch::Attention;

/// Tensors of the scores' size that its backward needs besides the one that the forward keeps: the gradients of the output and of the input
/// of the softmax. Smaller gradients use memory that is free by then: that of the sum and of what the projection kept.
const GRADIENTS: u64 = 2;

/// The memory that attention needs for a sample in each block beyond the model's estimates; none if it does not keep scores. A micro-batch
/// of one sample in single precision keeps a little more: its values are not a copy then, and keep the whole product of queries, keys and
/// values.
#[must_use]
pub fn score_memory(model: &Transformer, attention: Attention, numerics: Numerics) -> Option<ScoreMemory> {
    if attention != Attention::Math {
        return None;
    }
    let scores = attention_shape(model, Packing::default(), numerics).score_bytes();
    let copies = u64::from(model.sequence_length) * copies(model, numerics);
    let estimated = u64::from(model.sequence_length) * model.attention_inputs() * bytes(numerics.compute());
    Some(ScoreMemory {
        saved_bytes: (scores + copies).saturating_sub(estimated),
        forward_bytes: forward_bytes(model, numerics, scores),
        backward_bytes: GRADIENTS * scores,
    })
}

/// Bytes of a token's queries, keys and values that are kept instead of those that estimates count. Each head's are copied for the products, in single
/// precision whatever comes in (`_scaled_dot_product_attention_math`); what they come from is kept by a norm of heads alone.
fn copies(model: &Transformer, numerics: Numerics) -> u64 {
    let [heads, keys, width] = [model.heads, model.kv_heads(), model.head_size()].map(u64::from);
    let (queries, product) = (heads * width, (heads + 2 * keys) * width);
    // With a single head the values are in order already: they are no copy, but a part of the product.
    let is_part = heads == 1 && numerics.compute() == Kind::Float;
    let copied = if is_part { 2 } else { 3 } * queries * bytes(Kind::Float);
    let is_product_kept = is_part || model.features.qk_norm;
    copied + u64::from(is_product_kept) * product * bytes(numerics.compute())
}

/// What the forward takes beyond what it keeps: most at the softmax, which has its input, and a byte for each score that says whether it is masked
/// (`_safe_softmax`). Around them the product of queries, keys and values is still there, and in single precision the queries as they go into the
/// product of scores; where they came in 16 bits, also all three before that. Not there yet are the copy of the values, what attention gives, and
/// the sum. The mask of a window is one for all heads and samples, and left out; that of documents is counted with its stage.
fn forward_bytes(model: &Transformer, numerics: Numerics, scores: u64) -> u64 {
    let [tokens, heads, keys, width] = [
        model.sequence_length,
        model.heads,
        model.kv_heads(),
        model.head_size(),
    ]
    .map(u64::from);
    let (single, element) = (bytes(Kind::Float), bytes(numerics.compute()));
    let queries = heads * width;
    let wider = if element < single { 3 * queries * single } else { 0 };
    let there = (queries + 2 * keys * width) * element + queries * single + wider;
    let later = queries * single + (queries + u64::from(model.hidden_size)) * element;
    scores + scores / single + (tokens * there).saturating_sub(tokens * later)
}

fn bytes(kind: Kind) -> u64 {
    kind.elt_size_in_bytes() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_api::Precision;
    use varuna_model::{gpt2, presets};

    /// A model with two heads of width 8, and with samples of 16 tokens.
    fn model() -> Transformer {
        Transformer {
            hidden_size: 16,
            heads: 2,
            sequence_length: 16,
            ..gpt2::SMALL
        }
    }

    fn of(model: &Transformer, precision: Precision) -> ScoreMemory {
        score_memory(model, Attention::Math, precision.into()).unwrap()
    }

    #[test]
    fn fused_attention_makes_no_scores() {
        let fused = Attention::ALL.into_iter().filter(|way| *way != Attention::Math);
        for way in fused {
            assert_eq!(score_memory(&model(), way, Precision::Fp32.into()), None);
        }
    }

    #[test]
    fn score_memory_is_fp32_and_includes_kept_qkv() {
        let scores = 2 * 16 * 16 * 4;
        let activation = 16 * 16 * 4;
        let fp32 = of(&model(), Precision::Fp32);
        assert_eq!(fp32.saved_bytes, scores);
        assert_eq!(fp32.backward_bytes, 2 * scores);
        assert_eq!(fp32.forward_bytes, scores + scores / 4 + activation);
        let bf16 = of(&model(), Precision::Bf16);
        assert_eq!(bf16.saved_bytes, scores + 3 * activation / 2);
        assert_eq!(bf16.backward_bytes, 2 * scores);
        assert_eq!(bf16.forward_bytes, scores + scores / 4 + 7 * activation / 2);
    }

    #[test]
    fn a_norm_of_heads_keeps_the_product_too() {
        let qwen = presets::preset("qwen3-tiny").unwrap();
        let mut without = qwen.clone();
        without.features.qk_norm = false;
        let [with, without] = [qwen, without].map(|model| of(&model, Precision::Fp32).saved_bytes);
        // In this case fused attention keeps the scores as well.
        assert_eq!(with, without);
    }
}
