//! The seeded order of samples: a random access permutation that needs no memory.

/// A pseudo-random bijection of `0..len`, different for every key, computed in constant memory.
///
/// A balanced Feistel network over the smallest even power of two that holds `len`; values outside are sent through again
/// until they fall inside ("cycle walking", Black & Rogaway 2002), fewer than four times on average. Six rounds: four
/// already give a permutation that no short test tells from a random one (Luby & Rackoff 1988), and the rest costs
/// nothing beside reading a sample. Integer arithmetic only: the same on every machine.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    keys: [u64; 6],
}

impl Permutation {
    /// The permutation of `0..len` that belongs to a seed and a stream (the number of the pass over the data).
    ///
    /// # Panics
    /// If `len` is 0 or above 2^62.
    #[must_use]
    pub fn new(len: u64, seed: u64, stream: u64) -> Permutation {
        assert!(len > 0 && len <= 1 << 62, "a permutation of {len} items");
        let bits = u64::BITS - (len - 1).leading_zeros();
        let mut state = mix(seed ^ mix(stream));
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            mix(state)
        });
        Permutation {
            len,
            half_bits: bits.div_ceil(2).max(1),
            keys,
        }
    }

    /// Where index `i` goes.
    ///
    /// # Panics
    /// If `i` is not below the length.
    #[must_use]
    pub fn at(&self, i: u64) -> u64 {
        assert!(i < self.len, "index {i} of a permutation of {}", self.len);
        let mut value = self.round_trip(i);
        // Ends: the network is a bijection, so the walk comes back to 0..len, at the latest at i.
        while value >= self.len {
            value = self.round_trip(value);
        }
        value
    }

    fn round_trip(&self, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }
}

/// The seed of a blend's source, so that sources of the same size have orders of their own. The first one's is the blend's, as of a dataset alone.
pub(crate) fn seed_of_source(seed: u64, source: u64) -> u64 {
    if source == 0 {
        seed
    } else {
        mix(seed ^ mix(source))
    }
}

/// The finaliser of `SplitMix64` (Steele, Lea & Flood 2014): every input bit changes every output bit.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::Permutation;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_index_is_hit_exactly_once(len in 1u64..3000, seed: u64, stream in 0u64..5) {
            let p = Permutation::new(len, seed, stream);
            let mut hit: Vec<u64> = (0..len).map(|i| p.at(i)).collect();
            hit.sort_unstable();
            prop_assert_eq!(hit, (0..len).collect::<Vec<_>>());
        }

        #[test]
        fn large_domains_stay_inside(len in 1u64..=1 << 62, seed: u64, i: u64) {
            prop_assert!(Permutation::new(len, seed, 0).at(i % len) < len);
        }
    }

    #[test]
    fn passes_and_seeds_have_orders_of_their_own() {
        let order = |seed, pass| -> Vec<u64> {
            let p = Permutation::new(500, seed, pass);
            (0..500).map(|i| p.at(i)).collect()
        };
        let same = |a: &[u64], b: &[u64]| a.iter().zip(b).filter(|(a, b)| a == b).count();
        let base = order(7, 0);
        // Two random orders of 500 agree at about one position.
        for other in [order(7, 1), order(8, 0), order(0, 7), (0..500).collect()] {
            assert!(same(&base, &other) < 10, "{}", same(&base, &other));
        }
        // Neighbours do not stay together either.
        let close = base.windows(2).filter(|w| w[0].abs_diff(w[1]) == 1).count();
        assert!(close < 15, "{close}");
    }

    #[test]
    fn the_order_never_changes_between_versions() {
        let p = Permutation::new(1000, 42, 3);
        let got: Vec<u64> = (0..8).map(|i| p.at(i)).collect();
        // These values must never change: a run that is resumed by a later version must use the same samples.
        assert_eq!(got, PINNED);
    }

    const PINNED: [u64; 8] = [935, 862, 225, 409, 815, 210, 156, 83];
}
