//! The parameters of a unit in the narrower format that is computed in.

use super::size;
use crate::ablation::{Ablation, Ablations};
use crate::backend::Backend;
use std::ops::Range;
use tch::Tensor;
use varuna_model::Parameter;
use varuna_model::embedding::TOKENS;
use varuna_model::head::TABLE;

/// A vocabulary's rows are filled up to a multiple of this. Products with 50,257 columns leave a GPU's fast kernels, which want rows of a
/// multiple of 16 bytes and like whole tiles. Only the copy has them: no state, transfer or checkpoint does.
const ROWS: usize = 128;

/// The place of a parameter in the copy.
struct Place {
    start: i64,
    shape: Vec<i64>,
    /// Rows with those that it is filled up with.
    rows: i64,
}

/// The rounded parameters, one after the other; a table's are followed by rows of zeros.
pub(super) struct ComputeCopy {
    flat: Tensor,
    places: Vec<Place>,
    /// Ranges of the masters without such rows in between, and where each begins in the copy.
    runs: Vec<(Range<i64>, i64)>,
}

/// Rows that a parameter takes in the copy.
fn rows(parameter: &Parameter, without: Ablations) -> usize {
    let own = parameter.shape.first().copied().unwrap_or(0);
    match &*parameter.name {
        TOKENS | TABLE if !without.has(Ablation::Padding) => own.next_multiple_of(ROWS),
        _ => own,
    }
}

impl ComputeCopy {
    /// Zeros for the parameters of a unit.
    pub(super) fn new(list: &[Parameter], backend: Backend) -> ComputeCopy {
        let on = (backend.numerics.compute(), backend.device.tensors());
        let mut places = Vec::new();
        let mut runs: Vec<(Range<i64>, i64)> = Vec::new();
        let (mut master, mut start) = (0, 0);
        for parameter in list {
            let (own, rows) = (size(parameter.elements()), size(rows(parameter, backend.without)));
            let shape: Vec<i64> = parameter.shape.iter().map(|s| size(*s)).collect();
            let width: i64 = shape.iter().skip(1).product();
            match runs.last_mut() {
                Some((run, first)) if *first + (run.end - run.start) == start => run.end += own,
                _ => runs.push((master..master + own, start)),
            }
            places.push(Place { start, shape, rows });
            master += own;
            start += rows * width;
        }
        ComputeCopy {
            flat: Tensor::zeros([start], on),
            places,
            runs,
        }
    }

    /// The parameter of this number, without rows that are not its own.
    pub(super) fn parameter(&self, number: usize) -> Tensor {
        let place = &self.places[number];
        let own = place.shape.iter().product();
        self.flat.narrow(0, place.start, own).view(place.shape.as_slice())
    }

    /// The matrix of this number with the rows that it is filled up with.
    pub(super) fn padded(&self, number: usize) -> Tensor {
        let place = &self.places[number];
        let width: i64 = place.shape.iter().skip(1).product();
        let all = self.flat.narrow(0, place.start, place.rows * width);
        all.view([place.rows, width])
    }

    /// The pieces of a range of the masters, each with its place in the copy.
    pub(super) fn pieces(&self, range: Range<i64>) -> impl Iterator<Item = (Range<i64>, Tensor)> {
        self.runs.iter().filter_map(move |(run, start)| {
            let part = run.start.max(range.start)..run.end.min(range.end);
            let length = part.end - part.start;
            (length > 0).then(|| {
                let place = start + part.start - run.start;
                (part, self.flat.narrow(0, place, length))
            })
        })
    }

    /// Rounds the masters.
    pub(super) fn renew(&self, masters: &Tensor) {
        let _guard = tch::no_grad_guard();
        for (run, start) in &self.runs {
            let own = run.end - run.start;
            let masters = masters.narrow(0, run.start, own);
            self.flat.narrow(0, *start, own).copy_(&masters);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;
    use varuna_api::Precision;
    use varuna_model::{Transformer, gpt2};

    #[test]
    fn vocabulary_is_padded_with_zero_rows() {
        let (kept, left_out) = (Ablations::NONE, Ablations::NONE.and(Ablation::Padding));
        for (tied_head, without) in [(true, kept), (false, kept), (true, left_out)] {
            let rows = if without == kept { 256 } else { 130 };
            let model = Transformer {
                layers: 1,
                hidden_size: 8,
                heads: 2,
                sequence_length: 4,
                vocabulary_size: 130,
                tied_head,
                ..gpt2::SMALL
            };
            for unit in model.layout().all_units() {
                let list = model.parameters(unit);
                let total: i64 = list.iter().map(|p| size(p.elements())).sum();
                let backend = Backend {
                    without,
                    ..Backend::of_processor(Precision::Bf16.into())
                };
                let copy = ComputeCopy::new(&list, backend);
                let masters = Tensor::arange(total, (Kind::Float, tch::Device::Cpu)).remainder(251.0) + 1.0;
                copy.renew(&masters);
                let mut at = 0;
                for (number, p) in list.iter().enumerate() {
                    let own = masters.narrow(0, at, size(p.elements()));
                    at += size(p.elements());
                    let found = copy.parameter(number).to_kind(Kind::Float);
                    assert_eq!(found.reshape([-1]), own, "{}", p.name);
                    if p.shape == [130, 8] {
                        let padded = copy.padded(number).to_kind(Kind::Float);
                        assert_eq!(padded.size(), [rows, 8]);
                        assert_eq!(padded.narrow(0, 0, 130).reshape([-1]), own);
                        assert_eq!(
                            padded.narrow(0, 130, rows - 130),
                            Tensor::zeros([rows - 130, 8], (Kind::Float, tch::Device::Cpu))
                        );
                    }
                }
            }
        }
    }
}
