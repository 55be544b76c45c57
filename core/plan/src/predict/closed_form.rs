//! A pipeline's step in closed form, with which the search screens compositions.

use super::rings::ring_factor;
use super::stage_sums::StageSums;
use super::stage_times::{StageTimes, period_ms};
use crate::cost::Runtime;
use crate::document::Recompute;
use crate::layout::SegmentRange;

/// Numbers of pipelines for which tails are stored (the last one: very many); others are interpolated.
const KNOWN: [usize; 6] = [1, 2, 3, 4, 8, 1 << 20];

/// Shortest period, in milliseconds: rates divide by it, and a profile may say that a stage takes no time at all. No stage is as fast.
const PERIOD_MIN_MS: f64 = 1e-12;

/// The step of a pipeline: `fill_ms + period_ms * n` for n micro-batches, and the tail by number of pipelines.
#[derive(Clone, Debug)]
pub(crate) struct ClosedForm {
    pub(crate) period_ms: f64,
    pub(crate) fill_ms: f64,
    /// Tails for the numbers of pipelines in [`KNOWN`], without latency.
    tails: [f64; KNOWN.len()],
    latency_ms: f64,
}

/// The time that a stage adds after the first stage's last backward, without latency. `lead`: how much sooner it ends its own last
/// backward.
fn tail_of(sums: &StageSums, range: SegmentRange, lead: f64, pipelines: usize, single_stage: bool) -> f64 {
    let own = ring_factor(pipelines) * sums.gradient_ms(range);
    let optimizer = sums.optimizer_ms(range);
    let tied = sums.tied_of_ms(range);
    if tied == 0.0 {
        return own + optimizer - lead;
    }
    let ends = if single_stage { 1 } else { 2 };
    let factor = match sums.runtime {
        Runtime::Overlapped => ring_factor(pipelines * ends),
        Runtime::Rendezvous => ring_factor(pipelines) + ring_factor(ends),
    };
    // The tied weight's ring waits for both ends, of which the first stage's is the later.
    (own - lead).max(0.0) + factor * tied + optimizer
}

/// Time of a single micro-batch through all stages and back. A stage recomputes what it did not keep while it waits for the gradient.
fn round_trip_ms(times: &[StageTimes]) -> f64 {
    let mut later_ms = 0.0f64;
    for (behind, stage) in times.iter().rev().enumerate() {
        let exposed_ms = match behind {
            0 => 0.0,
            _ => (stage.recompute_ms - later_ms).max(0.0),
        };
        later_ms += stage.forward_ms + stage.backward_ms + exposed_ms + 2.0 * stage.transfer_ms;
    }
    later_ms
}

impl ClosedForm {
    /// `in_flight[k]`: micro-batches that a stage with k stages behind it works on at a time.
    pub(crate) fn new(
        sums: &StageSums,
        stages: &[SegmentRange],
        policies: &[Recompute],
        in_flight: &[u32],
        latency_ms: f64,
    ) -> ClosedForm {
        let each = || stages.iter().copied().zip(policies.iter().copied());
        let times: Vec<StageTimes> = each().map(|(r, p)| sums.times(r, p)).collect();
        let period_ms = period_ms(sums.runtime, &times, in_flight).max(PERIOD_MIN_MS);
        let mut tails = [f64::NEG_INFINITY; KNOWN.len()];
        let mut lead = 0.0;
        for (range, policy) in each() {
            for (pipelines, tail) in KNOWN.into_iter().zip(&mut tails) {
                *tail = tail.max(tail_of(sums, range, lead, pipelines, stages.len() == 1));
            }
            lead += sums.backward_ms(range, policy) + sums.transfer_ms(range.end);
        }
        ClosedForm {
            period_ms,
            fill_ms: round_trip_ms(&times) - period_ms,
            tails,
            latency_ms,
        }
    }

    /// The numbers of pipelines for which bounds on tails are kept, without bounds yet.
    pub(crate) fn known_tails() -> Vec<(usize, f64)> {
        KNOWN[..KNOWN.len() - 1]
            .iter()
            .map(|known| (*known, f64::INFINITY))
            .collect()
    }

    /// The time after the last backward of the first stage, for this many pipelines.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    pub(crate) fn tail_ms(&self, pipelines: usize) -> f64 {
        let latency = 2.0 * self.latency_ms * (pipelines - 1) as f64;
        let above = KNOWN
            .partition_point(|known| *known < pipelines)
            .min(KNOWN.len() - 1);
        let tail = if KNOWN[above] <= pipelines || above == 0 {
            self.tails[above]
        } else {
            // Interpolate linearly in how often a ring sends each byte.
            let [low, high] = [above - 1, above].map(|i| ring_factor(KNOWN[i]));
            let part = (ring_factor(pipelines) - low) / (high - low);
            self.tails[above - 1] + (self.tails[above] - self.tails[above - 1]) * part
        };
        latency + tail
    }

    /// Tail of a stage for cuts that take rings into account: its lead counts the backwards before it.
    pub(crate) fn stage_tail_ms(sums: &StageSums, range: SegmentRange, pipelines: usize) -> f64 {
        let lead = sums.backward_before_ms(range.start);
        let single = range.start == 0 && range.end == sums.segments();
        tail_of(sums, range, lead, pipelines, single)
    }
}
