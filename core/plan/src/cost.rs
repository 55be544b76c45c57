//! The costs of segments: compute, bytes and memory, measured or estimated.

mod chunked;
pub(crate) mod halves;
mod host;
mod parameter_bytes;
mod scores;
mod segment;
mod working;

pub use chunked::Chunked;
pub use host::Host;
pub use parameter_bytes::ParameterBytes;
pub use scores::ScoreMemory;
pub use segment::SegmentCost;
pub(crate) use working::{SegmentMemory, packing_bytes, working_bytes};

use crate::document::Recompute;
use crate::layout::{Layout, SegmentRange};
use serde::{Deserialize, Serialize};
pub use varuna_model::SegmentKind;
use varuna_model::{ModelSpec, SegmentSpec};

/// Bytes of one input token of the first segment: a 64-bit integer.
const TOKEN_BYTES: u64 = 8;

/// Bytes of a single-precision element. Gradients within a segment are counted at this size, whatever precision the training computes in.
const SINGLE_BYTES: u64 = 4;

fn four_bytes() -> u64 {
    4
}

/// How the runtime moves tensors between stages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Runtime {
    /// Sends overlap with compute, one full-duplex network interface a worker; a tied weight has one ring over all of its
    /// holders. This project's worker.
    #[default]
    Overlapped,
    /// Sender and receiver wait for each other, in program order, and nothing overlaps; a tied weight is summed between
    /// the two ends of each pipeline before the ring over pipelines. Runtimes of blocking sends (`docs/internals/planner.md`).
    Rendezvous,
}

/// The two constants that make a profile agree with measured steps.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Calibration {
    /// Factor on all compute times of the profile.
    pub compute: f64,
    /// Factor on the transfer of a boundary tensor (not on the gradient ring).
    pub transfer: f64,
}

impl Default for Calibration {
    fn default() -> Self {
        Calibration {
            compute: 1.0,
            transfer: 1.0,
        }
    }
}

/// A device and its links, for estimates.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Useful floating-point operations a second.
    pub flops_per_s: f64,
    /// Overhead of one instruction on one segment, milliseconds.
    pub overhead_ms: f64,
    /// Link latency, milliseconds.
    pub latency_ms: f64,
    /// Link bandwidth, bytes a second.
    pub bytes_per_s: f64,
    /// Bytes of one element of an activation, or of its gradient, on the wire and in the stash.
    #[serde(default = "four_bytes")]
    pub element_bytes: u64,
    /// Bytes of single-precision logits that exist at once. The worker uses the same figures (`worker/torch/src/layers.rs`).
    #[serde(default = "gpu_logits")]
    pub logits_bytes_max: u64,
}

/// Default of [`Device::logits_bytes_max`]: that of a GPU.
fn gpu_logits() -> u64 {
    Device::GPU_LOGITS
}

impl Device {
    /// [`Device::logits_bytes_max`] of a GPU.
    pub const GPU_LOGITS: u64 = 512 << 20;
    /// One core of a server CPU and a loopback or 10 Gb/s link: for estimates on machines without an accelerator.
    pub const CPU_CORE: Device = Device {
        logits_bytes_max: 64 << 20,
        flops_per_s: 4.0e10,
        overhead_ms: 0.05,
        latency_ms: 0.1,
        bytes_per_s: 1.0e9,
        element_bytes: 4,
    };
}

/// All costs of a model on a kind of device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Costs {
    /// Segments in order.
    pub segments: Vec<SegmentCost>,
    /// Parameters of the tied weight, 0 where nothing is tied.
    pub tied_parameters: u64,
    /// Memory per parameter.
    #[serde(default)]
    pub parameter: ParameterBytes,
    /// Device and links.
    pub device: Device,
    /// False while this is an analytic estimate.
    pub calibrated: bool,
    /// How tensors are sent.
    #[serde(default)]
    pub runtime: Runtime,
    /// Correction factors that make the times agree with measured steps.
    #[serde(default)]
    pub calibration: Calibration,
    /// Bytes that the attention of a stage keeps for one sample, shared by all of its blocks: which tokens see each other if a sample holds
    /// several documents.
    #[serde(default)]
    pub packing_bytes: u64,
    /// Bytes that the attention of a stage keeps once for all of its blocks and samples: the mask of a sliding window
    /// ([`Transformer::mask_elements`](varuna_model::Transformer::mask_elements)).
    #[serde(default)]
    pub mask_bytes: u64,
    /// Bytes per second at which rings send, if measured; otherwise the link's.
    #[serde(default)]
    pub ring_bytes_per_s: Option<f64>,
    /// Set if the workers of a node share its processor cores.
    #[serde(default)]
    pub host: Option<Host>,
}

/// The segment's share of an instruction's overhead. The two halves of a block share the overhead of one instruction.
fn overhead(kind: SegmentKind) -> f64 {
    match kind {
        SegmentKind::Attention | SegmentKind::Mlp => 0.5,
        SegmentKind::Embedding | SegmentKind::Block | SegmentKind::Head => 1.0,
    }
}

#[expect(clippy::cast_precision_loss, reason = "costs are estimates")]
impl Costs {
    /// An analytic estimate: each segment's operations at the device's speed, and the device's overhead for each instruction.
    #[must_use]
    pub fn estimate(model: &ModelSpec, device: Device) -> Costs {
        let ms = |flops: f64| flops / device.flops_per_s * 1e3;
        let segment = |spec: &SegmentSpec| SegmentCost {
            kind: spec.kind,
            forward_ms: ms(spec.forward_flops),
            backward_ms: ms(spec.backward_flops),
            forward_fixed_ms: device.overhead_ms * overhead(spec.kind),
            backward_fixed_ms: 2.0 * device.overhead_ms * overhead(spec.kind),
            parameters: spec.parameters,
            saved_bytes: spec.saved_elements * device.element_bytes,
            working_bytes: (spec.working_elements - chunked::elements(spec)) * SINGLE_BYTES,
            forward_bytes: 0,
            chunked: Chunked::of_segment(spec, &device),
            input_bytes: match spec.kind {
                SegmentKind::Embedding => spec.input_elements * TOKEN_BYTES,
                _ => spec.input_elements * device.element_bytes,
            },
            optimizer_ms: 0.0,
        };
        Costs {
            segments: model.segments.iter().map(segment).collect(),
            tied_parameters: model.tied_parameters,
            parameter: ParameterBytes::computing_in(device.element_bytes),
            device,
            calibrated: false,
            runtime: Runtime::Overlapped,
            calibration: Calibration::default(),
            packing_bytes: 0,
            mask_bytes: 0,
            ring_bytes_per_s: None,
            host: None,
        }
    }

    /// The layout of units that these costs describe.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "segment counts are small")]
    pub fn layout(&self) -> Layout {
        Layout::new(self.segments.len() as u32, self.tied_parameters > 0)
    }

    fn of(&self, range: SegmentRange) -> &[SegmentCost] {
        &self.segments[range.start as usize..range.end as usize]
    }

    /// Forward of a micro-batch of `samples` through a stage, milliseconds.
    #[must_use]
    pub fn forward_ms(&self, range: SegmentRange, samples: u32) -> f64 {
        let of = |s: &SegmentCost| s.forward_fixed_ms + s.forward_ms * f64::from(samples);
        self.of(range).iter().map(of).sum::<f64>() * self.calibration.compute
    }

    /// Backward of a micro-batch of `samples` through a stage, milliseconds.
    #[must_use]
    pub fn backward_ms(&self, range: SegmentRange, samples: u32) -> f64 {
        let of = |s: &SegmentCost| s.backward_fixed_ms + s.backward_ms * f64::from(samples);
        self.of(range).iter().map(of).sum::<f64>() * self.calibration.compute
    }

    /// Optimizer of a stage, milliseconds.
    #[must_use]
    pub fn optimizer_ms(&self, range: SegmentRange) -> f64 {
        self.of(range).iter().map(|s| s.optimizer_ms).sum()
    }

    /// Parameters that a stage holds, the tied weight counted where it is held.
    #[must_use]
    pub fn parameters(&self, range: SegmentRange) -> u64 {
        let ends = range.start == 0 || range.end as usize == self.segments.len();
        let tied = if ends { self.tied_parameters } else { 0 };
        self.of(range).iter().map(|s| s.parameters).sum::<u64>() + tied
    }

    /// State of a stage: parameters, moments and gradients, bytes.
    #[must_use]
    pub fn state_bytes(&self, range: SegmentRange) -> u64 {
        self.parameters(range) * self.parameter.resident
    }

    /// Memory that a stage needs, in bytes: its state, what attention keeps once, and the larger of two peaks. One is at the beginning of a
    /// backward, when `stash` micro-batches of `samples` samples each are kept; the other is in the optimizer, when none is kept any more.
    #[must_use]
    pub fn memory_bytes(&self, range: SegmentRange, stash: u32, samples: u32, recompute: Recompute) -> u64 {
        let (of, samples) = (self.of(range), u64::from(samples));
        let saved = |s: &SegmentCost| s.saved_bytes;
        let again = |s: &&SegmentCost| s.is_recomputed(recompute);
        let input = of.first().map_or(0, |s| s.input_bytes);
        let kept: u64 = match recompute {
            Recompute::None => of.iter().map(saved).sum(),
            Recompute::Selective => of.iter().map(SegmentCost::kept_selectively).sum(),
            Recompute::Full => 0,
        };
        let recomputed: u64 = of.iter().filter(again).map(saved).sum();
        let working = working_bytes(of.iter().rev().map(|s| s.taken(samples, recompute)));
        let attends = u64::from(of.iter().any(|s| s.kind.attends()));
        let packing = packing_bytes(attends * self.packing_bytes, stash, recompute);
        // A schedule may keep a whole batch: what no number holds fits into no memory.
        let stashed = u64::from(stash).saturating_mul(input + kept);
        let kept = stashed.saturating_add(recomputed).saturating_add(packing);
        let matrix = of.iter().map(SegmentCost::matrix_elements_max).max();
        let optimizer = matrix.unwrap_or(0) * self.parameter.matrix_step;
        let peak = kept.saturating_mul(samples).saturating_add(working);
        (self.state_bytes(range) + attends * self.mask_bytes).saturating_add(peak.max(optimizer))
    }

    /// Time to recompute what a stage did not keep of a micro-batch of `samples`, milliseconds.
    #[must_use]
    pub fn recompute_ms(&self, range: SegmentRange, samples: u32, recompute: Recompute) -> f64 {
        let again = self.of(range).iter().filter(|s| s.is_recomputed(recompute));
        let of = |s: &SegmentCost| s.forward_fixed_ms + s.forward_ms * f64::from(samples);
        again.map(of).sum::<f64>() * self.calibration.compute
    }

    /// One transfer across the cut before `segment` of a micro-batch of `samples`, milliseconds.
    #[must_use]
    pub fn transfer_ms(&self, segment: u32, samples: u32) -> f64 {
        let bytes = self.segments.get(segment as usize).map_or(0, |s| s.input_bytes) * u64::from(samples);
        (self.device.latency_ms + bytes as f64 / self.device.bytes_per_s * 1e3) * self.calibration.transfer
    }

    /// Ring all-reduce of a stage's gradients among `holders`, milliseconds.
    #[must_use]
    pub fn ring_ms(&self, range: SegmentRange, holders: usize) -> f64 {
        self.ring_of(self.parameters(range), holders)
    }

    /// Ring all-reduce of this many parameters' gradients among `holders`, milliseconds.
    #[must_use]
    pub fn ring_of(&self, parameters: u64, holders: usize) -> f64 {
        if holders < 2 {
            return 0.0;
        }
        let rounds = 2.0 * (holders - 1) as f64;
        rounds * self.device.latency_ms + rounds / holders as f64 * self.gradient_ms(parameters)
    }

    /// Time to send the gradients of this many parameters once over a link, without its latency, milliseconds.
    #[must_use]
    pub fn gradient_ms(&self, parameters: u64) -> f64 {
        let bytes_per_s = self.ring_bytes_per_s.unwrap_or(self.device.bytes_per_s);
        (parameters * self.parameter.gradient) as f64 / bytes_per_s * 1e3
    }

    /// Time to send this many parameters, as they are computed with, over a link, without its latency, milliseconds.
    #[must_use]
    pub fn parameters_ms(&self, parameters: u64) -> f64 {
        let bytes = self.parameter.without_state() - self.parameter.gradient;
        (parameters * bytes) as f64 / self.device.bytes_per_s * 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moments::Moments;
    use varuna_model::{Transformer, gpt2};

    fn costs(tied: bool) -> Costs {
        let gpt = Transformer {
            layers: 48,
            hidden_size: 1600,
            sequence_length: 1024,
            vocabulary_size: 50257,
            tied_head: tied,
            ..gpt2::SMALL
        };
        Costs::estimate(&gpt.spec(), Device::CPU_CORE)
    }

    #[test]
    fn a_gpt2_of_1_5_billion_parameters_counts_them_all_once() {
        for (tied, expected) in [(true, 1_557_611_200), (false, 1_557_611_200 + 50257 * 1600)] {
            let costs = costs(tied);
            assert_eq!(costs.layout(), Layout::new(98, tied));
            assert_eq!(costs.parameters(costs.layout().whole()), expected);
        }
    }

    #[test]
    fn larger_micro_batches_share_the_fixed_cost() {
        let costs = costs(true);
        let one = SegmentRange { start: 1, end: 2 };
        let (small, large) = (costs.forward_ms(one, 1), costs.forward_ms(one, 4));
        assert!(large < 4.0 * small && large > small);
    }

    #[test]
    fn recompute_keeps_stage_inputs_instead_of_what_autograd_saves() {
        let costs = costs(true);
        let stage = SegmentRange { start: 1, end: 39 };
        let [none, selective, full] = [Recompute::None, Recompute::Selective, Recompute::Full];
        let memory = |recompute| costs.memory_bytes(stage, 8, 1, recompute);
        assert!(memory(full) < memory(selective) && memory(selective) < memory(none));
        let again = |recompute| costs.recompute_ms(stage, 2, recompute);
        assert!(again(none) < again(selective) && again(selective) < again(full));
        assert!((again(full) - costs.forward_ms(stage, 2)).abs() < 1e-9);
        assert_eq!(costs.state_bytes(stage), costs.parameters(stage) * 16);
        assert!(memory(full) > costs.state_bytes(stage));
    }

    #[test]
    fn sixteen_bits_halve_activations_and_add_a_parameter_copy() {
        let wide = costs(true);
        let narrow = Costs::estimate(
            &Transformer {
                layers: 48,
                hidden_size: 1600,
                sequence_length: 1024,
                ..gpt2::SMALL
            }
            .spec(),
            Device {
                element_bytes: 2,
                ..Device::CPU_CORE
            },
        );
        let stage = SegmentRange { start: 1, end: 39 };
        let memory = |c: &Costs, stash| c.memory_bytes(stage, stash, 1, Recompute::None);
        assert_eq!(narrow.state_bytes(stage), wide.state_bytes(stage) / 16 * 18);
        let kept = |c: &Costs| memory(c, 3) - memory(c, 0);
        assert_eq!(2 * kept(&narrow), kept(&wide));
        assert_eq!(
            narrow.gradient_ms(1_000).to_bits(),
            wide.gradient_ms(1_000).to_bits()
        );
        assert!(narrow.transfer_ms(3, 8) < 0.6 * wide.transfer_ms(3, 8));
    }

    #[test]
    fn recomputed_attention_keeps_document_tables_of_one_batch() {
        let plain = costs(true);
        let packed = Costs {
            packing_bytes: 1000,
            ..plain.clone()
        };
        let (blocks, head) = (
            SegmentRange { start: 1, end: 39 },
            SegmentRange {
                start: plain.layout().segments - 1,
                end: plain.layout().segments,
            },
        );
        let more = |range, recompute| {
            packed.memory_bytes(range, 8, 2, recompute) - plain.memory_bytes(range, 8, 2, recompute)
        };
        assert_eq!(more(blocks, Recompute::None), 8 * 2 * 1000);
        assert_eq!(more(blocks, Recompute::Selective), 2 * 1000);
        assert_eq!(more(blocks, Recompute::Full), 2 * 1000);
        assert_eq!(more(head, Recompute::None), 0, "a stage without attention");
    }

    #[test]
    fn the_mask_of_a_window_is_kept_once_where_a_stage_attends() {
        let plain = costs(true);
        let masked = Costs {
            mask_bytes: 1000,
            ..plain.clone()
        };
        let last = plain.layout().segments;
        let more = |(start, end), stash| {
            let range = SegmentRange { start, end };
            let of = |costs: &Costs| costs.memory_bytes(range, stash, 2, Recompute::None);
            of(&masked) - of(&plain)
        };
        assert_eq!([more((1, 39), 8), more((1, 2), 1)], [1000, 1000]);
        assert_eq!([more((0, 1), 8), more((last - 1, last), 8)], [0, 0]);
    }

    #[test]
    fn muon_needs_memory_for_the_largest_matrix() {
        let adam = costs(true);
        let muon = Costs {
            parameter: adam.parameter.keeping(Moments::Muon),
            ..adam.clone()
        };
        let stage = SegmentRange { start: 1, end: 39 };
        let of = |costs: &Costs, stash| costs.memory_bytes(stage, stash, 1, Recompute::None);
        let up: u64 = 1600 * 4 * 1600;
        let taken = of(&muon, 0) - adam.state_bytes(stage);
        // An MLP has biases, too.
        assert!((up * 20..up * 20 + 200_000).contains(&taken), "{taken}");
        assert!(of(&adam, 0) < of(&muon, 0));
        assert_eq!(
            of(&adam, 64),
            of(&muon, 64),
            "activations are more, and gone by then"
        );
        let embedding = SegmentRange { start: 0, end: 1 };
        let of = |costs: &Costs| costs.memory_bytes(embedding, 1, 1, Recompute::None);
        assert_eq!(of(&adam), of(&muon), "AdamW's");
    }

    #[test]
    fn working_memory_of_exported_segments_counts_everywhere() {
        let segment = |working_bytes| SegmentCost {
            kind: SegmentKind::Block,
            working_bytes,
            saved_bytes: 0,
            chunked: Chunked::default(),
            ..costs(false).segments[1].clone()
        };
        let own = Costs {
            segments: [1 << 30, 1, 1, 1].map(segment).to_vec(),
            ..costs(false)
        };
        let whole = own.layout().whole();
        let working = own.memory_bytes(whole, 0, 1, Recompute::None) - own.state_bytes(whole);
        assert_eq!(working, 1 << 30);
    }

    #[test]
    fn costs_survive_being_written_as_json() {
        let costs = costs(true);
        let text = serde_json::to_string(&costs).unwrap();
        assert_eq!(serde_json::from_str::<Costs>(&text).unwrap(), costs);
    }
}
