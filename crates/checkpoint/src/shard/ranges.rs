//! Ranges of a unit's state, which several workers hold if optimizer state is sharded: joins them to the whole unit, and cuts them from it.

use super::{Shard, ShardTensor, kinds};
use std::ops::Range;
use varuna_model::layout::part_in_range;

impl ShardTensor {
    /// A whole parameter.
    #[must_use]
    pub fn new(name: impl Into<String>, shape: Vec<usize>) -> ShardTensor {
        ShardTensor {
            name: name.into(),
            shape,
            whole: None,
        }
    }
}

impl Shard {
    /// Joins the ranges of a unit, given in order.
    ///
    /// # Errors
    /// They do not make up whole parameters, or belong to different steps of the training: as a sentence.
    pub fn joined(unit: String, ranges: Vec<Shard>) -> Result<Shard, String> {
        let Some(first) = ranges.first() else {
            return Err("it has no ranges".into());
        };
        let mut whole = Shard {
            unit,
            tensors: Vec::new(),
            data: Vec::with_capacity(ranges.iter().map(|range| range.data.len()).sum()),
            ..*first
        };
        for range in &ranges {
            let same =
                (range.id, range.adam_steps, range.moments) == (whole.id, whole.adam_steps, whole.moments);
            if !same {
                return Err(format!("{} is of another state", range.unit));
            }
            for part in &range.tensors {
                whole.add_part(part)?;
            }
        }
        if let Some(tensor) = whole.tensors.iter().find(|tensor| tensor.whole.is_some()) {
            return Err(format!("of its parameter {} a part is missing", tensor.name));
        }
        for kind in 0..kinds(whole.moments).len() {
            for range in &ranges {
                let elements = range.parameters();
                whole
                    .data
                    .extend_from_slice(&range.data[kind * elements..(kind + 1) * elements]);
            }
        }
        Ok(whole)
    }

    /// Appends a part of a parameter to the earlier parts. A complete parameter gets its own shape.
    fn add_part(&mut self, part: &ShardTensor) -> Result<(), String> {
        let of_whole = |shape: &[usize]| shape.iter().try_fold(1_usize, |all, n| all.checked_mul(*n));
        let length = part.elements();
        let open = self.tensors.last_mut().filter(|last| last.whole.is_some());
        let tensor = match open {
            Some(last) if last.name == part.name && last.whole == part.whole => {
                let both = last.elements().zip(length).and_then(|(a, b)| a.checked_add(b));
                last.shape = both.into_iter().collect();
                last
            }
            Some(last) => return Err(format!("of its parameter {} a part is missing", last.name)),
            None => {
                self.tensors.push(part.clone());
                match self.tensors.last_mut() {
                    Some(last) => last,
                    None => return Ok(()),
                }
            }
        };
        let complete = tensor
            .whole
            .as_ref()
            .is_some_and(|whole| of_whole(whole) == tensor.elements());
        if complete && let Some(shape) = tensor.whole.take() {
            tensor.shape = shape;
        }
        Ok(())
    }

    /// Cuts the range with these elements of the parameters from a whole unit.
    ///
    /// # Errors
    /// The unit has fewer elements: as a sentence.
    pub fn range(&self, unit: String, elements: Range<usize>) -> Result<Shard, String> {
        let mut range = self.part(unit, &elements)?;
        let (all, kinds) = (self.parameters(), kinds(self.moments).len());
        if all != self.elements() {
            return Err(format!(
                "it has {all} elements, its shapes say {}",
                self.elements()
            ));
        }
        range.data.reserve_exact(kinds * elements.len());
        for kind in 0..kinds {
            range
                .data
                .extend_from_slice(&self.data[kind * all..][elements.clone()]);
        }
        Ok(range)
    }

    /// Number of elements of all parameters, by their shapes.
    pub(crate) fn elements(&self) -> usize {
        let tensors = self.tensors.iter().map(|tensor| tensor.elements().unwrap_or(0));
        tensors.fold(0, usize::saturating_add)
    }

    /// The range with these elements of the parameters, without its data. The unit may be a range itself.
    ///
    /// # Errors
    /// The unit has fewer elements: as a sentence.
    pub(crate) fn part(&self, unit: String, elements: &Range<usize>) -> Result<Shard, String> {
        let all = self.elements();
        if elements.start > elements.end || elements.end > all {
            return Err(format!("it has {all} elements, not {elements:?}"));
        }
        let mut start = 0;
        let parts = self.tensors.iter().filter_map(|tensor| {
            let own = start..start + tensor.elements().unwrap_or(0);
            start = own.end;
            let part = part_in_range(&own, elements, all)?;
            Some(ShardTensor {
                name: tensor.name.clone(),
                shape: vec![part.len()],
                whole: tensor.whole.clone().or_else(|| Some(tensor.shape.clone())),
            })
        });
        let tensors = parts.collect();
        Ok(Shard {
            unit,
            tensors,
            data: Vec::new(),
            ..*self
        })
    }

    /// Puts in the data of some of its elements, from the one at this place on.
    ///
    /// # Errors
    /// They belong to another state: as a sentence.
    pub(crate) fn fill(&mut self, at: usize, part: Shard) -> Result<(), String> {
        if (part.id, part.adam_steps, part.moments) != (self.id, self.adam_steps, self.moments) {
            return Err(format!("{} is of another state", part.unit));
        }
        let (all, elements) = (self.elements(), part.parameters());
        let kinds = kinds(self.moments).len();
        if elements == all {
            self.data = part.data;
            return Ok(());
        }
        if self.data.is_empty() {
            self.data = vec![0.0; kinds * all];
        }
        for kind in 0..kinds {
            let to = kind * all + at;
            let from = &part.data[kind * elements..(kind + 1) * elements];
            self.data[to..to + elements].copy_from_slice(from);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::{Moments, StateId};

    fn whole(moments: Moments) -> Shard {
        let tensors = vec![
            ShardTensor::new("a", vec![2, 3]),
            ShardTensor::new("b", vec![5]),
            ShardTensor::new("c", vec![1]),
        ];
        let elements = 12 * (1 + moments.of_parameter());
        Shard {
            id: StateId::INITIAL,
            unit: "segment-001".into(),
            adam_steps: 4,
            loss_scale: None,
            failed_in_a_row: 1,
            moments,
            tensors,
            data: (0..elements).map(|i| i as f32).collect(),
        }
    }

    fn cut(shard: &Shard, ranges: usize) -> Vec<Shard> {
        let all = shard.parameters();
        let cut = |r: usize| shard.range(format!("r{r}"), r * all / ranges..(r + 1) * all / ranges);
        (0..ranges).map(|r| cut(r).unwrap()).collect()
    }

    #[test]
    fn ranges_of_any_number_make_up_the_unit_again_also_as_files() {
        for moments in [Moments::Adam, Moments::Momentum] {
            let shard = whole(moments);
            for ranges in [1, 2, 3, 5, 12, 15] {
                let parts = cut(&shard, ranges);
                let read = parts.iter().map(|part| {
                    let file = part.encode().unwrap();
                    Shard::decode(part.id, &part.unit, &file).unwrap()
                });
                let read: Vec<Shard> = read.collect();
                assert_eq!(read, parts, "{ranges}");
                assert_eq!(
                    Shard::joined("segment-001".into(), read),
                    Ok(shard.clone()),
                    "{ranges}"
                );
            }
        }
    }

    #[test]
    fn a_parameter_without_elements_lies_in_one_range() {
        let mut shard = whole(Moments::Adam);
        shard.tensors.insert(1, ShardTensor::new("nothing", vec![0, 7]));
        shard.tensors.push(ShardTensor::new("nor here", vec![0]));
        for ranges in [1, 2, 3, 4, 12, 15] {
            let joined = Shard::joined("segment-001".into(), cut(&shard, ranges));
            assert_eq!(joined, Ok(shard.clone()), "{ranges}");
        }
    }

    #[test]
    fn ranges_that_do_not_fit_together_are_refused() {
        let shard = whole(Moments::Adam);
        let said = |change: &dyn Fn(&mut Vec<Shard>)| {
            let mut parts = cut(&shard, 4);
            change(&mut parts);
            Shard::joined("segment-001".into(), parts).unwrap_err()
        };
        assert_eq!(said(&|parts| parts.clear()), "it has no ranges");
        assert_eq!(
            said(&|parts| drop(parts.remove(1))),
            "of its parameter a a part is missing"
        );
        assert_eq!(
            said(&|parts| drop(parts.pop())),
            "of its parameter b a part is missing"
        );
        assert_eq!(said(&|parts| parts[2].adam_steps = 9), "r2 is of another state");
        let why = shard.range("r".into(), 5..13).unwrap_err();
        assert_eq!(why, "it has 12 elements, not 5..13");
    }
}
