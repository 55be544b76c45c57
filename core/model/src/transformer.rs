//! A transformer model: its sizes and features, and the segments that follow from them.

use crate::embedding;
use crate::features::Features;
use crate::layout::{Layout, Unit};
use crate::parameter::{Initial, Parameter};
use crate::piece::{Piece, Sizes};
use crate::spec::{ModelSpec, SegmentKind, SegmentSpec};
use crate::{attention, head};
use serde::{Deserialize, Serialize};

/// A transformer of equal blocks, a decoder or an encoder, every size and feature resolved.
///
/// Segments: the embedding, then attention and MLP of each block in turn, then final norm and head ([`Transformer::kind`]). So a model can
/// be cut inside a block, on the residual stream. If the head is tied, the token embedding is a unit of its own ([`Layout::tied_unit`]).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Transformer {
    /// Transformer blocks, at least 1.
    pub layers: u32,
    /// Width d; a multiple of `heads` unless the features set a width of heads.
    pub hidden_size: u32,
    /// Attention heads.
    pub heads: u32,
    /// Tokens in a sample.
    pub sequence_length: u32,
    /// Size of the embedding table; at least the dataset's vocabulary.
    pub vocabulary_size: u32,
    /// Whether the head shares the token embedding.
    pub tied_head: bool,
    /// Dropout after the embedding, after attention and after the MLP; 0 <= p < 1.
    pub dropout: f64,
    /// The features of its segments.
    #[serde(default, skip_serializing_if = "Features::are_gpt2s")]
    pub features: Features,
}

impl Transformer {
    /// Kind of a segment.
    #[must_use]
    pub fn kind(&self, segment: u32) -> SegmentKind {
        match segment {
            0 => SegmentKind::Embedding,
            half if half > 2 * self.layers => SegmentKind::Head,
            half if half.is_multiple_of(2) => SegmentKind::Mlp,
            _ => SegmentKind::Attention,
        }
    }

    /// The block of a segment: 0 for the embedding, blocks from 1, then the head.
    #[must_use]
    pub fn block(&self, segment: u32) -> u32 {
        segment.div_ceil(2)
    }

    /// Segments and units.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout::new(2 * self.layers + 2, self.tied_head)
    }

    /// All parameters of a unit in the order of flat buffers and checkpoints: matrices and tables first, so that optimizers that treat
    /// kinds differently have few ranges.
    #[must_use]
    pub fn parameters(&self, unit: Unit) -> Vec<Parameter> {
        if Some(unit) == self.layout().tied_unit() {
            return numbered(vec![embedding::table(self.sizes())], self.layers + 2, 0);
        }
        let mut parameters = self.piece(unit.0).parameters;
        parameters.sort_by_key(|p| !p.is_matrix());
        // Numbers continue through the segments of a block.
        let before = match self.kind(unit.0) {
            SegmentKind::Mlp => self
                .attention()
                .parameters
                .iter()
                .filter(|p| p.is_matrix())
                .count(),
            _ => 0,
        };
        numbered(parameters, self.block(unit.0), before)
    }

    /// Whether a unit is part of a block: neither the embedding, nor the head, nor a table that both share.
    #[must_use]
    pub fn is_in_block(&self, unit: Unit) -> bool {
        matches!(self.kind(unit.0), SegmentKind::Attention | SegmentKind::Mlp)
    }

    /// The matrices of a block's unit, for an optimizer that treats each matrix as a whole: (rows, columns), in the order of flat buffers,
    /// where they come first. Queries, keys and values, which are one parameter, count as three. Empty for a unit outside of blocks.
    #[must_use]
    pub fn block_matrices(&self, unit: Unit) -> Vec<[usize; 2]> {
        if !self.is_in_block(unit) {
            return Vec::new();
        }
        let sizes = self.sizes();
        let (queries, keys) = (sizes.queries(), sizes.keys());
        let matrices = self.parameters(unit).into_iter().filter(Parameter::is_matrix);
        let parts = |p: Parameter| {
            let [rows, columns] = [0, 1].map(|side| p.shape.get(side).copied().unwrap_or(1));
            let parts = match p.name == attention::QKV.weight {
                true => vec![queries, keys, keys],
                false => vec![rows],
            };
            parts.into_iter().map(move |rows| [rows, columns])
        };
        matrices.flat_map(parts).collect()
    }

    /// Number of parameters of a unit.
    #[must_use]
    pub fn unit_parameter_count(&self, unit: Unit) -> u64 {
        count(&self.parameters(unit))
    }

    /// Number of parameters of the whole model, a tied weight counted once.
    #[must_use]
    pub fn parameter_count(&self) -> u64 {
        let units = self.layout().all_units();
        units.map(|u| self.unit_parameter_count(u)).sum()
    }

    /// The amounts that planning needs.
    #[must_use]
    pub fn spec(&self) -> ModelSpec {
        let segment = |segment| {
            let piece = self.piece(segment);
            SegmentSpec {
                kind: self.kind(segment),
                parameters: count(&piece.parameters),
                forward_flops: piece.forward_flops,
                backward_flops: piece.backward_flops,
                saved_elements: piece.saved_elements,
                working_elements: piece.working_elements,
                input_elements: match segment {
                    0 => u64::from(self.sequence_length),
                    _ => self.sizes().activation(),
                },
            }
        };
        let layout = self.layout();
        let tied = layout.tied_unit();
        ModelSpec {
            segments: (0..layout.segments).map(segment).collect(),
            tied_parameters: tied.map_or(0, |unit| self.unit_parameter_count(unit)),
        }
    }

    /// Width e of a head.
    #[must_use]
    pub fn head_size(&self) -> u32 {
        let own = self.features.head_size;
        own.unwrap_or(self.hidden_size / self.heads.max(1))
    }

    /// Number of heads with keys and values of their own; the others share them, in groups of equal size.
    #[must_use]
    pub fn kv_heads(&self) -> u32 {
        self.features.kv_heads.unwrap_or(self.heads)
    }

    /// Elements of a token's queries, keys and values that a block's cost estimate counts as kept for the backward of attention.
    #[must_use]
    pub fn attention_inputs(&self) -> u64 {
        attention::inputs(self.sizes())
    }

    /// Inner width of the MLP, between its up and down projections.
    #[must_use]
    pub fn inner_size(&self) -> usize {
        let (width, features) = (self.hidden_size as usize, self.features);
        let own = features.inner_size.map(|size| size as usize);
        own.unwrap_or(features.mlp.inner(width))
    }

    /// Number of tokens that a token sees, itself included, if a sliding window limits it.
    #[must_use]
    pub fn window(&self) -> Option<u32> {
        self.features.sliding_window.filter(|w| *w < self.sequence_length)
    }

    /// Elements of the mask of a sliding window: one for each pair of tokens, 0 without a window. A worker that computes attention makes
    /// the mask once and keeps it, for all blocks, samples and micro-batches.
    #[must_use]
    pub fn mask_elements(&self) -> u64 {
        let tokens = u64::from(self.sequence_length);
        self.window().map_or(0, |_| tokens * tokens)
    }

    /// The features without numbers that follow from the sizes anyway: as many heads with keys and values as there are heads, say. A job may name
    /// them; the model is the same one.
    #[must_use]
    pub fn features_beside_sizes(&self) -> Features {
        let Features {
            kv_heads,
            head_size,
            mlp,
            inner_size,
            ..
        } = self.features;
        let [width, heads] = [self.hidden_size, self.heads].map(u64::from);
        let usual_inner = mlp.inner(self.hidden_size as usize);
        Features {
            kv_heads: kv_heads.filter(|own| *own != self.heads),
            head_size: head_size.filter(|own| u64::from(*own) * heads != width),
            inner_size: inner_size.filter(|own| *own as usize != usual_inner),
            sliding_window: self.window(),
            ..self.features
        }
    }

    fn sizes(&self) -> Sizes {
        Sizes {
            layers: self.layers,
            width: self.hidden_size as usize,
            tokens: self.sequence_length as usize,
            vocabulary: self.vocabulary_size as usize,
            tied: self.tied_head,
            heads: self.heads as usize,
            kv_heads: self.kv_heads() as usize,
            head: self.head_size() as usize,
            inner: self.inner_size(),
            features: self.features,
        }
    }

    fn attention(&self) -> Piece {
        attention::piece(self.sizes())
    }

    fn piece(&self, segment: u32) -> Piece {
        let (sizes, features) = (self.sizes(), self.features);
        match self.kind(segment) {
            SegmentKind::Embedding => embedding::piece(sizes),
            SegmentKind::Attention => self.attention(),
            SegmentKind::Mlp => features.mlp.piece(sizes),
            SegmentKind::Block => self.attention().then(features.mlp.piece(sizes)),
            SegmentKind::Head => head::piece(sizes),
        }
    }
}

/// Gives each randomly initialised parameter a random stream of its own.
fn numbered(mut parameters: Vec<Parameter>, block: u32, first: usize) -> Vec<Parameter> {
    let drawn = |p: &&mut Parameter| matches!(p.initial, Initial::Normal(_));
    for (number, parameter) in (first as u64..).zip(parameters.iter_mut().filter(drawn)) {
        parameter.stream = [block.into(), number];
    }
    parameters
}

fn count(parameters: &[Parameter]) -> u64 {
    parameters.iter().map(|p| p.elements() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameter::ParameterKind;
    use crate::{gpt2, llama3, presets, qwen3};

    /// A small GPT-2 with a tied head, and one with an untied head.
    fn models() -> Vec<Transformer> {
        let small = Transformer {
            layers: 3,
            hidden_size: 24,
            heads: 4,
            sequence_length: 16,
            vocabulary_size: 50,
            ..gpt2::SMALL
        };
        let untied = Transformer {
            tied_head: false,
            ..small.clone()
        };
        vec![small, untied]
    }

    /// The same sizes in other families, of which two have grouped heads.
    fn families() -> Vec<Transformer> {
        let grouped = |features: Features| Transformer {
            features: Features {
                kv_heads: Some(2),
                head_size: Some(8),
                inner_size: Some(40),
                ..features
            },
            ..models().remove(0)
        };
        let (llama, qwen) = (llama3::SMALL.features, qwen3::SMALL.features);
        let mut all = vec![grouped(llama), grouped(qwen)];
        all.extend(models());
        all
    }

    #[test]
    fn matrices_of_blocks_are_all_of_them_and_nothing_else() {
        for model in families() {
            for unit in model.layout().all_units() {
                let matrices = model.block_matrices(unit);
                let parameters = model.parameters(unit);
                let own = parameters.iter().filter(|p| p.is_matrix());
                let elements: usize = own.map(Parameter::elements).sum();
                let expected = if model.is_in_block(unit) { elements } else { 0 };
                assert_eq!(
                    matrices.iter().map(|[r, c]| r * c).sum::<usize>(),
                    expected,
                    "{unit}"
                );
            }
        }
        let grouped = &families()[0];
        assert_eq!(
            grouped.block_matrices(Unit(1)),
            [[32, 24], [16, 24], [16, 24], [24, 32]]
        );
        assert_eq!(grouped.block_matrices(Unit(0)), Vec::<[usize; 2]>::new());
        assert_eq!(
            grouped.block_matrices(Unit(7)),
            Vec::<[usize; 2]>::new(),
            "the head"
        );
    }

    #[test]
    fn a_window_that_hides_something_needs_a_mask() {
        let with = |sliding_window| {
            let mut model = models().remove(0);
            model.features.sliding_window = sliding_window;
            model.mask_elements()
        };
        assert_eq!(with(Some(4)), 16 * 16);
        assert_eq!(with(Some(16)), 0, "all tokens are seen");
        assert_eq!(with(None), 0);
    }

    #[test]
    fn matrices_come_first_and_each_random_one_has_its_own_stream() {
        for model in families() {
            let layout = model.layout();
            for unit in layout.all_units() {
                let parameters = model.parameters(unit);
                let matrices: Vec<bool> = parameters.iter().map(Parameter::is_matrix).collect();
                assert!(matrices.is_sorted_by(|a, b| a >= b), "{model:?} unit {unit}");
                for p in parameters {
                    assert_eq!(p.is_matrix(), p.shape.len() == 2, "{}", p.name);
                }
            }
            let all = layout.all_units().flat_map(|u| model.parameters(u));
            let drawn = all.filter(|p| matches!(p.initial, Initial::Normal(_)));
            let mut streams: Vec<[u64; 2]> = drawn.map(|p| p.stream).collect();
            let count = streams.len();
            streams.sort_unstable();
            streams.dedup();
            assert_eq!(streams.len(), count, "{model:?}");
        }
    }

    #[test]
    fn a_parameter_is_of_the_kind_that_its_name_says() {
        let others = ["qwen3-tiny", "bert-tiny"].map(|name| presets::preset(name).unwrap());
        for model in models().into_iter().chain(others) {
            let all = model.layout().all_units().flat_map(|u| model.parameters(u));
            for Parameter { name, kind, .. } in all {
                let expected = match &*name {
                    name if name.contains("ln_") || name.contains("norm") => ParameterKind::Norm,
                    name if name.ends_with("bias") => ParameterKind::Bias,
                    "wte.weight" | "wpe.weight" | "wtt.weight" => ParameterKind::Embedding,
                    _ => ParameterKind::Matrix,
                };
                assert_eq!(kind, expected, "{name}");
            }
        }
    }

    #[test]
    fn a_gpt2_costs_what_the_published_formulas_say() {
        let [d, t, v] = [24u64, 16, 50];
        for model in models() {
            let own_table = if model.tied_head { 0 } else { v * d };
            let spec = model.spec();
            let of = |i: usize| {
                let s = spec.segments[i];
                (
                    s.kind,
                    s.parameters,
                    (s.forward_flops as u64, s.backward_flops as u64),
                    s.saved_elements,
                    s.input_elements,
                )
            };
            let both_ways = |forward: u64| (forward, 2 * forward);
            assert_eq!(
                of(0),
                (
                    SegmentKind::Embedding,
                    own_table + t * d,
                    both_ways(t * d),
                    t * d,
                    t
                )
            );
            let flops = both_ways(t * (8 * d * d + 4 * t * d));
            assert_eq!(
                of(3),
                (SegmentKind::Attention, 4 * d * d + 6 * d, flops, 6 * t * d, t * d)
            );
            assert_eq!(
                of(4),
                (
                    SegmentKind::Mlp,
                    8 * d * d + 7 * d,
                    both_ways(t * 16 * d * d),
                    10 * t * d,
                    t * d
                )
            );
            // Its three products are part of the loss; only the norm's output is kept.
            let (flops, kept) = ((0, 3 * t * 2 * v * d), t * d);
            assert_eq!(of(7), (SegmentKind::Head, own_table + 2 * d, flops, kept, t * d));
            assert_eq!(spec.tied_parameters, v * d - own_table);
            assert_eq!((spec.segments.len(), spec.whole_block_segments()), (8, 5));
        }
    }
}
