//! Removes items from a list by their rank among the remaining ones, in little time even for a long list.

/// The remaining items of a list, by rank: a binary indexed tree (Fenwick 1994) of which items remain.
pub(super) struct Ranks {
    tree: Vec<usize>,
}

impl Ranks {
    /// All items of a list.
    pub(super) fn of(length: usize) -> Ranks {
        // Node i covers as many items as the value of its lowest set bit; at first all items remain.
        let tree = (0..=length).map(|i| i & i.wrapping_neg()).collect();
        Ranks { tree }
    }

    /// Removes the item with this rank among the remaining ones, and returns its index. There must be one.
    pub(super) fn take(&mut self, rank: usize) -> usize {
        let length = self.tree.len() - 1;
        let (mut at, mut before) = (0, rank);
        let mut width = (length + 1).next_power_of_two();
        while width > 0 {
            let next = at + width;
            if next <= length && self.tree[next] <= before {
                before -= self.tree[next];
                at = next;
            }
            width /= 2;
        }
        let mut node = at + 1;
        while node <= length {
            self.tree[node] -= 1;
            node += node & node.wrapping_neg();
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn items_are_taken_by_their_rank_among_those_left() {
        for length in [1, 2, 7, 8, 9, 100] {
            let (mut ranks, mut left) = (Ranks::of(length), (0..length).collect::<Vec<_>>());
            let mut rng = Rng(5);
            while !left.is_empty() {
                let rank = usize::try_from(rng.below(left.len() as u64)).unwrap();
                assert_eq!(ranks.take(rank), left.remove(rank));
            }
        }
    }
}
