//! What segments cost: compute, bytes and memory, measured or estimated.

use crate::layout::{Layout, SegmentRange};
use serde::{Deserialize, Serialize};

/// Bytes of training state per parameter in fp32: weight, gradient, first and second moment.
pub(crate) const STATE_BYTES: u64 = 16;

fn four_bytes() -> u64 {
    4
}

/// How the runtime whose steps are predicted moves tensors between stages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Runtime {
    /// Sends run beside compute, one full-duplex network interface a worker; a tied weight has one ring over all of its
    /// holders. This project's worker.
    #[default]
    Overlapped,
    /// Sender and receiver wait for each other, in program order, and nothing runs beside; a tied weight is summed between
    /// the two ends of each pipeline before the ring over pipelines. Runtimes of blocking sends (`docs/planner.md`).
    Rendezvous,
}

/// The two constants that make a profile agree with measured steps.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
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

/// The cost of one segment. Times in milliseconds on a worker of speed 1.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SegmentCost {
    /// Forward of one more sample.
    pub forward_ms: f64,
    /// Backward of one more sample, without recompute.
    pub backward_ms: f64,
    /// What a forward costs whatever its micro-batch size: launches, and small sizes that do not fill the device.
    pub forward_fixed_ms: f64,
    /// Likewise of a backward.
    pub backward_fixed_ms: f64,
    /// Parameters (of the segment's own unit; a tied weight is in [`Costs::tied_parameters`]).
    pub parameters: u64,
    /// What autograd keeps of one sample's forward, in bytes.
    pub saved_bytes: u64,
    /// The segment's input of one sample, in bytes: what crosses the cut before it.
    pub input_bytes: u64,
    /// Optimizer, once a step.
    #[serde(default)]
    pub optimizer_ms: f64,
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
    /// Bytes of one element of an activation or gradient on the wire and in the stash.
    #[serde(default = "four_bytes")]
    pub element_bytes: u64,
}

impl Device {
    /// One core of a server CPU and a loopback or 10 Gb/s link: for estimates on machines without an accelerator.
    pub const CPU_CORE: Device = Device {
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
    /// Device and links.
    pub device: Device,
    /// False while this is an analytic estimate.
    pub calibrated: bool,
    /// How tensors move.
    #[serde(default)]
    pub runtime: Runtime,
    /// What makes the times agree with measured steps.
    #[serde(default)]
    pub calibration: Calibration,
}

/// The sizes of a GPT, for [`Costs::estimate`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GptSizes {
    /// Transformer blocks.
    pub layers: u32,
    /// Width.
    pub hidden: u64,
    /// Tokens in a sample.
    pub sequence: u64,
    /// Rows of the embedding table.
    pub vocabulary: u64,
    /// Whether head and embedding share it.
    pub tied: bool,
}

#[expect(clippy::cast_precision_loss, reason = "costs are estimates")]
impl Costs {
    /// An analytic estimate of a GPT: 2 operations a parameter and token forward, twice that backward, attention's two
    /// products besides (Narayanan et al. 2021, appendix).
    #[must_use]
    pub fn estimate(gpt: GptSizes, device: Device) -> Costs {
        let GptSizes {
            layers,
            hidden: d,
            sequence: t,
            vocabulary: v,
            tied,
        } = gpt;
        let ms = |flops: f64| flops / device.flops_per_s * 1e3;
        let boundary = t * d * device.element_bytes;
        let table = v * d;
        let own_table = if tied { 0 } else { table };
        let segment = |flops: f64, parameters, saved_elements: u64, input_bytes| SegmentCost {
            forward_ms: ms(flops),
            backward_ms: ms(2.0 * flops),
            forward_fixed_ms: device.overhead_ms,
            backward_fixed_ms: 2.0 * device.overhead_ms,
            parameters,
            saved_bytes: saved_elements * device.element_bytes,
            input_bytes,
            optimizer_ms: 0.0,
        };
        let token = t as f64;
        let block_flops = token * (24.0 * (d * d) as f64 + 4.0 * (t * d) as f64);
        let head_flops = token * 2.0 * table as f64;
        let mut segments = vec![segment(token * d as f64, own_table + t * d, t * d, t * 8)];
        for _ in 0..layers {
            segments.push(segment(block_flops, 12 * d * d + 13 * d, 18 * t * d, boundary));
        }
        segments.push(segment(
            head_flops,
            own_table + 2 * d,
            2 * t * d + 2 * t * v,
            boundary,
        ));
        Costs {
            segments,
            tied_parameters: if tied { table } else { 0 },
            device,
            calibrated: false,
            runtime: Runtime::Overlapped,
            calibration: Calibration::default(),
        }
    }

    /// The units these costs speak of.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "segment counts are small")]
    pub fn layout(&self) -> Layout {
        Layout {
            segments: self.segments.len() as u32,
            tied: self.tied_parameters > 0,
        }
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

    /// Memory that a stage needs: state, and what is kept of `stash` micro-batches of `samples` samples each.
    #[must_use]
    pub fn memory_bytes(&self, range: SegmentRange, stash: u32, samples: u32, recompute: bool) -> u64 {
        let saved: u64 = self.of(range).iter().map(|s| s.saved_bytes).sum();
        let input = self.of(range).first().map_or(0, |s| s.input_bytes);
        let (stash, samples) = (u64::from(stash), u64::from(samples));
        let kept = if recompute {
            stash * input + saved
        } else {
            stash * saved
        };
        self.parameters(range) * STATE_BYTES + kept * samples
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

    /// Ring all-reduce of so many parameters' gradients among `holders`, milliseconds.
    #[must_use]
    pub fn ring_of(&self, parameters: u64, holders: usize) -> f64 {
        if holders < 2 {
            return 0.0;
        }
        let rounds = 2.0 * (holders - 1) as f64;
        rounds * self.device.latency_ms + rounds / holders as f64 * self.gradient_ms(parameters)
    }

    /// The gradients of so many parameters once over a link, without its latency, milliseconds.
    #[must_use]
    pub fn gradient_ms(&self, parameters: u64) -> f64 {
        (parameters * self.device.element_bytes) as f64 / self.device.bytes_per_s * 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(tied: bool) -> Costs {
        let gpt = GptSizes {
            layers: 48,
            hidden: 1600,
            sequence: 1024,
            vocabulary: 50257,
            tied,
        };
        Costs::estimate(gpt, Device::CPU_CORE)
    }

    #[test]
    fn a_gpt2_of_1_5_billion_parameters_counts_them_all_once() {
        for (tied, expected) in [(true, 1_557_611_200), (false, 1_557_611_200 + 50257 * 1600)] {
            let costs = costs(tied);
            assert_eq!(costs.layout(), Layout { segments: 50, tied });
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
        let stage = SegmentRange { start: 1, end: 20 };
        assert!(costs.memory_bytes(stage, 8, 1, true) < costs.memory_bytes(stage, 8, 1, false));
        assert_eq!(
            costs.memory_bytes(stage, 0, 1, false),
            costs.parameters(stage) * STATE_BYTES
        );
    }

    #[test]
    fn costs_survive_being_written_as_json() {
        let costs = costs(true);
        let text = serde_json::to_string(&costs).unwrap();
        assert_eq!(serde_json::from_str::<Costs>(&text).unwrap(), costs);
    }
}
