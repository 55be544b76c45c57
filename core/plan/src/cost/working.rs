//! What segments take of memory while they compute, beyond what stays from the forward to the backward.

use super::{SegmentCost, SegmentKind};
use crate::document::Recompute;

/// So many segments at the end of a stage of a transformer decide what its backward takes: the head, and both halves of the block before it. When it
/// comes to a block further on, all that a whole block kept is free besides, and none takes more than the one before.
const DECIDING: usize = 3;

/// What a segment takes of a micro-batch, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// Kept from the forward to the backward.
    saved: u64,
    /// Beyond that by its backward.
    backward: u64,
    /// Beyond that by its forward, where that is run again while all after it is kept; else 0.
    again: u64,
    /// As of a model of one's own: what others take says nothing of it.
    is_of_unknown_kind: bool,
}

/// What a backward and what is run again before it take at most beyond what is kept, from the segments of a stage, the last one first. When the
/// backward comes to a segment, what those after it kept is free.
pub(crate) fn working_bytes(from_last: impl Iterator<Item = Taken>) -> u64 {
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

/// What the attention of a stage keeps of `stash` micro-batches, from what it keeps of one: where it is run again, that of one at a time.
pub(crate) fn packing_bytes(of_one: u64, stash: u32, recompute: Recompute) -> u64 {
    match recompute {
        Recompute::None => of_one * u64::from(stash),
        Recompute::Selective | Recompute::Full => of_one,
    }
}

impl SegmentCost {
    /// What the backward of so many samples takes at most beyond what is kept. Of what is made in chunks there is one, however many samples.
    pub(crate) fn working(&self, samples: u64) -> u64 {
        self.working_bytes * samples + self.chunked.of(samples)
    }

    /// What a micro-batch of so many samples takes.
    pub(crate) fn taken(&self, samples: u64, recompute: Recompute) -> Taken {
        // Where all is run again, nothing after a segment is there yet.
        let is_alone = recompute == Recompute::Selective && self.is_recomputed(recompute);
        Taken {
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

    fn taken(saved: u64, backward: u64, again: u64) -> Taken {
        Taken {
            saved,
            backward,
            again,
            is_of_unknown_kind: false,
        }
    }

    #[test]
    fn a_backward_has_room_in_what_later_segments_kept_and_what_is_run_again_has_not() {
        let [attention, mlp, head] = [taken(40, 100, 0), taken(50, 30, 0), taken(5, 60, 0)];
        let of = |stage: &[Taken]| working_bytes(stage.iter().rev().copied());
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[attention]), 100);
        assert_eq!(of(&[attention, mlp]), 50);
        assert_eq!(of(&[attention, mlp, head]), 60);
        assert_eq!(of(&[attention, mlp, attention, mlp]), 50);
        let again = Taken {
            again: 70,
            ..attention
        };
        assert_eq!(of(&[again, mlp, head]), 70);
    }

    #[test]
    fn any_segment_of_a_model_that_is_no_transformer_may_take_most() {
        let of = |is_of_unknown_kind| {
            let segment = |backward| Taken {
                is_of_unknown_kind,
                ..taken(5, backward, 0)
            };
            working_bytes([1 << 30, 1, 1, 1].map(segment).into_iter().rev())
        };
        assert_eq!(of(true), (1 << 30) - 15);
        assert_eq!(of(false), 1, "no block takes more than the one before");
    }
}
