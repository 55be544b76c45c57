//! One parameter tensor: name, shape, initial value, kind.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::ops::Range;

/// Standard deviation of the initial weights (Radford et al. 2019).
pub const DEVIATION: f64 = 0.02;

/// Initial value of a parameter.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Initial {
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// Zeros.
    Zeros,
    /// Ones.
    Ones,
}

/// The kind of a parameter, for optimizers that treat kinds differently.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ParameterKind {
    /// The weight of a linear layer; of an untied head too.
    Matrix,
    /// A table of tokens or positions; a head that is tied to it is the same tensor.
    Embedding,
    /// The bias of a linear layer.
    Bias,
    /// Weight or bias of a norm.
    Norm,
}

impl ParameterKind {
    /// All kinds.
    pub const ALL: [ParameterKind; 4] = [
        ParameterKind::Matrix,
        ParameterKind::Embedding,
        ParameterKind::Bias,
        ParameterKind::Norm,
    ];
}

/// One parameter tensor of a unit.
#[derive(Clone, PartialEq, Debug)]
pub struct Parameter {
    /// Name within its block, as in the family's published checkpoints; for a user's own model, its name there.
    pub name: Cow<'static, str>,
    /// Shape; matrices are (outputs, inputs).
    pub shape: Vec<usize>,
    /// Initial value.
    pub initial: Initial,
    /// Kind of the parameter.
    pub kind: ParameterKind,
    /// Identifies, together with the job's seed, the random stream of its initial values: a block (0: before the first, then one each, then
    /// the head, then the tied weight) and a number within. It does not depend on how blocks are cut into segments.
    pub stream: [u64; 2],
}

impl Parameter {
    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has two dimensions. Such parameters come first in a unit.
    pub(crate) fn is_matrix(&self) -> bool {
        matches!(self.kind, ParameterKind::Matrix | ParameterKind::Embedding)
    }

    /// A matrix with random initial values. The model gives it its stream.
    pub(crate) fn matrix(name: &'static str, rows: usize, columns: usize, deviation: f64) -> Parameter {
        Parameter {
            name: name.into(),
            shape: vec![rows, columns],
            initial: Initial::Normal(deviation),
            kind: ParameterKind::Matrix,
            stream: [0; 2],
        }
    }

    /// A parameter whose initial values are given instead of drawn.
    #[must_use]
    pub fn stored(name: String, shape: Vec<usize>, kind: ParameterKind) -> Parameter {
        Parameter {
            name: name.into(),
            shape,
            initial: Initial::Zeros,
            kind,
            stream: [0; 2],
        }
    }

    /// The zeros of a linear layer's bias.
    pub(crate) fn bias(name: &'static str, size: usize) -> Parameter {
        Parameter {
            name: name.into(),
            shape: vec![size],
            initial: Initial::Zeros,
            kind: ParameterKind::Bias,
            stream: [0; 2],
        }
    }

    /// A vector of a norm, ones or zeros.
    pub(crate) fn of_norm(name: &'static str, size: usize, initial: Initial) -> Parameter {
        Parameter {
            name: name.into(),
            shape: vec![size],
            initial,
            kind: ParameterKind::Norm,
            stream: [0; 2],
        }
    }
}

/// The elements of a unit's flat buffers in as few ranges as possible, each with whether its parameters are chosen. `kinds` are the kinds
/// and numbers of elements of the parameters, in order. An optimizer treats a range as a whole.
pub fn ranges(
    kinds: impl IntoIterator<Item = (ParameterKind, usize)>,
    chosen: impl Fn(ParameterKind) -> bool,
) -> Vec<(Range<usize>, bool)> {
    let mut ranges: Vec<(Range<usize>, bool)> = Vec::new();
    for (kind, elements) in kinds.into_iter().filter(|(_, elements)| *elements > 0) {
        let (start, is_chosen) = (ranges.last().map_or(0, |(r, _)| r.end), chosen(kind));
        match ranges.last_mut() {
            Some((range, same)) if *same == is_chosen => range.end += elements,
            _ => ranges.push((start..start + elements, is_chosen)),
        }
    }
    ranges
}

/// Names of the two tensors of a linear layer or a norm. The bias is there only if the model's features say so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerNames {
    /// Weight.
    pub weight: &'static str,
    /// Bias.
    pub bias: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_kind() -> impl Strategy<Value = ParameterKind> {
        prop::sample::select(ParameterKind::ALL.to_vec())
    }

    proptest! {
        #[test]
        fn ranges_cover_each_element_once(
            kinds in prop::collection::vec((any_kind(), 0usize..5), 0..12),
            chosen in prop::collection::btree_set(any_kind(), 0..=4),
        ) {
            let ranges = ranges(kinds.iter().copied(), |kind| chosen.contains(&kind));
            let expected: Vec<bool> = kinds
                .iter()
                .flat_map(|(kind, elements)| vec![chosen.contains(kind); *elements])
                .collect();
            let found: Vec<bool> = ranges
                .iter()
                .flat_map(|(range, is_chosen)| vec![*is_chosen; range.len()])
                .collect();
            prop_assert_eq!(found, expected);
            prop_assert!(ranges.windows(2).all(|w| w[0].0.end == w[1].0.start && w[0].1 != w[1].1));
            prop_assert!(ranges.iter().all(|(range, _)| !range.is_empty()));
        }
    }
}
