//! What each rank of a group does for a sum: decided from the layout alone, the same on all ranks. It must never do I/O.

use super::super::place::small;
use crate::state::TAIL;
use std::ops::Range;
use varuna_cuda::Action;
use varuna_model::StateShare;
use varuna_plan::{Layout, Unit};

/// What a rank does for the sum of a unit's gradient of this many elements with its tail, in groups that are issued together. `place` is
/// the rank, of `members`.
pub(super) fn actions_of_sum(
    layout: Layout,
    unit: Unit,
    (place, members): (usize, usize),
    elements: usize,
) -> Vec<Vec<(Action, Range<usize>)>> {
    let mut shares = match layout.is_shared_out(members) {
        true => layout.shares(unit, members, elements - TAIL),
        false => Vec::new(),
    };
    match shares.last_mut() {
        // The tail always goes with the last part.
        Some(last) => last.elements.end = elements,
        None => return vec![vec![(Action::AllReduceSum, 0..elements)]],
    }
    let (mut sums, mut copies) = (Vec::new(), Vec::new());
    for StateShare { elements, places } in shares {
        let (first, second) = (places[0], places[1]);
        sums.push((Action::ReduceSum { root: small(first) }, elements.clone()));
        if place == first {
            copies.push((Action::Send { to: small(second) }, elements));
        } else if place == second {
            copies.push((Action::Receive { from: small(first) }, elements));
        }
    }
    // If a unit has few elements, some ranks hold no part, and have none to pass on.
    [sums, copies]
        .into_iter()
        .filter(|together| !together.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELEMENTS: usize = 1000 + TAIL;

    fn actions(place: usize, members: usize, elements: usize) -> Vec<Vec<(Action, Range<usize>)>> {
        let layout = Layout::new(3, true).in_ranges(12);
        actions_of_sum(layout, Unit(1), (place, members), elements)
    }

    #[test]
    fn a_gradient_is_summed_whole_where_everybody_needs_all_of_it() {
        let whole = vec![vec![(Action::AllReduceSum, 0..ELEMENTS)]];
        for members in [2, 13, 24] {
            assert_eq!(actions(0, members, ELEMENTS), whole, "{members}");
        }
        assert_eq!(
            actions_of_sum(Layout::new(3, true), Unit(1), (0, 4), ELEMENTS),
            whole
        );
        // A head without parameters has only the loss.
        assert_eq!(actions(1, 4, TAIL), vec![vec![(Action::AllReduceSum, 0..TAIL)]]);
    }

    #[test]
    fn sharded_part_is_reduced_to_one_rank_and_sent_to_another() {
        for members in 3..=12 {
            let all: Vec<_> = (0..members)
                .map(|place| actions(place, members, ELEMENTS))
                .collect();
            let mut sent: Vec<(usize, u32, Range<usize>)> = Vec::new();
            let mut received = Vec::new();
            for (place, actions) in all.iter().enumerate() {
                assert_eq!(
                    actions[0], all[0][0],
                    "all ranks sum the same parts in the same order"
                );
                for (action, elements) in &actions[1] {
                    match action {
                        Action::Send { to } => sent.push((place, *to, elements.clone())),
                        Action::Receive { from } => {
                            received.push((*from as usize, place as u32, elements.clone()))
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            sent.sort_by_key(|(_, _, elements)| elements.start);
            received.sort_by_key(|(_, _, elements)| elements.start);
            assert_eq!(sent, received);
            let sums: Vec<_> = all[0][0].iter().zip(&sent).collect();
            assert_eq!(sums.len(), sent.len());
            let mut end = 0;
            for ((action, elements), (first, second, copied)) in sums {
                assert_eq!(*action, Action::ReduceSum { root: small(*first) });
                assert!(elements.start == end && elements == copied && *second != small(*first));
                end = elements.end;
            }
            assert_eq!(end, ELEMENTS, "the tail belongs to the last part");
        }
    }
}
