//! Families of plans (one micro-batch size, one set of cuts), and the closed form of a composition's step.

use super::cut::Cut;
use super::tables::Tables;
use crate::document::{Recompute, ScheduleKind};

/// `count` pipelines of one depth.
pub(super) type Class = (usize, usize);

/// Deep pipelines, then shallow ones (either may be none).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Composition {
    pub(super) classes: [Class; 2],
}

impl Composition {
    pub(super) fn workers(&self) -> usize {
        self.classes.iter().map(|(depth, count)| depth * count).sum()
    }
    pub(super) fn pipelines(&self) -> usize {
        self.classes.iter().map(|(_, count)| count).sum()
    }
}

/// Micro-batches of a class: each pipeline runs `each`, the first `extra` of them one more.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Share {
    pub(super) each: u64,
    pub(super) extra: u64,
}

impl Share {
    /// Micro-batches of the pipelines that run most.
    pub(super) fn most(&self) -> u64 {
        self.each + u64::from(self.extra > 0)
    }
}

/// One micro-batch size with one set of cuts, and the schedules that fit into memory with them.
pub(super) struct Family {
    pub(super) micro: u32,
    pub(super) batches: u64,
    pub(super) schedules: Vec<ScheduleKind>,
    /// What stages may keep, the quickest first: each does the first that fits.
    pub(super) policies: Vec<Recompute>,
    pub(super) tables: Tables,
    /// `cuts[p]`: the cut into p stages, where there is one.
    pub(super) cuts: Vec<Option<Cut>>,
}

impl Family {
    /// Whether the step with fractions of micro-batches, which is no longer than [`Family::closed_form`], is shorter than this.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    pub(super) fn may_be_below(&self, limit_ms: f64, composition: &Composition) -> bool {
        let classes = || composition.classes.iter().filter(|(_, count)| *count > 0);
        let (mut fill, mut rate) = (0.0, 0.0);
        for (depth, count) in classes() {
            let Some(Some(cut)) = self.cuts.get(*depth) else {
                return false;
            };
            let share = *count as f64 / cut.period_ms;
            fill += share * cut.fill_ms;
            rate += share;
        }
        let together = (self.batches as f64 + fill) / rate;
        // No tail is negative: most compositions need not look at theirs.
        if together >= limit_ms {
            return false;
        }
        let pipelines = composition.pipelines();
        let cuts = classes().filter_map(|(depth, _)| self.cuts[*depth].as_ref());
        let tail = cuts.map(|c| c.tail_ms(pipelines)).fold(0.0, f64::max);
        together + tail < limit_ms
    }

    /// The step with whole micro-batches, milliseconds.
    pub(super) fn closed_form(&self, composition: &Composition) -> Option<f64> {
        let cuts = composition
            .classes
            .map(|(depth, _)| self.cuts.get(depth)?.as_ref());
        let shares = self.shares(composition, cuts)?;
        Some(Self::closed_form_of(composition, cuts, shares))
    }

    /// The closed form of these cuts and shares.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    pub(super) fn closed_form_of(
        composition: &Composition,
        cuts: [Option<&Cut>; 2],
        shares: [Share; 2],
    ) -> f64 {
        let (mut step, mut tail) = (0.0f64, f64::NEG_INFINITY);
        let pipelines = composition.pipelines();
        for (share, cut) in shares.iter().zip(cuts) {
            if let Some(cut) = cut {
                step = step.max(cut.fill_ms + cut.period_ms * share.most() as f64);
                tail = tail.max(cut.tail_ms(pipelines));
            }
        }
        step + tail
    }

    /// Micro-batches of each class so that all pipelines end together, at least one each: first what fits into the time
    /// that all would need with fractions, then one more to whoever would end first.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bounded by the batch"
    )]
    pub(super) fn shares(&self, composition: &Composition, cuts: [Option<&Cut>; 2]) -> Option<[Share; 2]> {
        let batches = self.batches;
        let mut left = batches.checked_sub(composition.pipelines() as u64)?;
        let counts = composition.classes.map(|(_, count)| count as u64);
        let (mut fill, mut rate) = (0.0, 0.0);
        for (cut, count) in cuts.iter().zip(counts) {
            if let Some(cut) = cut {
                fill += count as f64 * cut.fill_ms / cut.period_ms;
                rate += count as f64 / cut.period_ms;
            }
        }
        let together = (batches as f64 + fill) / rate;
        let mut shares = [Share::default(); 2];
        for ((share, cut), count) in shares.iter_mut().zip(cuts).zip(counts) {
            let Some(cut) = cut else { continue };
            let whole = (((together - cut.fill_ms) / cut.period_ms + 1e-9).floor() as u64).max(1);
            share.each = whole.min(1 + left / count.max(1));
            left -= (share.each - 1) * count;
        }
        while left > 0 {
            let end = |i: usize| {
                cuts[i].map_or(f64::INFINITY, |c| {
                    c.fill_ms + c.period_ms * (shares[i].each + 1) as f64
                })
            };
            let first = usize::from(end(1) < end(0));
            let given = left.min(counts[first] - shares[first].extra);
            left -= given;
            shares[first].extra += given;
            if shares[first].extra == counts[first] {
                shares[first] = Share {
                    each: shares[first].each + 1,
                    extra: 0,
                };
            }
        }
        Some(shares)
    }
}

/// What no composition of a family can beat, for any number of pipelines.
pub(super) struct Bounds {
    batches: f64,
    /// Micro-batches a millisecond: of a pipeline, and of a worker.
    rate: f64,
    efficiency: f64,
    /// Fill, in periods.
    fill: f64,
    /// By number of pipelines as in [`Cut::tail_ms`], without latency.
    tails: Vec<(usize, f64)>,
}

impl Bounds {
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    pub(super) fn new(family: &Family) -> Bounds {
        let mut bounds = Bounds {
            batches: family.batches as f64,
            rate: 0.0,
            efficiency: 0.0,
            fill: f64::INFINITY,
            tails: Cut::known_tails(),
        };
        for cut in family.cuts.iter().flatten() {
            bounds.rate = bounds.rate.max(1.0 / cut.period_ms);
            bounds.efficiency = bounds
                .efficiency
                .max(1.0 / (cut.period_ms * cut.stages.len() as f64));
            bounds.fill = bounds.fill.min(cut.fill_ms / cut.period_ms);
            for (pipelines, tail) in &mut bounds.tails {
                *tail = tail.min(cut.tail_ms(*pipelines));
            }
        }
        bounds
    }

    /// The batch at the best rate that the workers allow; tails grow with the number of pipelines.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    pub(super) fn least_ms(&self, pipelines: usize, workers: usize) -> f64 {
        let d = pipelines as f64;
        let rate = (self.rate * d).min(self.efficiency * workers as f64);
        let below = self.tails.iter().rev().find(|(known, _)| *known <= pipelines);
        let tail = below.map_or(f64::NEG_INFINITY, |(_, tail)| *tail);
        (self.batches + d * self.fill.max(0.0)) / rate + tail
    }
}
