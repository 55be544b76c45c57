//! The parameters of each unit: shapes, initial values, and which of them decay.

use crate::model::{Model, Part};
use varuna_plan::Unit;

/// Standard deviation of GPT-2's initial weights.
const DEVIATION: f64 = 0.02;

/// Initial value of a parameter.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Initial {
    /// Normal with this deviation.
    Normal(f64),
    /// All zero.
    Zeros,
    /// All one.
    Ones,
}

/// One parameter tensor of a unit.
#[derive(Clone, PartialEq, Debug)]
pub struct Parameter {
    /// Name as in GPT-2's published checkpoints.
    pub name: &'static str,
    /// Shape.
    pub shape: Vec<i64>,
    /// Initial value.
    pub initial: Initial,
    /// Weight decay applies (matrices and embeddings).
    pub decays: bool,
    /// Names the stream of its initial values beside the job's seed: a block (0: before the first, then one each, then the
    /// head, then the tied weight) and a number within. How blocks are cut into segments makes no difference to it.
    pub stream: [u64; 2],
}

impl Parameter {
    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape
            .iter()
            .map(|s| usize::try_from(*s).unwrap_or(0))
            .product()
    }
}

/// Indices into the embedding segment's parameters.
pub mod embedding {
    /// Token table (v, d), where the head is not tied.
    pub const TOKENS: usize = 0;
    /// Position table (t, d).
    pub const POSITIONS: usize = 1;
    /// Position table (t, d) where the token table is a unit of its own.
    pub const POSITIONS_WHEN_TIED: usize = 0;
}

/// Indices into the parameters of an attention segment.
#[expect(missing_docs, reason = "the names are GPT-2's")]
pub mod attention {
    pub const QKV_WEIGHT: usize = 0;
    pub const PROJECTION_WEIGHT: usize = 1;
    pub const NORM_WEIGHT: usize = 2;
    pub const NORM_BIAS: usize = 3;
    pub const QKV_BIAS: usize = 4;
    pub const PROJECTION_BIAS: usize = 5;
}

/// Indices into the parameters of an MLP segment.
#[expect(missing_docs, reason = "the names are GPT-2's")]
pub mod mlp {
    pub const UP_WEIGHT: usize = 0;
    pub const DOWN_WEIGHT: usize = 1;
    pub const NORM_WEIGHT: usize = 2;
    pub const NORM_BIAS: usize = 3;
    pub const UP_BIAS: usize = 4;
    pub const DOWN_BIAS: usize = 5;
}

/// Indices into the head segment's parameters. A tied head has an empty table, so that the indices hold either way.
#[expect(missing_docs, reason = "the names are GPT-2's")]
pub mod head {
    pub const TABLE: usize = 0;
    pub const NORM_WEIGHT: usize = 1;
    pub const NORM_BIAS: usize = 2;
}

fn matrix(name: &'static str, shape: &[i64], deviation: f64, stream: [u64; 2]) -> Parameter {
    Parameter {
        name,
        shape: shape.to_vec(),
        initial: Initial::Normal(deviation),
        decays: true,
        stream,
    }
}

/// Ones or zeros: nothing is drawn for it.
fn vector(name: &'static str, size: i64, initial: Initial) -> Parameter {
    Parameter {
        name,
        shape: vec![size],
        initial,
        decays: false,
        stream: [0; 2],
    }
}

/// All parameters of a unit: those that decay first, so that each kind is one contiguous range of the flat buffers.
#[must_use]
pub fn of_unit(model: &Model, unit: Unit) -> Vec<Parameter> {
    let (d, t, v) = (
        i64::from(model.hidden_size),
        i64::from(model.sequence_length),
        i64::from(model.vocabulary_size),
    );
    let last = u64::from(model.layers) + 1;
    if Some(unit) == model.layout().tied_unit() {
        return vec![matrix("wte.weight", &[v, d], DEVIATION, [last + 1, 0])];
    }
    // Residual projections are scaled down by the number of residual additions (Radford et al. 2019).
    let residual = DEVIATION / (2.0 * f64::from(model.layers)).sqrt();
    match model.part(unit.0) {
        Part::Embedding if model.tied_head => vec![matrix("wpe.weight", &[t, d], DEVIATION, [0, 0])],
        Part::Embedding => vec![
            matrix("wte.weight", &[v, d], DEVIATION, [0, 0]),
            matrix("wpe.weight", &[t, d], DEVIATION, [0, 1]),
        ],
        Part::Attention(layer) => {
            let block = u64::from(layer) + 1;
            vec![
                matrix("attn.c_attn.weight", &[3 * d, d], DEVIATION, [block, 0]),
                matrix("attn.c_proj.weight", &[d, d], residual, [block, 1]),
                vector("ln_1.weight", d, Initial::Ones),
                vector("ln_1.bias", d, Initial::Zeros),
                vector("attn.c_attn.bias", 3 * d, Initial::Zeros),
                vector("attn.c_proj.bias", d, Initial::Zeros),
            ]
        }
        Part::Mlp(layer) => {
            let block = u64::from(layer) + 1;
            vec![
                matrix("mlp.c_fc.weight", &[4 * d, d], DEVIATION, [block, 2]),
                matrix("mlp.c_proj.weight", &[d, 4 * d], residual, [block, 3]),
                vector("ln_2.weight", d, Initial::Ones),
                vector("ln_2.bias", d, Initial::Zeros),
                vector("mlp.c_fc.bias", 4 * d, Initial::Zeros),
                vector("mlp.c_proj.bias", d, Initial::Zeros),
            ]
        }
        Part::Head => {
            // A tied head keeps an empty place for the table, so that the indices stay.
            let rows = if model.tied_head { 0 } else { v };
            vec![
                matrix("lm_head.weight", &[rows, d], DEVIATION, [last, 0]),
                vector("ln_f.weight", d, Initial::Ones),
                vector("ln_f.bias", d, Initial::Zeros),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_hold_as_many_parameters_as_the_job_file_says() {
        for tied_head in [false, true] {
            let model = Model {
                layers: 3,
                hidden_size: 24,
                heads: 4,
                sequence_length: 16,
                vocabulary_size: 50,
                tied_head,
                dropout: 0.0,
            };
            for unit in model.layout().all_units() {
                let count: usize = of_unit(&model, unit).iter().map(Parameter::elements).sum();
                assert_eq!(
                    count as u64,
                    model.unit_parameters(unit.0),
                    "unit {unit} tied {tied_head}"
                );
                let decays: Vec<bool> = of_unit(&model, unit).iter().map(|p| p.decays).collect();
                assert!(
                    decays.is_sorted_by(|a, b| a >= b),
                    "decaying parameters come first"
                );
            }
            let all = model.layout().all_units().flat_map(|u| of_unit(&model, u));
            let drawn = all.filter(|p| matches!(p.initial, Initial::Normal(_)));
            let mut streams: Vec<[u64; 2]> = drawn.map(|p| p.stream).collect();
            let count = streams.len();
            streams.sort_unstable();
            streams.dedup();
            assert_eq!(streams.len(), count, "each draws its own initial values");
        }
    }
}
