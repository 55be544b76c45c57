//! The costs of any range of segments, looked up in prefix sums, for one micro-batch size.

use super::stage_times::{StageTimes, stage_period_ms};
use crate::cost::{Costs, Runtime, SegmentCost, SegmentMemory, packing_bytes, working_bytes};
use crate::document::Recompute;
use crate::layout::SegmentRange;
use crate::partition::StageCost;

/// The costs of stages at one micro-batch size, on workers of one speed. Times in milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct StageSums {
    /// `forward[s]`: the forward time of segments `0..s`. The other sums are indexed in the same way.
    forward: Vec<f64>,
    backward: Vec<f64>,
    optimizer: Vec<f64>,
    /// Time to send the gradients once over a link.
    gradient: Vec<f64>,
    parameters: Vec<u64>,
    /// By policy: what is kept of a forward, what is recomputed, and how long that takes.
    kept: [Vec<u64>; 2],
    working: [Vec<u64>; 2],
    again: [Vec<f64>; 2],
    /// Transfer across the cut before each segment; 0 at both ends.
    transfer: Vec<f64>,
    /// Transfer across the cheapest cut from there on, up to the one before the last segment.
    least_transfer: Vec<f64>,
    input: Vec<u64>,
    /// Temporary memory of each segment, if no or all segments are recomputed, and if some are.
    taken: [Vec<SegmentMemory>; 2],
    /// Time to send the tied weight's gradient once over a link.
    pub(crate) tied_ms: f64,
    tied: u64,
    pub(crate) runtime: Runtime,
    /// The policy that recomputes least among those of the stages.
    lightest: Recompute,
    state_bytes: u64,
    attention: AttentionMemory,
    /// Memory that the optimizer needs for each segment's largest matrix, in bytes; empty if it treats none as a matrix.
    matrices: Vec<u64>,
}

/// Memory that the attention of a stage keeps once for all of its blocks, in bytes.
#[derive(Clone, Debug)]
struct AttentionMemory {
    /// Number of segments with attention among `0..s`.
    segments: Vec<u64>,
    /// Bytes for one micro-batch.
    packing: u64,
    /// Bytes for all micro-batches together.
    mask: u64,
}

impl AttentionMemory {
    fn new(costs: &Costs, samples: u64) -> AttentionMemory {
        let attends = costs.segments.iter().map(|s| u64::from(s.kind.attends()));
        AttentionMemory {
            segments: sums(0, attends),
            packing: costs.packing_bytes * samples,
            mask: costs.mask_bytes,
        }
    }

    /// Bytes of the segments `start..end`: for one micro-batch, and for all together.
    fn bytes(&self, start: usize, end: usize) -> (u64, u64) {
        let attends = u64::from(self.segments[end] > self.segments[start]);
        (attends * self.packing, attends * self.mask)
    }
}

/// For each position, the minimum of its value and all that follow, except the last.
fn suffix_minima(values: &[f64]) -> Vec<f64> {
    let mut least = values.to_vec();
    for at in (0..values.len().saturating_sub(2)).rev() {
        least[at] = least[at].min(least[at + 1]);
    }
    least
}

/// Memory that the optimizer needs for each segment's largest matrix; nothing if it treats none as a matrix.
fn matrices(costs: &Costs) -> Vec<u64> {
    let step = costs.parameter.matrix_step;
    let of = |s: &SegmentCost| s.matrix_elements_max() * step;
    let segments = costs.segments.iter().filter(|_| step > 0);
    segments.map(of).collect()
}

fn sums<T: Copy + std::ops::Add<Output = T>>(zero: T, each: impl Iterator<Item = T>) -> Vec<T> {
    let mut sum = zero;
    let rest = each.map(|x| {
        sum = sum + x;
        sum
    });
    std::iter::once(zero).chain(rest).collect()
}

impl StageSums {
    pub(crate) fn new(costs: &Costs, micro: u32, lightest: Recompute, slowest: f64) -> StageSums {
        let n = costs.layout().segments;
        let one = |s: u32| SegmentRange { start: s, end: s + 1 };
        let of = |f: &dyn Fn(SegmentRange) -> f64| sums(0.0, (0..n).map(|s| f(one(s))));
        let samples = u64::from(micro);
        let mut transfer: Vec<f64> = (0..n).map(|s| costs.transfer_ms(s, micro)).collect();
        transfer[0] = 0.0;
        transfer.push(0.0);
        let bytes = |f: &dyn Fn(&SegmentCost) -> u64| sums(0, costs.segments.iter().map(|s| f(s) * samples));
        let working = |policy| {
            bytes(&|s| {
                if s.is_recomputed(policy) { s.saved_bytes } else { 0 }
            })
        };
        let again = |policy| of(&|r| costs.recompute_ms(r, micro, policy) / slowest);
        let both = [Recompute::Selective, Recompute::Full];
        StageSums {
            forward: of(&|r| costs.forward_ms(r, micro) / slowest),
            backward: of(&|r| costs.backward_ms(r, micro) / slowest),
            optimizer: of(&|r| costs.optimizer_ms(r)),
            gradient: sums(
                0.0,
                costs.segments.iter().map(|s| costs.gradient_ms(s.parameters)),
            ),
            parameters: sums(0, costs.segments.iter().map(|s| s.parameters)),
            kept: [bytes(&|s| s.saved_bytes), bytes(&SegmentCost::kept_selectively)],
            working: both.map(working),
            again: both.map(again),
            least_transfer: suffix_minima(&transfer),
            transfer,
            taken: [Recompute::None, Recompute::Selective]
                .map(|policy| costs.segments.iter().map(|s| s.taken(samples, policy)).collect()),
            input: costs.segments.iter().map(|s| s.input_bytes * samples).collect(),
            tied_ms: costs.gradient_ms(costs.tied_parameters),
            tied: costs.tied_parameters,
            runtime: costs.runtime,
            lightest,
            state_bytes: costs.parameter.resident,
            attention: AttentionMemory::new(costs, samples),
            matrices: matrices(costs),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "segment counts are u32")]
    pub(crate) fn segments(&self) -> u32 {
        self.input.len() as u32
    }

    fn of(sums: &[f64], range: SegmentRange) -> f64 {
        sums[range.end as usize] - sums[range.start as usize]
    }

    fn is_end(&self, range: SegmentRange) -> bool {
        range.start == 0 || range.end == self.segments()
    }

    /// Forward, backward and, if the stage is not the last, recompute, in milliseconds.
    pub(crate) fn work_ms(&self, range: SegmentRange, policy: Recompute) -> f64 {
        Self::of(&self.forward, range) + self.backward_ms(range, policy)
    }

    /// Recompute time of a stage for each micro-batch.
    fn again_ms(&self, range: SegmentRange, policy: Recompute) -> f64 {
        match policy {
            Recompute::None => 0.0,
            Recompute::Selective => Self::of(&self.again[0], range),
            Recompute::Full => Self::of(&self.again[1], range),
        }
    }

    /// Backward with its recompute.
    pub(crate) fn backward_ms(&self, range: SegmentRange, policy: Recompute) -> f64 {
        let last = range.end >= self.segments();
        Self::of(&self.backward, range) + if last { 0.0 } else { self.again_ms(range, policy) }
    }

    /// Backward time of all segments before this one.
    pub(crate) fn backward_before_ms(&self, segment: u32) -> f64 {
        let before = SegmentRange {
            start: 0,
            end: segment,
        };
        self.backward_ms(before, self.lightest)
    }

    /// Time that a stage needs for a micro-batch in the steady state: its work and the transfers that it waits for, or the network
    /// interface if that is slower.
    pub(crate) fn stage_ms(&self, range: SegmentRange, policy: Recompute) -> f64 {
        let transfers = self.transfer[range.start as usize] + self.transfer[range.end as usize];
        stage_period_ms(self.runtime, self.work_ms(range, policy), transfers)
    }

    /// The same, and a lower bound on the time of any stage that begins here and ends here or later: boundaries may differ in size. Only
    /// the last stage has the cut after the last segment.
    pub(crate) fn stage_cost(&self, range: SegmentRange, policy: Recompute) -> StageCost {
        let (work_ms, before) = (self.work_ms(range, policy), self.transfer[range.start as usize]);
        let of = |after: f64| stage_period_ms(self.runtime, work_ms, before + after);
        StageCost {
            own: of(self.transfer[range.end as usize]),
            least: of(self.least_transfer[range.end as usize]),
        }
    }

    /// A transfer across the cut before a segment.
    pub(crate) fn transfer_ms(&self, segment: u32) -> f64 {
        self.transfer[segment as usize]
    }

    /// Optimizer of a stage.
    pub(crate) fn optimizer_ms(&self, range: SegmentRange) -> f64 {
        Self::of(&self.optimizer, range)
    }

    /// Time to send the gradients of a stage's own parameters once over a link.
    pub(crate) fn gradient_ms(&self, range: SegmentRange) -> f64 {
        Self::of(&self.gradient, range)
    }

    /// Time to send the tied weight's gradients once over a link, if the stage holds it.
    pub(crate) fn tied_of_ms(&self, range: SegmentRange) -> f64 {
        if self.is_end(range) { self.tied_ms } else { 0.0 }
    }

    /// Memory of a stage that keeps `stash` micro-batches: [`Costs::memory_bytes`] in one step.
    pub(crate) fn memory_bytes(&self, range: SegmentRange, stash: u32, policy: Recompute) -> u64 {
        let (start, end) = (range.start as usize, range.end as usize);
        let sum = |of: &[u64]| of[end] - of[start];
        let (kept, recomputed) = match policy {
            Recompute::None => (sum(&self.kept[0]), 0),
            Recompute::Selective => (sum(&self.kept[1]), sum(&self.working[0])),
            Recompute::Full => (0, sum(&self.working[1])),
        };
        let taken = &self.taken[usize::from(policy == Recompute::Selective)][start..end];
        let working = working_bytes(taken.iter().rev().copied());
        let tied = if self.is_end(range) { self.tied } else { 0 };
        let parameters = self.parameters[end] - self.parameters[start] + tied;
        let (packing, mask) = self.attention.bytes(start, end);
        let matrices = self.matrices.get(start..end).unwrap_or_default();
        let optimizer = matrices.iter().copied().max().unwrap_or(0);
        let stashed = u64::from(stash).saturating_mul(self.input[start] + kept);
        let packing = packing_bytes(packing, stash, policy);
        let kept = stashed.saturating_add(recomputed).saturating_add(packing);
        (parameters * self.state_bytes + mask).saturating_add(kept.saturating_add(working).max(optimizer))
    }

    /// [`StageTimes::new`] in one step.
    pub(crate) fn times(&self, range: SegmentRange, policy: Recompute) -> StageTimes {
        StageTimes {
            forward_ms: Self::of(&self.forward, range),
            backward_ms: Self::of(&self.backward, range),
            recompute_ms: self.again_ms(range, policy),
            transfer_ms: self.transfer[range.start as usize],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Device, SegmentKind};
    use crate::moments::Moments;
    use crate::partition::partition_all;
    use proptest::prelude::*;
    use varuna_model::{Transformer, gpt2};

    #[test]
    fn sums_say_what_the_costs_say() {
        let gpt = Transformer {
            layers: 5,
            hidden_size: 64,
            sequence_length: 32,
            vocabulary_size: 300,
            ..gpt2::SMALL
        };
        let plain = Costs::estimate(&gpt.spec(), Device::CPU_CORE);
        let mut own = plain.clone();
        for (i, segment) in (1..).zip(&mut own.segments) {
            segment.kind = SegmentKind::Block;
            segment.working_bytes /= i;
        }
        let mut costs = plain;
        (costs.packing_bytes, costs.mask_bytes) = (1000, 77_777);
        let mut muon = costs.clone();
        muon.parameter = muon.parameter.keeping(Moments::Muon);
        for costs in [costs, muon, own] {
            assert_sums_match(&costs);
        }
    }

    #[test]
    fn memory_that_no_number_holds_is_the_largest_number() {
        let mut costs = Costs::estimate(&gpt2::SMALL.spec(), Device::CPU_CORE);
        costs.segments[1].saved_bytes = 1 << 50;
        let stage = SegmentRange { start: 1, end: 2 };
        let sums = StageSums::new(&costs, 32, Recompute::None, 1.0);
        let stash = 1 << 20;
        assert_eq!(sums.memory_bytes(stage, stash, Recompute::None), u64::MAX);
        assert_eq!(costs.memory_bytes(stage, stash, 32, Recompute::None), u64::MAX);
    }

    fn assert_sums_match(costs: &Costs) {
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
            let sums = StageSums::new(costs, 3, recompute, 1.0);
            for (start, end) in [(0, 12), (0, 3), (2, 5), (11, 12)] {
                let range = SegmentRange { start, end };
                let again = if end < 12 {
                    costs.recompute_ms(range, 3, recompute)
                } else {
                    0.0
                };
                let work = costs.forward_ms(range, 3) + costs.backward_ms(range, 3) + again;
                assert!((sums.work_ms(range, recompute) - work).abs() < 1e-9);
                for stash in [0, 4] {
                    assert_eq!(
                        sums.memory_bytes(range, stash, recompute),
                        costs.memory_bytes(range, stash, 3, recompute)
                    );
                }
                let all = sums.gradient_ms(range) + sums.tied_of_ms(range);
                assert!((all - costs.gradient_ms(costs.parameters(range))).abs() < 1e-9);
            }
        }
    }

    proptest! {
        #[test]
        fn cuts_over_boundaries_of_any_size_are_the_best_there_are(
            sizes in prop::collection::vec((1_u64..40, 1_u64..40), 2..9), depth in 1_u32..5, rendezvous: bool
        ) {
            let model = Transformer { layers: 1, hidden_size: 64, ..gpt2::SMALL };
            let mut costs = Costs::estimate(&model.spec(), Device::CPU_CORE);
            let segment = |(work, input): &(u64, u64)| SegmentCost {
                kind: SegmentKind::Block,
                forward_ms: f64::from(u32::try_from(*work).unwrap()),
                backward_ms: 0.0,
                input_bytes: input * 1_000_000,
                ..costs.segments[1].clone()
            };
            costs.segments = sizes.iter().map(segment).collect();
            if rendezvous {
                costs.runtime = Runtime::Rendezvous;
            }
            let n = u32::try_from(sizes.len()).unwrap();
            prop_assume!(depth <= n);
            let sums = StageSums::new(&costs, 1, Recompute::None, 1.0);
            let of = |start, end| sums.stage_ms(SegmentRange { start, end }, Recompute::None);
            let cuts = partition_all(n, depth, |r, _| Some(sums.stage_cost(r, Recompute::None)));
            let stages = cuts.stages(depth).unwrap();
            let ours = stages.iter().map(|r| of(r.start, r.end)).fold(0.0, f64::max);
            let best = brute(&of, 0, n, depth);
            prop_assert!(ours <= best * (1.0 + 1e-9), "{ours}, {best}: {stages:?}");
        }
    }

    fn brute(of: &dyn Fn(u32, u32) -> f64, from: u32, to: u32, stages: u32) -> f64 {
        if stages == 1 {
            return of(from, to);
        }
        let cuts = from + 1..=to + 1 - stages;
        cuts.map(|cut| of(from, cut).max(brute(of, cut, to, stages - 1)))
            .fold(f64::INFINITY, f64::min)
    }
}
