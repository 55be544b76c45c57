//! Runs one pipeline's step as the runtime would.

use super::rendezvous::rendezvous;
use super::simulation::{Simulated, Span, run};
use super::stage_times::StageTimes;
use crate::cost::Runtime;
use crate::document::ScheduleSpec;
use crate::schedule::lists;

/// Runs `micro_batches` through stages with these times and schedules. Every duration is passed through `noise(stage, ms)`, and every span
/// to `record`. Under rendezvous a late stage makes all others wait, so each is late for the whole step.
pub(crate) fn run_pipeline(
    runtime: Runtime,
    specs: &[ScheduleSpec],
    times: &[StageTimes],
    micro_batches: u32,
    mut noise: impl FnMut(usize, f64) -> f64,
    record: impl FnMut(Span),
) -> Simulated {
    match runtime {
        Runtime::Overlapped => run(&lists(specs, micro_batches), times, micro_batches, noise, record),
        Runtime::Rendezvous => {
            let last = times.len().saturating_sub(1);
            // A stage's recompute is part of its backward.
            let late = times.iter().enumerate().map(|(s, t)| StageTimes {
                forward_ms: noise(s, t.forward_ms),
                backward_ms: noise(s, t.backward_ms + if s == last { 0.0 } else { t.recompute_ms }),
                recompute_ms: 0.0,
                transfer_ms: noise(s, t.transfer_ms),
            });
            rendezvous(&late.collect::<Vec<_>>(), micro_batches, record)
        }
    }
}
