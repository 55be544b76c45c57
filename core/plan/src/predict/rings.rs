//! The part of a step after its last backwards: gradient rings over pipelines of unequal stages, and the optimizer.
//!
//! A segment's ring starts when every holder has its last gradient. Rings of different segments run at once, with bandwidth shares in
//! proportion to their bytes: each network interface is limited by its own bytes alone.

use crate::cost::{Costs, Runtime};
use crate::layout::SegmentRange;

/// Pipelines with equal cuts and equal shares, as members of rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingMembers<'a> {
    /// Segments of each stage.
    pub(crate) stages: &'a [SegmentRange],
    /// Number of workers of each; stage s is on worker s modulo this.
    pub(crate) workers: usize,
    /// When each stage has ended its last backward, milliseconds.
    pub(crate) ends_ms: &'a [f64],
    /// Number of members.
    pub(crate) count: usize,
}

impl RingMembers<'_> {
    /// The stages on the worker of this one.
    fn same_worker(&self, stage: usize) -> impl Iterator<Item = usize> + use<> {
        let workers = self.workers.max(1);
        (stage % workers..self.stages.len()).step_by(workers)
    }
}

/// The end of one stage's step, milliseconds from the step's start.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct StageEnd {
    /// Time at which its rings begin, in milliseconds.
    pub rings_from_ms: f64,
    /// Time at which its rings have ended, in milliseconds.
    pub rings_to_ms: f64,
    /// Time at which its optimizer begins, in milliseconds.
    pub optimizer_from_ms: f64,
    /// Time at which its optimizer has ended, in milliseconds.
    pub ms: f64,
}

/// `2 (holders - 1) / holders`: how many times a ring all-reduce sends each byte (Patarasuk and Yuan 2009).
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
pub(crate) fn ring_factor(holders: usize) -> f64 {
    if holders < 2 {
        0.0
    } else {
        2.0 * (holders - 1) as f64 / holders as f64
    }
}

/// Number of holders of a tied weight: both ends of each pipeline.
fn tied_holders(kinds: &[RingMembers]) -> usize {
    kinds.iter().map(|k| k.count * k.stages.len().min(2)).sum()
}

/// The ends of all stages of each kind of pipeline.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
pub(crate) fn ends(costs: &Costs, kinds: &[RingMembers]) -> Vec<Vec<StageEnd>> {
    let pipelines: usize = kinds.iter().map(|k| k.count).sum();
    let mut free: Vec<Vec<f64>> = kinds.iter().map(|k| k.ends_ms.to_vec()).collect();
    let tied_ms = costs.gradient_ms(costs.tied_parameters);
    let latency_ms = costs.device.latency_ms;
    let mut latency = 2.0 * latency_ms * pipelines.saturating_sub(1) as f64;
    let pairs = costs.runtime == Runtime::Rendezvous;
    if pairs && tied_ms > 0.0 {
        for ends in free.iter_mut().filter(|ends| ends.len() > 1) {
            let last = ends.len() - 1;
            let both = ends[0].max(ends[last]) + ring_factor(2) * tied_ms + 2.0 * latency_ms;
            (ends[0], ends[last]) = (both, both);
        }
    }
    let mut ends: Vec<Vec<StageEnd>> = free
        .iter()
        .map(|f| {
            let stage = |ms: &f64| StageEnd {
                rings_from_ms: *ms,
                ..StageEnd::default()
            };
            f.iter().map(stage).collect()
        })
        .collect();
    for (ready, milliseconds, held) in rings(costs, kinds, &free, tied_ms) {
        for (kind, stage) in held {
            let until = free[kind][stage].max(ready) + milliseconds;
            // A worker's stages share its network interface.
            for other in kinds[kind].same_worker(stage) {
                free[kind][other] = free[kind][other].max(until);
            }
        }
    }
    if !pairs && tied_ms > 0.0 {
        latency = latency.max(2.0 * latency_ms * (tied_holders(kinds) - 1) as f64);
    }
    for ((ends, free), kind) in ends.iter_mut().zip(free).zip(kinds) {
        for ((end, free), range) in ends.iter_mut().zip(free).zip(kind.stages) {
            let rings = free > end.rings_from_ms;
            end.rings_to_ms = if rings { free + latency } else { free };
            end.optimizer_from_ms = end.rings_to_ms;
            end.ms = end.rings_to_ms + costs.optimizer_ms(*range);
        }
        if kind.workers < kind.stages.len() {
            one_optimizer(costs, kind, ends);
        }
    }
    ends
}

/// A worker's optimizer follows the last of its stages' rings.
fn one_optimizer(costs: &Costs, kind: &RingMembers, ends: &mut [StageEnd]) {
    for worker in 0..kind.workers {
        let rings_to_ms = kind
            .same_worker(worker)
            .map(|s| ends[s].rings_to_ms)
            .fold(0.0, f64::max);
        let optimizer_ms: f64 = kind
            .same_worker(worker)
            .map(|s| costs.optimizer_ms(kind.stages[s]))
            .sum();
        for stage in kind.same_worker(worker) {
            ends[stage].optimizer_from_ms = rings_to_ms;
            ends[stage].ms = rings_to_ms + optimizer_ms;
        }
    }
}

/// A ring: when it can start, how long it keeps a network interface, the (kind, stage) pairs that take part.
type Ring = (f64, f64, Vec<(usize, usize)>);

/// All rings, in the order in which they can start.
fn rings(costs: &Costs, kinds: &[RingMembers], free: &[Vec<f64>], tied_ms: f64) -> Vec<Ring> {
    let pipelines: usize = kinds.iter().map(|k| k.count).sum();
    let ready = |held: &[(usize, usize)]| held.iter().map(|(k, s)| free[*k][*s]).fold(0.0, f64::max);
    let mut rings: Vec<Ring> = Vec::new();
    let mut segment = 0u32;
    while pipelines > 1 && (segment as usize) < costs.segments.len() {
        let mut held = Vec::with_capacity(kinds.len());
        let mut until = u32::MAX;
        for (k, kind) in kinds.iter().enumerate() {
            let stage = kind.stages.partition_point(|r| r.end <= segment);
            held.push((k, stage));
            until = until.min(kind.stages.get(stage).map_or(segment + 1, |r| r.end));
        }
        // Segments that are held by the same workers count as one ring.
        let parameters = costs.segments[segment as usize..until as usize]
            .iter()
            .map(|s| s.parameters)
            .sum();
        let milliseconds = ring_factor(pipelines) * costs.gradient_ms(parameters);
        rings.push((ready(&held), milliseconds, held));
        segment = until;
    }
    let both_ends = || -> Vec<(usize, usize)> {
        let of = |(k, kind): (usize, &RingMembers)| {
            let last = kind.stages.len().saturating_sub(1);
            [(k, 0), (k, last)].into_iter().take(1 + usize::from(last > 0))
        };
        kinds.iter().enumerate().flat_map(of).collect()
    };
    let holders = match costs.runtime {
        Runtime::Overlapped => tied_holders(kinds),
        Runtime::Rendezvous => pipelines,
    };
    if tied_ms > 0.0 && holders > 1 {
        let held = both_ends();
        rings.push((ready(&held), ring_factor(holders) * tied_ms, held));
    }
    rings.sort_by(|a, b| a.0.total_cmp(&b.0));
    rings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Device;
    use varuna_model::{Transformer, gpt2};

    fn step_ms(costs: &Costs, groups: &[RingMembers]) -> f64 {
        let ends = ends(costs, groups);
        ends.iter().flatten().map(|end| end.ms).fold(0.0, f64::max)
    }

    fn costs(tied: bool) -> Costs {
        let gpt = Transformer {
            layers: 4,
            hidden_size: 256,
            sequence_length: 64,
            vocabulary_size: 1000,
            tied_head: tied,
            ..gpt2::SMALL
        };
        Costs::estimate(&gpt.spec(), Device::CPU_CORE)
    }

    fn cuts(ends: &[u32]) -> Vec<SegmentRange> {
        let mut start = 0;
        let mut cut = |end: &u32| {
            let range = SegmentRange { start, end: *end };
            start = *end;
            range
        };
        ends.iter().map(&mut cut).collect()
    }

    #[test]
    fn one_pipeline_without_a_tied_weight_has_no_ring() {
        let stages = cuts(&[5, 10]);
        let kinds = [RingMembers {
            stages: &stages,
            workers: 2,
            ends_ms: &[7.0, 5.0],
            count: 1,
        }];
        assert!((step_ms(&costs(false), &kinds) - 7.0).abs() < 1e-9);
        assert!(
            step_ms(&costs(true), &kinds) > 7.0,
            "a tied weight has two holders even so"
        );
    }

    #[test]
    fn an_equal_grid_pays_the_ring_of_its_stages() {
        let costs = costs(false);
        let stages = cuts(&[5, 10]);
        let kinds = [RingMembers {
            stages: &stages,
            workers: 2,
            ends_ms: &[7.0, 7.0],
            count: 4,
        }];
        let ring = stages.iter().map(|r| costs.ring_ms(*r, 4)).fold(0.0, f64::max);
        assert!((step_ms(&costs, &kinds) - 7.0 - ring).abs() < 1e-9);
    }

    #[test]
    fn a_ring_over_unequal_cuts_waits_for_the_last_holder() {
        let costs = costs(false);
        let (deep, flat) = (cuts(&[3, 7, 10]), cuts(&[5, 10]));
        let of = |late: f64| {
            let kinds = [
                RingMembers {
                    stages: &deep,
                    workers: 3,
                    ends_ms: &[5.0, 5.0, 5.0],
                    count: 1,
                },
                RingMembers {
                    stages: &flat,
                    workers: 2,
                    ends_ms: &[5.0, 5.0 + late],
                    count: 1,
                },
            ];
            ends(&costs, &kinds)
        };
        let (even, late) = (of(0.0), of(3.0));
        // Only the first stage of the deep pipeline shares no segment with the late stage.
        assert!((even[0][0].ms - late[0][0].ms).abs() < 1e-9);
        assert!(late[0][2].ms > even[0][2].ms + 2.9);
    }
}
