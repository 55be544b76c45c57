//! Cuts that take into account what a stage must do after its last backward (its gradient ring and optimizer) as well as its period.
//!
//! Minimises `micro_batches * C + worst tail` over bounds C on the period: all stages run at the rate of the slowest, so a stage below C
//! costs nothing there and may carry more parameters. For each C, a min-max dynamic programme on the tail excludes stages more expensive
//! than C. It looks only at stages that begin where the stages before them can end. If C is little more than the least possible period,
//! these are few, so that models of a thousand layers are cut in a second too.

use super::StageCost;
use crate::layout::SegmentRange;
use std::ops::RangeInclusive;

/// Number of bounds on the period that are tried, from the least possible one upwards.
const BOUNDS: usize = 10;
/// No bound beyond this multiple of the least is tried.
const SLOWEST: f64 = 1.4;

/// What a cut is made for.
pub(crate) struct RingAwareCut<'a> {
    /// Number of segments.
    pub(crate) segments: u32,
    /// Number of stages.
    pub(crate) depth: u32,
    /// Micro-batches that each pipeline runs in a step.
    pub(crate) micro_batches: f64,
    /// Cost of a stage with this many stages behind it for one micro-batch. None if it does not fit; then no longer stage does.
    pub(crate) cost: &'a dyn Fn(SegmentRange, u32) -> Option<StageCost>,
    /// What a stage adds after its last backward, minus how much sooner than the first stage it ends.
    pub(crate) tail: &'a dyn Fn(SegmentRange) -> f64,
}

#[derive(Clone, Copy)]
struct Cover {
    tail: f64,
    squares: f64,
    first_end: u32,
}

impl RingAwareCut<'_> {
    /// The best cut, where `least` is the least possible period.
    pub(crate) fn cut(&self, least: f64) -> Option<Vec<SegmentRange>> {
        let mut best: Option<(f64, Vec<SegmentRange>)> = None;
        // The first stage holds the first segment in every cut.
        let floor = (self.tail)(SegmentRange { start: 0, end: 1 });
        for bound in self.bounds(least) {
            if best
                .as_ref()
                .is_some_and(|(b, _)| self.micro_batches * bound + floor >= *b)
            {
                break;
            }
            let Some((tail, stages)) = self.within(bound) else {
                continue;
            };
            let score = self.micro_batches * bound + tail;
            if best.as_ref().is_none_or(|(b, _)| score < *b) {
                best = Some((score, stages));
            }
        }
        best.map(|(_, stages)| stages)
    }

    /// Possible stage costs from `least` upwards, each once.
    fn bounds(&self, least: f64) -> Vec<f64> {
        let mut all = vec![least * (1.0 + 1e-9)];
        for start in 0..self.segments {
            for end in start + 1..=self.segments {
                let later = u32::from(end < self.segments);
                match (self.cost)(SegmentRange { start, end }, later) {
                    Some(c) if c.least > least * SLOWEST => break,
                    Some(c) if c.own > least && c.own <= least * SLOWEST => {
                        all.push(c.own * (1.0 + 1e-9));
                    }
                    Some(_) => {}
                    None => break,
                }
            }
        }
        all.sort_by(f64::total_cmp);
        all.dedup_by(|a, b| *a <= *b * (1.0 + 1e-6));
        all.truncate(BOUNDS);
        all
    }

    /// The cut with the smallest worst tail among those whose period is at most `bound`.
    fn within(&self, bound: f64) -> Option<(f64, Vec<SegmentRange>)> {
        let starts = self.starts(bound)?;
        let mut rows: Vec<Row> = Vec::with_capacity(starts.len());
        for (later, starts) in (0..).zip(starts.into_iter().rev()) {
            let covers = starts.map(|start| (start, self.cover(start, later, bound, rows.last())));
            // From the others the stages behind do not reach the end.
            let mut covers = covers.skip_while(|(_, cover)| cover.is_none()).peekable();
            let first = covers.peek()?.0;
            let covers = covers.map(|(_, cover)| cover).collect();
            rows.push(Row { first, covers });
        }
        let mut stages = Vec::with_capacity(self.depth as usize);
        let whole = rows.last()?.at(0)?;
        let mut start = 0;
        for row in rows.iter().rev() {
            let end = row.at(start)?.first_end;
            stages.push(SegmentRange { start, end });
            start = end;
        }
        Some((whole.tail, stages))
    }

    /// Where each stage can start if no stage before it costs more than `bound`. None if some stage cannot start at all.
    fn starts(&self, bound: f64) -> Option<Vec<RangeInclusive<u32>>> {
        let mut all = vec![0..=0];
        for (before, later) in (0..).zip((1..self.depth).rev()) {
            let last = self.segments.checked_sub(later)?;
            let mut end = before;
            for start in all.last()?.clone() {
                // A shorter stage than one that starts earlier changes nothing.
                let possible = (end.max(start) + 1..=last).take_while(|end| {
                    let cost = (self.cost)(SegmentRange { start, end: *end }, later);
                    cost.is_some_and(|c| c.least <= bound)
                });
                end = possible.last().unwrap_or(end);
            }
            // Each stage has at least one segment.
            all.push((end > before).then_some(before + 1..=end)?);
        }
        Some(all)
    }

    /// The best cover of the segments from `start` by a stage with `later` stages behind it, whose covers `rest` has.
    fn cover(&self, start: u32, later: u32, bound: f64, rest: Option<&Row>) -> Option<Cover> {
        let last = self.segments.checked_sub(later)?;
        let mut best: Option<Cover> = None;
        let ends = match rest {
            None => last..last + 1,
            // No stage before can end after the last of these.
            Some(row) => row.first.max(start + 1)..row.end(),
        };
        for end in ends {
            let after = match rest {
                None => Cover {
                    tail: f64::NEG_INFINITY,
                    squares: 0.0,
                    first_end: end,
                },
                Some(row) => match row.at(end) {
                    Some(after) => after,
                    None => continue,
                },
            };
            let range = SegmentRange { start, end };
            let Some(StageCost { own: cost, least }) = (self.cost)(range, later) else {
                break;
            };
            if least > bound {
                break;
            }
            if cost > bound {
                continue;
            }
            let tail = after.tail.max((self.tail)(range));
            let squares = after.squares + cost * cost;
            let better = |b: &Cover| tail < b.tail - 1e-9 || (tail <= b.tail + 1e-9 && squares < b.squares);
            if best.as_ref().is_none_or(better) {
                best = Some(Cover {
                    tail,
                    squares,
                    first_end: end,
                });
            }
        }
        best
    }
}

/// The best covers from each segment at which a stage can start, with as many stages.
struct Row {
    /// The first such segment.
    first: u32,
    covers: Vec<Option<Cover>>,
}

impl Row {
    fn at(&self, start: u32) -> Option<Cover> {
        let place = start.checked_sub(self.first)?;
        self.covers.get(place as usize).copied().flatten()
    }

    /// The segment after the last one.
    fn end(&self) -> u32 {
        self.first + u32::try_from(self.covers.len()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn brute(aware: &RingAwareCut, start: u32, left: u32) -> Vec<Vec<SegmentRange>> {
        if left == 1 {
            let range = SegmentRange {
                start,
                end: aware.segments,
            };
            return vec![vec![range]];
        }
        let mut all = Vec::new();
        for end in start + 1..=aware.segments + 1 - left {
            for rest in brute(aware, end, left - 1) {
                let mut stages = vec![SegmentRange { start, end }];
                stages.extend(rest);
                all.push(stages);
            }
        }
        all
    }

    /// It asks for 98,000 costs; for a million if it looks at stages that begin anywhere.
    #[test]
    fn cuts_of_deep_models_ask_for_few_costs() {
        let asked = std::cell::Cell::new(0_u32);
        let cost = |r: SegmentRange, _: u32| {
            asked.set(asked.get() + 1);
            Some(StageCost::from(f64::from(r.len())))
        };
        let aware = RingAwareCut {
            segments: 1000,
            depth: 50,
            micro_batches: 100.0,
            cost: &cost,
            tail: &|_| 0.0,
        };
        assert_eq!(aware.cut(20.0).unwrap().len(), 50);
        assert!(asked.get() < 200_000, "{}", asked.get());
    }

    proptest! {
        #[test]
        fn no_cut_within_the_bounds_is_better(
            segments in prop::collection::vec((1u32..20, 0u32..40), 2..9), depth in 1u32..5, micro_batches in 1u32..6
        ) {
            let count = u32::try_from(segments.len()).unwrap();
            prop_assume!(depth <= count);
            let of = |r: SegmentRange, f: fn(&(u32, u32)) -> u32| {
                f64::from(segments[r.start as usize..r.end as usize].iter().map(f).sum::<u32>())
            };
            let cost = |r: SegmentRange, _: u32| Some(StageCost::from(of(r, |s| s.0)));
            let tail = |r: SegmentRange| of(r, |s| s.1);
            let aware = RingAwareCut {
                segments: count,
                depth,
                micro_batches: f64::from(micro_batches),
                cost: &cost,
                tail: &tail,
            };
            let period = |stages: &[SegmentRange]| stages.iter().map(|r| of(*r, |s| s.0)).fold(0.0, f64::max);
            let score = |stages: &[SegmentRange]| {
                f64::from(micro_batches) * period(stages) + stages.iter().map(|r| tail(*r)).fold(f64::NEG_INFINITY, f64::max)
            };
            let all = brute(&aware, 0, depth);
            let least = all.iter().map(|s| period(s)).fold(f64::INFINITY, f64::min);
            let tried = *aware.bounds(least).last().unwrap();
            let best = all.iter().filter(|s| period(s) <= tried).map(|s| score(s)).fold(f64::INFINITY, f64::min);
            let found = aware.cut(least).unwrap();
            prop_assert!(score(&found) <= best + 1e-6, "{} {}", score(&found), best);
        }
    }
}
