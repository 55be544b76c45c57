//! Temporary memory of segments while they compute, beyond what is kept from the forward to the backward.

use super::{SegmentCost, SegmentKind};
use crate::document::Recompute;

/// Number of segments at the end of a transformer's stage that determine the peak of its backward: the head, and both halves of the block
/// before it. When the backward reaches an earlier block, everything that a whole later block kept has been freed, and no block needs more
/// than the one before.
const DECIDING: usize = 3;

/// Memory that a segment needs for a micro-batch, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentMemory {
    /// Kept from the forward to the backward.
    saved: u64,
    /// Needed in addition by its backward.
    backward: u64,
    /// Needed in addition by its forward, if it is recomputed while everything after it is kept; otherwise 0.
    again: u64,
    /// Whether the segment is of an unknown kind, as in a user's own model: the memory of other segments says nothing about it.
    is_of_unknown_kind: bool,
}

/// Peak memory of a backward and its recompute in addition to what is kept, from the segments of a stage, the last one first. When the
/// backward reaches a segment, what the later ones kept has been freed.
pub(crate) fn working_bytes(from_last: impl Iterator<Item = SegmentMemory>) -> u64 {
    let mut free = 0_u64;
    let deciding = from_last
        .enumerate()
        .take_while(|(i, taken)| *i < DECIDING || taken.is_of_unknown_kind);
    let beyond = deciding.map(|(_, taken)| {
        let beyond = taken.backward.saturating_sub(free).max(taken.again);
        free = free.saturating_add(taken.saved);
        beyond
    });
    beyond.max().unwrap_or(0)
}

/// Memory that the attention of a stage keeps for `stash` micro-batches, from that for one. If it is recomputed, only one at a time is
/// kept.
pub(crate) fn packing_bytes(of_one: u64, stash: u32, recompute: Recompute) -> u64 {
    match recompute {
        Recompute::None => of_one.saturating_mul(stash.into()),
        Recompute::Selective | Recompute::Full => of_one,
    }
}

impl SegmentCost {
    /// Peak memory of the backward of `samples` samples in addition to what is kept. Memory that is used one chunk at a time counts once,
    /// however many samples there are.
    pub(crate) fn working(&self, samples: u64) -> u64 {
        self.working_bytes * samples + self.chunked.of(samples)
    }

    /// Memory that a micro-batch of `samples` samples needs.
    pub(crate) fn taken(&self, samples: u64, recompute: Recompute) -> SegmentMemory {
        // If everything is recomputed, nothing after a segment exists yet.
        let is_alone = recompute == Recompute::Selective && self.is_recomputed(recompute);
        SegmentMemory {
            saved: self.saved_bytes * samples,
            backward: self.working(samples),
            again: u64::from(is_alone) * self.forward_bytes * samples,
            is_of_unknown_kind: self.kind == SegmentKind::Block,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(saved: u64, backward: u64, again: u64) -> SegmentMemory {
        SegmentMemory {
            saved,
            backward,
            again,
            is_of_unknown_kind: false,
        }
    }

    #[test]
    fn backward_reuses_memory_of_later_segments() {
        let [attention, mlp, head] = [taken(40, 100, 0), taken(50, 30, 0), taken(5, 60, 0)];
        let of = |stage: &[SegmentMemory]| working_bytes(stage.iter().rev().copied());
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[attention]), 100);
        assert_eq!(of(&[attention, mlp]), 50);
        assert_eq!(of(&[attention, mlp, head]), 60);
        assert_eq!(of(&[attention, mlp, attention, mlp]), 50);
        let again = SegmentMemory {
            again: 70,
            ..attention
        };
        assert_eq!(of(&[again, mlp, head]), 70);
    }

    #[test]
    fn any_segment_of_a_model_that_is_no_transformer_may_take_most() {
        let of = |is_of_unknown_kind| {
            let segment = |backward| SegmentMemory {
                is_of_unknown_kind,
                ..taken(5, backward, 0)
            };
            working_bytes([1 << 30, 1, 1, 1].map(segment).into_iter().rev())
        };
        assert_eq!(of(true), (1 << 30) - 15);
        assert_eq!(of(false), 1, "no block takes more than the one before");
    }
}
