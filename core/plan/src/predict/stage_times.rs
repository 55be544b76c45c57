//! The times of one stage for one micro-batch, and the time per micro-batch to which a pipeline of such stages settles.

use super::work::StageWork;
use crate::cost::{Costs, Runtime};

/// Times of one stage for one micro-batch, milliseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct StageTimes {
    /// Forward.
    pub(crate) forward_ms: f64,
    /// Backward without recompute.
    pub(crate) backward_ms: f64,
    /// Recompute of what was not kept.
    pub(crate) recompute_ms: f64,
    /// A transfer between the previous stage and this one, either way (0 for the first).
    pub(crate) transfer_ms: f64,
}

impl StageTimes {
    pub(crate) fn new(costs: &Costs, stage: StageWork, micro_batch_size: u32) -> StageTimes {
        let (range, m, speed) = (stage.segments, micro_batch_size, stage.speed);
        StageTimes {
            forward_ms: costs.forward_ms(range, m) / speed,
            backward_ms: costs.backward_ms(range, m) / speed,
            recompute_ms: costs.recompute_ms(range, m, stage.recompute) / speed,
            transfer_ms: match range.start {
                0 => 0.0,
                start => costs.transfer_ms(start, m),
            },
        }
    }

    /// Forward, backward and, if the stage is not the last, recompute: on the last stage each backward directly follows its forward.
    /// Milliseconds.
    pub(crate) fn work_ms(&self, is_last: bool) -> f64 {
        let recompute_ms = if is_last { 0.0 } else { self.recompute_ms };
        self.forward_ms + (self.backward_ms + recompute_ms)
    }
}

/// Time that a stage needs for a micro-batch in the steady state, milliseconds: its work and the transfers on both of its sides that it
/// waits for, or the network interface if that is slower.
pub(crate) fn stage_period_ms(runtime: Runtime, work_ms: f64, transfers_ms: f64) -> f64 {
    match runtime {
        Runtime::Overlapped => work_ms.max(transfers_ms),
        Runtime::Rendezvous => work_ms + 2.0 * transfers_ms,
    }
}

/// The time between two micro-batches in a pipeline's steady state, milliseconds: that of the slowest stage, or of a round trip to the last
/// stage and back, during which a stage with k stages behind it keeps `in_flight[k]` micro-batches (Little's law).
pub(crate) fn period_ms(runtime: Runtime, times: &[StageTimes], in_flight: &[u32]) -> f64 {
    let last = times.len().saturating_sub(1);
    let mut period_ms = 0.0f64;
    for (s, stage) in times.iter().enumerate() {
        let transfers_ms = stage.transfer_ms + times.get(s + 1).map_or(0.0, |next| next.transfer_ms);
        period_ms = period_ms.max(stage_period_ms(runtime, stage.work_ms(s == last), transfers_ms));
    }
    if runtime == Runtime::Overlapped {
        let mut round_trip_ms = 0.0;
        for ((s, stage), in_flight) in times.iter().enumerate().rev().zip(in_flight) {
            round_trip_ms += stage.work_ms(s == last);
            period_ms = period_ms.max(round_trip_ms / f64::from((*in_flight).max(1)));
            round_trip_ms += 2.0 * stage.transfer_ms;
        }
    }
    period_ms
}
