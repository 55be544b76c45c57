//! Min-max partition of contiguous segments over the stages of a pipeline.

use crate::layout::SegmentRange;

/// Cuts `0..segments` into 1..=`depth_max` stages so that the dearest stage is as cheap as possible, ties by the sum of
/// squares (else the remainder piles up on one stage). `cost(range)` is a stage's cost, or `None` where it does not fit in
/// memory. Entry `p - 1` holds the best cut into p stages, or `None` where none is feasible.
///
/// A dynamic programme over prefixes for all depths at once (`best[k][j] = min_i max(best[k-1][i], cost(i..j))`), O(S^2 P).
#[must_use]
pub fn partition_all(
    segments: u32,
    depth_max: u32,
    mut cost: impl FnMut(SegmentRange, u32, u32) -> Option<f64>,
) -> Vec<Option<Vec<SegmentRange>>> {
    (1..=depth_max.min(segments)).map(|depth| partition(segments, depth, &mut cost)).collect()
}

/// The best cut into exactly `depth` stages; `cost(range, stage, depth)` may depend on the stage's place.
#[must_use]
pub fn partition(
    segments: u32,
    depth: u32,
    cost: &mut impl FnMut(SegmentRange, u32, u32) -> Option<f64>,
) -> Option<Vec<SegmentRange>> {
    let n = segments as usize;
    // best[j]: (dearest stage, sum of squares, cuts) of the cheapest way to cover 0..j with the stages so far
    type Best = Option<(f64, f64, Vec<u32>)>;
    let mut best: Vec<Best> = vec![None; n + 1];
    best[0] = Some((0.0, 0.0, Vec::new()));
    for stage in 0..depth {
        let mut next: Vec<Best> = vec![None; n + 1];
        // Each later stage needs a segment of its own.
        for end in stage + 1..=segments - (depth - 1 - stage) {
            for start in stage..end {
                let Some((dearest, squares, cuts)) = &best[start as usize] else { continue };
                let Some(own) = cost(SegmentRange { start, end }, stage, depth) else { continue };
                let candidate = (dearest.max(own), squares + own * own);
                let better = next[end as usize]
                    .as_ref()
                    .is_none_or(|(d, q, _)| candidate.0 < *d || (candidate.0 <= *d && candidate.1 < *q));
                if better {
                    let mut cuts = cuts.clone();
                    cuts.push(end);
                    next[end as usize] = Some((candidate.0, candidate.1, cuts));
                }
            }
        }
        best = next;
    }
    let (_, _, cuts) = best[n].take()?;
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    Some(starts.zip(&cuts).map(|(start, end)| SegmentRange { start, end: *end }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn brute(costs: &[f64], depth: usize) -> f64 {
        fn go(costs: &[f64], from: usize, left: usize) -> f64 {
            if left == 1 {
                return costs[from..].iter().sum();
            }
            (from + 1..=costs.len() + 1 - left)
                .map(|end| costs[from..end].iter().sum::<f64>().max(go(costs, end, left - 1)))
                .fold(f64::MAX, f64::min)
        }
        go(costs, 0, depth)
    }

    proptest! {
        #[test]
        fn the_dearest_stage_is_as_cheap_as_brute_force_finds(
            costs in prop::collection::vec(1u32..50, 1..12), depth in 1usize..12
        ) {
            let costs: Vec<f64> = costs.into_iter().map(f64::from).collect();
            prop_assume!(depth <= costs.len());
            let of = |r: SegmentRange| costs[r.start as usize..r.end as usize].iter().sum::<f64>();
            let n = u32::try_from(costs.len()).unwrap();
            let stages = partition(n, u32::try_from(depth).unwrap(), &mut |r, _, _| Some(of(r))).unwrap();
            prop_assert_eq!(stages.len(), depth);
            prop_assert_eq!(stages[0].start, 0);
            prop_assert_eq!(stages[depth - 1].end, n);
            prop_assert!(stages.windows(2).all(|w| w[0].end == w[1].start));
            let dearest = stages.iter().map(|r| of(*r)).fold(0.0, f64::max);
            prop_assert!((dearest - brute(&costs, depth)).abs() < 1e-9);
        }
    }

    #[test]
    fn stages_that_do_not_fit_are_never_chosen() {
        let fits = |r: SegmentRange| (r.len() <= 2).then(|| f64::from(r.len()));
        assert_eq!(partition(6, 2, &mut |r, _, _| fits(r)), None);
        let three = partition(6, 3, &mut |r, _, _| fits(r)).unwrap();
        assert!(three.iter().all(|r| r.len() == 2));
        let all = partition_all(6, 9, |r, _, _| fits(r));
        assert_eq!(all.iter().map(Option::is_some).collect::<Vec<_>>(), [false, false, true, true, true, true]);
    }
}
