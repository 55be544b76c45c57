//! Min-max partition of contiguous segments over the stages of a pipeline.

mod aware;

pub(crate) use aware::RingAwareCut;

use crate::layout::SegmentRange;
use std::ops::Range;

/// The best cuts of `0..segments` into every number of stages: see [`partition_all`].
#[derive(Clone, Debug)]
pub struct Cuts {
    segments: usize,
    /// `rows[k][i]`: the best cover of `i..segments` with k + 1 stages.
    rows: Vec<Vec<Option<Cover>>>,
}

/// The cost of a stage.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StageCost {
    /// The stage itself.
    pub own: f64,
    /// Lower bound: no stage with the same start, the same number of stages behind it and the same or a later end costs less.
    pub least: f64,
}

/// For a cost that does not decrease as a stage with the same start grows.
impl From<f64> for StageCost {
    fn from(own: f64) -> StageCost {
        StageCost { own, least: own }
    }
}

/// A cover of a suffix: its most expensive stage, the sum of squares, and the end of its first stage.
#[derive(Clone, Copy, Debug)]
struct Cover {
    dearest: f64,
    squares: f64,
    first_end: usize,
}

/// Cuts `0..segments` into 1..=`depth_max` stages so that the most expensive stage is as cheap as possible, with ties broken by the sum of
/// squares (otherwise the remainder piles up on one stage).
///
/// `cost(range, later)` is the cost of a stage with `later` stages behind it, or `None` if it does not fit in memory. It must stay `None`
/// as a range with the same start grows. It may decrease, if a later boundary transfers less, as [`StageCost::least`] states.
///
/// A dynamic programme over suffixes for all depths at once: `best[k][i] = min over j of max(cost(i..j, k - 1), best[k - 1][j])`. The
/// minimum over j stops early once the first stage alone is more expensive, whatever its end.
#[must_use]
pub fn partition_all<C: Into<StageCost>>(
    segments: u32,
    depth_max: u32,
    mut cost: impl FnMut(SegmentRange, u32) -> Option<C>,
) -> Cuts {
    let mut cost = |range: SegmentRange, later: u32| cost(range, later).map(Into::<StageCost>::into);
    let n = segments as usize;
    let mut rows: Vec<Vec<Option<Cover>>> = Vec::new();
    for later in 0..depth_max.min(segments) as usize {
        // Each later stage needs a segment of its own.
        let row = (0..n - later)
            .map(|start| cover(start..n - later, later, rows.last(), &mut cost))
            .collect();
        rows.push(row);
    }
    Cuts { segments: n, rows }
}

/// The best cover of the suffix from `within.start` whose first stage ends at `within.end` or before. `rest` is the row of the covers that
/// may follow (none: the stage is the last and must reach the end).
#[expect(clippy::cast_possible_truncation, reason = "segment counts are u32")]
fn cover(
    within: Range<usize>,
    later: usize,
    rest: Option<&Vec<Option<Cover>>>,
    cost: &mut impl FnMut(SegmentRange, u32) -> Option<StageCost>,
) -> Option<Cover> {
    let mut best: Option<Cover> = None;
    let nearest = if later == 0 { within.end } else { within.start + 1 };
    for first_end in nearest..=within.end {
        let range = SegmentRange {
            start: within.start as u32,
            end: first_end as u32,
        };
        let Some(StageCost { own, least }) = cost(range, later as u32) else {
            break;
        };
        let limit = best.map_or(f64::INFINITY, |b| b.dearest);
        if least > limit {
            break;
        }
        if own > limit {
            continue;
        }
        let (dearest, squares) = match rest {
            None => (own, own * own),
            Some(row) => match row.get(first_end).copied().flatten() {
                Some(rest) => (own.max(rest.dearest), rest.squares + own * own),
                None => continue,
            },
        };
        if best.is_none_or(|b| {
            dearest < b.dearest || (dearest <= b.dearest && squares < b.squares && !bug!(PileUpRemainder))
        }) {
            best = Some(Cover {
                dearest,
                squares,
                first_end,
            });
        }
    }
    best
}

impl Cuts {
    /// The best cut into exactly `depth` stages, first stage first; none if no cut fits.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "segment counts are u32")]
    pub fn stages(&self, depth: u32) -> Option<Vec<SegmentRange>> {
        let (mut start, mut stages) = (0, Vec::new());
        for row in self.rows.get(..depth as usize)?.iter().rev() {
            let end = row.get(start).copied().flatten()?.first_end;
            stages.push(SegmentRange {
                start: start as u32,
                end: end as u32,
            });
            start = end;
        }
        (start == self.segments).then_some(stages)
    }
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
            let stages = partition_all(n, n, |r, _| Some(of(r))).stages(u32::try_from(depth).unwrap()).unwrap();
            prop_assert_eq!(stages.len(), depth);
            prop_assert_eq!(stages[0].start, 0);
            prop_assert_eq!(stages[depth - 1].end, n);
            prop_assert!(stages.windows(2).all(|w| w[0].end == w[1].start));
            let dearest = stages.iter().map(|r| of(*r)).fold(0.0, f64::max);
            prop_assert!((dearest - brute(&costs, depth)).abs() < 1e-9);
        }
    }

    #[test]
    fn what_is_left_over_is_spread_over_the_stages() {
        let cuts = partition_all(10, 4, |r, _| Some(f64::from(r.len())));
        let mut lengths: Vec<u32> = cuts.stages(4).unwrap().iter().map(|r| r.len()).collect();
        lengths.sort_unstable();
        assert_eq!(lengths, [2, 2, 3, 3], "not 1, 3, 3, 3");
    }

    #[test]
    fn stages_that_do_not_fit_are_never_chosen() {
        let fits = |r: SegmentRange| (r.len() <= 2).then(|| f64::from(r.len()));
        let cuts = partition_all(6, 9, |r, _| fits(r));
        assert!(cuts.stages(3).unwrap().iter().all(|r| r.len() == 2));
        let found: Vec<bool> = (1..=7).map(|depth| cuts.stages(depth).is_some()).collect();
        assert_eq!(found, [false, false, true, true, true, true, false]);
        assert_eq!(cuts.stages(0), None);
    }

    #[test]
    fn what_a_stage_costs_may_depend_on_the_stages_behind_it() {
        // The first of two stages costs three times as much, as if it kept three stashes.
        let cuts = partition_all(8, 2, |r, later| Some(f64::from(r.len() * (1 + 2 * later))));
        let stages = cuts.stages(2).unwrap();
        assert_eq!(stages.iter().map(|r| r.len()).collect::<Vec<_>>(), [2, 6]);
    }
}
