//! Compositions of pipelines of at most two depths, their shares of the batch, and their step in closed form.

use super::partitions::{Partition, PartitionSet};
use crate::predict::closed_form::ClosedForm;

/// `count` pipelines of one depth.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(in crate::planner) struct PipelineClass {
    pub(in crate::planner) depth: usize,
    pub(in crate::planner) count: usize,
}

/// Deep pipelines, then shallow ones (either may be none).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::planner) struct Composition {
    pub(in crate::planner) classes: [PipelineClass; 2],
}

impl Composition {
    pub(in crate::planner) fn equal(depth: usize, count: usize) -> Composition {
        Composition {
            classes: [PipelineClass::default(), PipelineClass { depth, count }],
        }
    }

    pub(in crate::planner) fn workers(&self) -> usize {
        self.classes.iter().map(|c| c.depth * c.count).sum()
    }

    pub(in crate::planner) fn pipelines(&self) -> usize {
        self.classes.iter().map(|c| c.count).sum()
    }

    /// The partition of each class.
    pub(in crate::planner) fn partitions<'s>(&self, set: &'s PartitionSet) -> [Option<&'s Partition>; 2] {
        self.classes.map(|c| set.of_depth(c.depth))
    }
}

/// Micro-batches of a class: each pipeline runs `each`, the first `extra` of them one more.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(in crate::planner) struct Share {
    pub(in crate::planner) each: u64,
    pub(in crate::planner) extra: u64,
}

impl Share {
    /// Micro-batches of the pipelines that run most.
    fn most(&self) -> u64 {
        self.each + u64::from(self.extra > 0)
    }
}

/// Whether the step with fractional micro-batches, which is no longer than [`step_ms`], is shorter than this.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
pub(in crate::planner) fn may_be_below(set: &PartitionSet, composition: &Composition, limit_ms: f64) -> bool {
    let classes = || composition.classes.iter().filter(|c| c.count > 0);
    let (mut fill, mut rate) = (0.0, 0.0);
    for class in classes() {
        let Some(partition) = set.of_depth(class.depth) else {
            return false;
        };
        let share = class.count as f64 / partition.form.period_ms;
        fill += share * partition.form.fill_ms;
        rate += share;
    }
    let together = (set.micro_batches as f64 + fill) / rate;
    // No tail is negative, so most compositions can be decided without computing theirs.
    if together >= limit_ms {
        return false;
    }
    let pipelines = composition.pipelines();
    let partitions = classes().filter_map(|c| set.of_depth(c.depth));
    let tails = partitions.map(|p| p.form.tail_ms(pipelines));
    let tail = tails.fold(0.0, f64::max);
    together + tail < limit_ms
}

/// The step time with whole micro-batches, milliseconds. None if there are fewer micro-batches than pipelines.
pub(in crate::planner) fn closed_form_ms(
    set: &PartitionSet,
    composition: &Composition,
    partitions: [Option<&Partition>; 2],
) -> Option<f64> {
    let shares = shares(set, composition, partitions)?;
    let (mut step, mut tail) = (0.0f64, f64::NEG_INFINITY);
    let pipelines = composition.pipelines();
    for (share, partition) in shares.iter().zip(partitions) {
        if let Some(Partition { form, .. }) = partition {
            step = step.max(micro_batches_ms(form, share.most()));
            tail = tail.max(form.tail_ms(pipelines));
        }
    }
    Some(step + tail)
}

/// The time of a pipeline for this many micro-batches, without its tail, milliseconds.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn micro_batches_ms(form: &ClosedForm, micro_batches: u64) -> f64 {
    form.fill_ms + form.period_ms * micro_batches as f64
}

/// The number of micro-batches of each class such that all pipelines end together, at least one each: first what fits into the time with
/// fractional micro-batches, then one more for the pipeline that would end first.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bounded by the batch"
)]
pub(in crate::planner) fn shares(
    set: &PartitionSet,
    composition: &Composition,
    partitions: [Option<&Partition>; 2],
) -> Option<[Share; 2]> {
    let batches = set.micro_batches;
    let mut left = batches.checked_sub(composition.pipelines() as u64)?;
    let counts = composition.classes.map(|c| c.count as u64);
    let (mut fill, mut rate) = (0.0, 0.0);
    for (partition, count) in partitions.iter().zip(counts) {
        if let Some(Partition { form, .. }) = partition {
            fill += count as f64 * form.fill_ms / form.period_ms;
            rate += count as f64 / form.period_ms;
        }
    }
    let together = (batches as f64 + fill) / rate;
    let mut shares = [Share::default(); 2];
    for ((share, partition), count) in shares.iter_mut().zip(partitions).zip(counts) {
        let Some(Partition { form, .. }) = partition else {
            continue;
        };
        let whole = (((together - form.fill_ms) / form.period_ms + 1e-9).floor() as u64).max(1);
        share.each = whole.min(1 + left / count.max(1));
        left -= (share.each - 1) * count;
    }
    while left > 0 {
        let end = |i: usize| {
            let next = shares[i].each + 1;
            partitions[i].map_or(f64::INFINITY, |p| micro_batches_ms(&p.form, next))
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

/// A lower bound for every composition of a set, for any number of pipelines.
pub(in crate::planner) struct Bounds {
    batches: f64,
    /// Highest rate in micro-batches per millisecond: of a pipeline, and of a worker.
    rate: f64,
    efficiency: f64,
    /// Time to fill the pipeline, in periods.
    fill: f64,
    /// For numbers of pipelines, the time as in [`ClosedForm::tail_ms`], without latency.
    tails: Vec<(usize, f64)>,
}

impl Bounds {
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    pub(in crate::planner) fn new(set: &PartitionSet) -> Bounds {
        let mut bounds = Bounds {
            batches: set.micro_batches as f64,
            rate: 0.0,
            efficiency: 0.0,
            fill: f64::INFINITY,
            tails: ClosedForm::known_tails(),
        };
        for Partition { stages, form, .. } in set.partitions() {
            bounds.rate = bounds.rate.max(1.0 / form.period_ms);
            bounds.efficiency = bounds
                .efficiency
                .max(1.0 / (form.period_ms * stages.len() as f64));
            bounds.fill = bounds.fill.min(form.fill_ms / form.period_ms);
            for (pipelines, tail) in &mut bounds.tails {
                *tail = tail.min(form.tail_ms(*pipelines));
            }
        }
        bounds
    }

    /// Lower bound of the step: the batch at the highest rate that the workers allow, plus the tail, which grows with the number of
    /// pipelines.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    pub(in crate::planner) fn least_ms(&self, pipelines: usize, workers: usize) -> f64 {
        let d = pipelines as f64;
        let rate = (self.rate * d).min(self.efficiency * workers as f64);
        let below = self.tails.iter().rev().find(|(known, _)| *known <= pipelines);
        let tail = below.map_or(f64::NEG_INFINITY, |(_, tail)| *tail);
        (self.batches + d * self.fill.max(0.0)) / rate + tail
    }
}
