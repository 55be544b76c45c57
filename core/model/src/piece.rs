//! The parts that segments are composed of.

use crate::features::Features;
use crate::parameter::{DEVIATION, LayerNames, Parameter, ParameterKind};

/// The sizes of a model, as its pieces need them.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    /// Transformer blocks.
    pub(crate) layers: u32,
    /// Width d.
    pub(crate) width: usize,
    /// Tokens t of a sample.
    pub(crate) tokens: usize,
    /// Rows v of the token table.
    pub(crate) vocabulary: usize,
    /// Head and embedding share a table.
    pub(crate) tied: bool,
    /// Heads of attention.
    pub(crate) heads: usize,
    /// Heads with keys and values of their own.
    pub(crate) kv_heads: usize,
    /// Width of a head.
    pub(crate) head: usize,
    /// Width between up and down of the MLP.
    pub(crate) inner: usize,
    /// The features of its segments.
    pub(crate) features: Features,
}

impl Sizes {
    /// Elements of an activation of one sample between two segments: (t, d).
    pub(crate) fn activation(self) -> u64 {
        (self.tokens * self.width) as u64
    }

    /// Elements of a token's queries: those of the width, unless heads have a size of their own.
    pub(crate) fn queries(self) -> usize {
        self.features
            .head_size
            .map_or(self.width, |_| self.heads * self.head)
    }

    /// Elements of a token's keys, and of its values.
    pub(crate) fn keys(self) -> usize {
        self.queries() * self.kv_heads / self.heads.max(1)
    }

    /// Deviation of the initial weights of projections onto the residual stream: scaled down by the number of residual
    /// additions (Radford et al. 2019).
    pub(crate) fn residual_deviation(self) -> f64 {
        DEVIATION / (2.0 * f64::from(self.layers)).sqrt()
    }

    /// A table with a row of the width for each token or position.
    pub(crate) fn table(self, name: &'static str, rows: usize) -> Parameter {
        Parameter {
            kind: ParameterKind::Embedding,
            ..Parameter::matrix(name, rows, self.width, DEVIATION)
        }
    }
}

/// A part of a segment: its parameters, and what one sample costs.
#[derive(Default)]
pub(crate) struct Piece {
    /// The parameters, in the order in which the forward uses them.
    pub(crate) parameters: Vec<Parameter>,
    /// Floating-point operations of the forward.
    pub(crate) forward_flops: f64,
    /// Floating-point operations of the backward, without recompute.
    pub(crate) backward_flops: f64,
    /// Elements that are kept from the forward to the backward.
    pub(crate) saved_elements: u64,
    /// Maximum number of single-precision elements that the backward needs in addition.
    pub(crate) working_elements: u64,
}

impl Piece {
    /// The sequence of both pieces.
    pub(crate) fn then(mut self, next: Piece) -> Piece {
        self.parameters.extend(next.parameters);
        Piece {
            parameters: self.parameters,
            forward_flops: self.forward_flops + next.forward_flops,
            backward_flops: self.backward_flops + next.backward_flops,
            saved_elements: self.saved_elements + next.saved_elements,
            // One after the other.
            working_elements: self.working_elements.max(next.working_elements),
        }
    }

    /// Also keeps this many elements for the backward.
    pub(crate) fn saving(self, elements: u64) -> Piece {
        self.then(Piece {
            saved_elements: elements,
            ..Piece::default()
        })
    }

    /// Its backward needs at least this many elements in addition to what is kept.
    pub(crate) fn working_with(self, elements: u64) -> Piece {
        self.then(Piece {
            working_elements: elements,
            ..Piece::default()
        })
    }

    /// Adds this many operations to its forward, and twice as many to its backward: a product of two factors has two gradients.
    pub(crate) fn taking(self, forward_flops: f64) -> Piece {
        self.then(Piece {
            forward_flops,
            backward_flops: 2.0 * forward_flops,
            ..Piece::default()
        })
    }

    /// A linear layer over all tokens: 2 operations for each weight and token. The segment says what is kept of it.
    #[expect(clippy::cast_precision_loss, reason = "costs are estimates")]
    pub(crate) fn linear(
        sizes: Sizes,
        names: LayerNames,
        (inputs, outputs): (usize, usize),
        bias: bool,
        deviation: f64,
    ) -> Piece {
        let mut parameters = vec![Parameter::matrix(names.weight, outputs, inputs, deviation)];
        if bias {
            parameters.push(Parameter::bias(names.bias, outputs));
        }
        let piece = Piece {
            parameters,
            ..Piece::default()
        };
        piece.taking(sizes.tokens as f64 * 2.0 * (inputs * outputs) as f64)
    }
}
