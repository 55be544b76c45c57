//! Which of several sources each sample of a blend comes from: a pure function of their shares and of the sample's number.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Maximum number of samples in a cycle; shares that need more are rounded to this many parts.
const CYCLE_MAX: u64 = 1 << 20;
/// Weights with up to six decimals give exactly their shares.
const DECIMALS: f64 = 1e6;

/// The order of the sources of a blend. It repeats after a cycle in which each source has its share of the samples; in every prefix each
/// source has its share to within one sample. It does not depend on a seed: the source's seeded order decides which of its samples comes
/// next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blend {
    /// Samples of each source in a cycle.
    parts: Vec<u32>,
    /// For each sample of a cycle, its source, and how many samples of that source come before it in the cycle.
    cycle: Vec<(u16, u32)>,
}

/// A sample of a blend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlendSample {
    /// The source that it comes from.
    pub source: usize,
    /// How many samples of that source come before it.
    pub number: u64,
}

impl Blend {
    /// Most sources of a blend.
    pub const SOURCES_MAX: usize = 256;

    /// The blend of sources with these weights, of which only the ratios count. Up to six decimals count exactly, unless this makes too
    /// many parts; otherwise shares are rounded to about a millionth, but never to zero.
    ///
    /// # Panics
    /// If there is no weight, there are more than [`Blend::SOURCES_MAX`], or one of them is not a finite number above 0.
    #[must_use]
    pub fn new(weights: &[f64]) -> Blend {
        let sound = weights.iter().all(|w| w.is_finite() && *w > 0.0);
        let few = (1..=Blend::SOURCES_MAX).contains(&weights.len());
        assert!(sound && few, "a blend of the weights {weights:?}");
        let parts = parts(weights);
        let cycle = cycle(&parts);
        Blend { parts, cycle }
    }

    /// The sample of this number, from 0 on.
    #[must_use]
    pub fn at(&self, number: u64) -> BlendSample {
        let length = self.cycle.len() as u64;
        let (cycles, within) = (number / length, number % length);
        // The index is below the length, which fits in memory.
        let (source, before) = self.cycle[usize::try_from(within).unwrap_or(0)];
        let source = usize::from(source);
        let number = cycles * u64::from(self.parts[source]) + u64::from(before);
        BlendSample { source, number }
    }

    /// The number of samples in the longest prefix that needs no more samples of each source than it has.
    #[must_use]
    pub fn prefix_of(&self, lengths: &[u64]) -> u64 {
        let length = self.cycle.len() as u64;
        // The prefix ends at the first sample that a source does not have.
        let ends = (0u64..)
            .zip(&self.cycle)
            .filter_map(|(within, (source, before))| {
                let (has, part) = (
                    *lengths.get(usize::from(*source))?,
                    self.parts[usize::from(*source)],
                );
                let (cycles, rest) = (has / u64::from(part), has % u64::from(part));
                (rest == u64::from(*before)).then(|| cycles.saturating_mul(length).saturating_add(within))
            });
        ends.min().unwrap_or(0)
    }

    /// Samples of each source in a cycle: its share.
    #[must_use]
    pub fn parts(&self) -> &[u32] {
        &self.parts
    }
}

/// Integers in the ratios of the weights, without a common divisor.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rounded numbers below 2^53"
)]
fn parts(weights: &[f64]) -> Vec<u32> {
    let scaled = || weights.iter().map(|weight| weight * DECIMALS);
    let whole =
        |x: f64| (x - x.round()).abs() <= x * 1e-9 && (1.0..=(1u64 << 53) as f64).contains(&x.round());
    if scaled().all(whole) {
        let exact = reduced(scaled().map(|x| x.round() as u64).collect());
        if exact
            .iter()
            .try_fold(0u64, |sum, part| sum.checked_add(*part))
            .is_some_and(|sum| sum <= CYCLE_MAX)
        {
            return narrow(&exact);
        }
    }
    // Divide by the greatest weight first, so that a sum of huge weights stays finite.
    let greatest = weights.iter().copied().fold(0.0, f64::max);
    let total: f64 = weights.iter().map(|weight| weight / greatest).sum();
    let share = |weight: &f64| (weight / greatest / total * CYCLE_MAX as f64).round().max(1.0) as u64;
    narrow(&reduced(weights.iter().map(share).collect()))
}

/// Divides by the greatest common divisor.
fn reduced(mut parts: Vec<u64>) -> Vec<u64> {
    let common = parts.iter().fold(0, |a, b| greatest_common_divisor(a, *b)).max(1);
    parts.iter_mut().for_each(|part| *part /= common);
    parts
}

fn narrow(parts: &[u64]) -> Vec<u32> {
    parts
        .iter()
        .map(|part| u32::try_from(*part).unwrap_or(u32::MAX))
        .collect()
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        greatest_common_divisor(b, a % b)
    }
}

/// Sample j of a source with p of n samples may be placed from position floor(j n / p) on, and must be placed before ceil((j + 1) n / p):
/// then the number of its samples in each prefix of k samples differs from k p / n by less than one. Among the samples whose interval has
/// begun, taking the one whose interval ends first keeps all intervals (Steiner & Yeomans 1993, "Level schedules for mixed-model,
/// just-in-time processes").
fn cycle(parts: &[u32]) -> Vec<(u16, u32)> {
    let length: u64 = parts.iter().map(|part| u64::from(*part)).sum();
    let begin = |source: usize, j: u32| u64::from(j) * length / u64::from(parts[source]);
    let end = |source: usize, j: u32| ((u64::from(j) + 1) * length).div_ceil(u64::from(parts[source]));
    let mut waiting: BinaryHeap<_> = (0..parts.len()).map(|source| Reverse((0, source, 0))).collect();
    let mut ready = BinaryHeap::new();
    let mut cycle = Vec::new();
    for position in 0..length {
        while let Some(Reverse((_, source, j))) = waiting
            .peek()
            .copied()
            .filter(|Reverse((at, ..))| *at <= position)
        {
            waiting.pop();
            ready.push(Reverse((end(source, j), source, j)));
        }
        // There is always one: at least as many samples have begun as there are positions.
        let Some(Reverse((_, source, j))) = ready.pop() else {
            break;
        };
        cycle.push((u16::try_from(source).unwrap_or(0), j));
        if j + 1 < parts[source] {
            waiting.push(Reverse((begin(source, j + 1), source, j + 1)));
        }
    }
    cycle
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn weights() -> impl Strategy<Value = Vec<f64>> {
        let decimal = (1u32..2000).prop_map(|n| f64::from(n) / 100.0);
        prop::collection::vec(
            prop_oneof![decimal, (1u32..5).prop_map(f64::from), 1e-3f64..1e6],
            1..9,
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn every_prefix_has_the_share_of_each_source_within_one_sample(weights in weights(), start in 0u64..1 << 40) {
            let blend = Blend::new(&weights);
            let n: u64 = blend.parts().iter().map(|p| u64::from(*p)).sum();
            // From the beginning, and from some other sample: counts follow from the numbers of the samples.
            for from in [0, start - start % n] {
                let mut counts: Vec<u64> = blend.parts().iter().map(|p| from / n * u64::from(*p)).collect();
                for k in from..from + n.min(4000) {
                    let sample = blend.at(k);
                    prop_assert_eq!(sample.number, counts[sample.source], "each sample of a source is the next one");
                    counts[sample.source] += 1;
                    for (count, part) in counts.iter().zip(blend.parts()) {
                        // |count - (k + 1) part / n| < 1, in integers.
                        let (count, share) = (u128::from(*count) * u128::from(n), u128::from(k + 1) * u128::from(*part));
                        prop_assert!(count.abs_diff(share) < u128::from(n), "sample {}: {:?} of {:?}", k, counts, blend.parts());
                    }
                }
            }
        }

        #[test]
        fn shares_are_those_of_the_weights(weights in weights()) {
            let blend = Blend::new(&weights);
            let total: f64 = weights.iter().sum();
            // The rounding of the source's own part, and of the sum of all parts.
            let rounding = (weights.len() + 1) as f64 / CYCLE_MAX as f64;
            let parts: f64 = blend.parts().iter().map(|p| f64::from(*p)).sum();
            prop_assert!(parts <= (CYCLE_MAX + 8) as f64);
            for (weight, part) in weights.iter().zip(blend.parts()) {
                prop_assert!((weight / total - f64::from(*part) / parts).abs() < rounding, "{:?} {:?}", weights, blend.parts());
            }
        }

        #[test]
        fn longest_prefix_exhausts_one_source_exactly(weights in weights(), lengths in prop::collection::vec(0u64..3000, 9)) {
            let blend = Blend::new(&weights);
            let lengths = &lengths[..weights.len()];
            let prefix = blend.prefix_of(lengths);
            for k in prefix.saturating_sub(2000)..prefix {
                let sample = blend.at(k);
                prop_assert!(sample.number < lengths[sample.source]);
            }
            let next = blend.at(prefix);
            prop_assert_eq!(next.number, lengths[next.source]);
        }
    }

    #[test]
    fn ratios_are_exact_where_the_weights_are_decimals() {
        for (weights, parts) in [
            (&[3.0, 1.0][..], &[3, 1][..]),
            (&[0.7, 0.3], &[7, 3]),
            (&[0.1, 0.2, 0.7], &[1, 2, 7]),
            (&[1.0, 2.0], &[1, 2]),
            (&[5.0], &[1]),
            (&[0.5, 0.499_999, 0.000_001], &[500_000, 499_999, 1]),
            // Numbers of tokens of two datasets, which are greater than the number of parts of a cycle.
            (&[300_000_000_000.0, 100_000_000_001.0], &[786_432, 262_144]),
            // Each source has at least one part.
            (&[1.0, 1e-12], &[1 << 20, 1]),
        ] {
            let got = Blend::new(weights);
            let reduced: Vec<u32> = narrow(&reduced(parts.iter().map(|p: &u32| u64::from(*p)).collect()));
            assert_eq!(got.parts(), reduced, "{weights:?}");
        }
    }

    #[test]
    fn the_order_never_changes_between_versions() {
        let blend = Blend::new(&[0.5, 0.3, 0.2]);
        let got: Vec<usize> = (0..10).map(|k| blend.at(k).source).collect();
        // These values must never change: a run that is resumed by a later version must use the same samples.
        assert_eq!(got, PINNED);
    }

    const PINNED: [usize; 10] = [0, 1, 0, 2, 0, 1, 0, 1, 0, 2];
}
