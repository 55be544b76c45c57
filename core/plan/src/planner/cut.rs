//! How the model is cut for one depth, and the closed form of such a pipeline's step.

use super::tables::Tables;
use crate::cost::Runtime;
use crate::document::Recompute;
use crate::layout::SegmentRange;
use crate::sync::ring_factor;

/// Numbers of pipelines for which tails are kept (the last: very many); between them they are interpolated.
const KNOWN: [usize; 6] = [1, 2, 3, 4, 8, 1 << 20];

/// A cut: `fill + period * n` for n micro-batches, and what follows by number of pipelines.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    pub(super) stages: Vec<SegmentRange>,
    /// What each stage keeps of a forward.
    pub(super) policies: Vec<Recompute>,
    pub(super) period_ms: f64,
    pub(super) fill_ms: f64,
    /// For the numbers of pipelines of [`KNOWN`], without latency.
    tails: [f64; KNOWN.len()],
    latency_ms: f64,
}

/// What a stage adds after the first stage's last backward, without latency. `lead`: how much sooner it ends its own.
fn tail_of(tables: &Tables, range: SegmentRange, lead: f64, pipelines: usize, single_stage: bool) -> f64 {
    let own = ring_factor(pipelines) * tables.gradient_ms(range);
    let optimizer = tables.optimizer_ms(range);
    let tied = tables.tied_of_ms(range);
    if tied == 0.0 {
        return own + optimizer - lead;
    }
    let ends = if single_stage { 1 } else { 2 };
    let factor = match tables.runtime {
        Runtime::Overlapped => ring_factor(pipelines * ends),
        Runtime::Rendezvous => ring_factor(pipelines) + ring_factor(ends),
    };
    // The tied ring waits for both ends, the first stage's being the later.
    (own - lead).max(0.0) + factor * tied + optimizer
}

impl Cut {
    /// `in_flight[k]`: micro-batches that a stage with k stages behind it works on at a time.
    pub(super) fn new(
        tables: &Tables,
        stages: Vec<SegmentRange>,
        policies: Vec<Recompute>,
        in_flight: &[u32],
        latency_ms: f64,
    ) -> Cut {
        let each = || stages.iter().copied().zip(policies.iter().copied());
        let mut period_ms = each().map(|(r, p)| tables.stage_ms(r, p)).fold(0.0, f64::max);
        if tables.runtime == Runtime::Overlapped {
            // A micro-batch goes to the last stage and back: with so many on the way there is one each so often.
            let mut round_trip = 0.0;
            for ((range, policy), in_flight) in each().rev().zip(in_flight) {
                round_trip += tables.work_ms(range, policy);
                period_ms = period_ms.max(round_trip / f64::from((*in_flight).max(1)));
                round_trip += 2.0 * tables.transfer_ms(range.start);
            }
        }
        let work: f64 = each().map(|(r, p)| tables.work_ms(r, p)).sum();
        let transfers: f64 = stages.iter().map(|r| 2.0 * tables.transfer_ms(r.start)).sum();
        let mut tails = [f64::NEG_INFINITY; KNOWN.len()];
        let mut lead = 0.0;
        for (range, policy) in each() {
            for (pipelines, tail) in KNOWN.into_iter().zip(&mut tails) {
                *tail = tail.max(tail_of(tables, range, lead, pipelines, stages.len() == 1));
            }
            lead += tables.backward_ms(range, policy) + tables.transfer_ms(range.end);
        }
        Cut {
            period_ms,
            fill_ms: work + transfers - period_ms,
            stages,
            policies,
            tails,
            latency_ms,
        }
    }

    /// Numbers of pipelines that bounds on tails are kept for, without bounds yet.
    pub(super) fn known_tails() -> Vec<(usize, f64)> {
        KNOWN[..KNOWN.len() - 1]
            .iter()
            .map(|known| (*known, f64::INFINITY))
            .collect()
    }

    /// What follows the last backward of the first stage, for so many pipelines.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    pub(super) fn tail_ms(&self, pipelines: usize) -> f64 {
        let latency = 2.0 * self.latency_ms * (pipelines - 1) as f64;
        let above = KNOWN
            .partition_point(|known| *known < pipelines)
            .min(KNOWN.len() - 1);
        let tail = if KNOWN[above] <= pipelines || above == 0 {
            self.tails[above]
        } else {
            // Linear in how often a ring sends each byte.
            let [low, high] = [above - 1, above].map(|i| ring_factor(KNOWN[i]));
            let part = (ring_factor(pipelines) - low) / (high - low);
            self.tails[above - 1] + (self.tails[above] - self.tails[above - 1]) * part
        };
        latency + tail
    }

    /// Tail of a stage for [`crate::partition::Aware`]: its lead counts the backwards before it.
    pub(super) fn stage_tail_ms(tables: &Tables, range: SegmentRange, pipelines: usize) -> f64 {
        let lead = tables.backward_before_ms(range.start);
        let single = range.start == 0 && range.end == tables.segments();
        tail_of(tables, range, lead, pipelines, single)
    }
}
