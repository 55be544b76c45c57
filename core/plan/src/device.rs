//! Devices known by name: what an estimate assumes where nothing has been measured.
//!
//! All figures are estimates: peaks and memory are from the makers' data sheets, the efficiency is what published training runs of
//! transformers reach, links are what one worker gets on a usual machine of that kind (`docs/guides/planning.md` has the sources). This
//! module must never claim that a figure was measured here.

use crate::cost::Device;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Share of a device's memory that a plan may use: the rest is needed by the runtime, fragmentation and communication buffers.
const USABLE: f64 = 0.92;

/// One direction of a link between two workers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Link {
    /// Latency, milliseconds.
    pub latency_ms: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
}

/// A kind of device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DeviceKind {
    /// Name of the kind on the command line.
    pub name: &'static str,
    /// The word in a driver's device name that identifies it; none for what has no driver. Kinds that share a word differ in memory.
    pub driver_word: Option<&'static str>,
    /// Memory of the device, bytes.
    pub memory_bytes: u64,
    /// Peak of dense floating-point operations per second in its data sheet, at the precision that training uses on it.
    pub peak_flops_per_s: f64,
    /// Share of the peak that a transformer's matrix products reach in training.
    pub efficiency: f64,
    /// Overhead of one instruction on one segment, milliseconds.
    pub overhead_ms: f64,
    /// Between two workers of one node.
    pub within_node: Link,
    /// Between two nodes.
    pub between_nodes: Link,
}

const fn link(latency_ms: f64, bytes_per_s: f64) -> Link {
    Link {
        latency_ms,
        bytes_per_s,
    }
}

const GIB: u64 = 1 << 30;

const fn gpu(
    (name, driver_word): (&'static str, &'static str),
    gib: u64,
    peak: f64,
    efficiency: f64,
    within: Link,
    between: Link,
) -> DeviceKind {
    DeviceKind {
        name,
        driver_word: Some(driver_word),
        memory_bytes: gib * GIB,
        peak_flops_per_s: peak,
        efficiency,
        overhead_ms: 0.05,
        within_node: within,
        between_nodes: between,
    }
}

/// All kinds, cheapest first.
pub const DEVICES: [DeviceKind; 8] = [
    DeviceKind {
        name: "cpu-core",
        driver_word: None,
        memory_bytes: 4 * GIB,
        peak_flops_per_s: 8.0e10,
        efficiency: 0.5,
        overhead_ms: 0.05,
        within_node: link(0.1, 1.0e9),
        between_nodes: link(0.1, 1.0e9),
    },
    gpu(
        ("t4", "T4"),
        16,
        65.0e12,
        0.30,
        link(0.02, 10.0e9),
        link(0.1, 1.2e9),
    ),
    gpu(
        ("l4", "L4"),
        24,
        121.0e12,
        0.35,
        link(0.02, 12.0e9),
        link(0.05, 2.5e9),
    ),
    gpu(
        ("v100-16g", "V100"),
        16,
        125.0e12,
        0.35,
        link(0.01, 100.0e9),
        link(0.14, 0.9e9),
    ),
    gpu(
        ("a100-40g", "A100"),
        40,
        312.0e12,
        0.45,
        link(0.01, 240.0e9),
        link(0.02, 20.0e9),
    ),
    gpu(
        ("a100-80g", "A100"),
        80,
        312.0e12,
        0.45,
        link(0.01, 240.0e9),
        link(0.02, 20.0e9),
    ),
    gpu(
        ("h100-80g", "H100"),
        80,
        989.0e12,
        0.40,
        link(0.01, 360.0e9),
        link(0.02, 40.0e9),
    ),
    gpu(
        ("h200-141g", "H200"),
        141,
        989.0e12,
        0.40,
        link(0.01, 360.0e9),
        link(0.02, 40.0e9),
    ),
];

/// Peaks of the data sheets' other forms of a kind, which have less power and slower clocks: the kind's word and the form's in a driver's device name, and
/// dense operations per second in 16 bits. Plans do not tell forms apart, as their first steps correct the estimate.
const PEAKS_OF_FORMS: [(&str, &str, f64); 4] = [
    ("V100", "PCIE", 112.0e12),
    ("H100", "PCIE", 756.0e12),
    ("H100", "NVL", 835.0e12),
    ("H200", "NVL", 835.0e12),
];

/// The kind assumed for a GPU whose name is not in the table: the middle one, so that the estimate is wrong by a small factor in either
/// direction until the run's first steps correct it.
const UNKNOWN_GPU: &DeviceKind = &DEVICES[4];

/// The hardware that a worker computes on, as its driver reports it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Hardware {
    /// Processor cores.
    Processor,
    /// A GPU.
    Gpu {
        /// The driver's name for it, for example `NVIDIA H100 80GB HBM3`.
        name: String,
        /// Total memory of the GPU, bytes.
        memory_bytes: u64,
    },
}

impl Hardware {
    /// Its kind in the table; none for a GPU that the table does not know.
    #[must_use]
    pub fn kind(&self) -> Option<&'static DeviceKind> {
        match self {
            Hardware::Processor => Some(&DEVICES[0]),
            Hardware::Gpu { name, memory_bytes } => gpu_kind(name, *memory_bytes),
        }
    }

    /// The peak of dense floating-point operations per second in a GPU's data sheet. None for a GPU that the table does not know, and for processor
    /// cores: the number of a worker's cores, and their peak, are not known.
    #[must_use]
    pub fn data_sheet_flops_per_s(&self) -> Option<f64> {
        let Hardware::Gpu { name, .. } = self else {
            return None;
        };
        let kind = self.kind()?;
        let is_of = |form: &(&str, &str, f64)| {
            kind.driver_word == Some(form.0) && words(name).any(|word| word.eq_ignore_ascii_case(form.1))
        };
        let form = PEAKS_OF_FORMS.iter().find(|form| is_of(form));
        Some(form.map_or(kind.peak_flops_per_s, |(.., peak)| *peak))
    }

    /// The kind that it is planned as.
    #[must_use]
    pub fn planned_as(&self) -> &'static DeviceKind {
        self.kind().unwrap_or(UNKNOWN_GPU)
    }
}

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hardware::Processor => f.write_str("processor cores"),
            Hardware::Gpu { name, .. } => f.write_str(name),
        }
    }
}

/// The kind of a GPU by its driver's name; among kinds with that name, the one whose memory is nearest.
fn gpu_kind(name: &str, memory_bytes: u64) -> Option<&'static DeviceKind> {
    // A partition of a GPU has only a part of its peak, and its name does not say which part.
    if words(name).any(|word| word == "MIG") {
        return None;
    }
    let named = DEVICES.iter().filter(|kind| {
        kind.driver_word
            .is_some_and(|own| words(name).any(|word| word == own))
    });
    named.min_by_key(|kind| kind.memory_bytes.abs_diff(memory_bytes))
}

/// The words of a driver's device name.
fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(|c: char| !c.is_ascii_alphanumeric())
}

/// The name is not in the table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device {0:?} is not known; known are {known}", known = names())]
pub struct UnknownDevice(pub String);

fn names() -> String {
    DEVICES.map(|d| d.name).join(", ")
}

impl DeviceKind {
    /// The kind of that name.
    ///
    /// # Errors
    /// Names the known ones.
    pub fn named(name: &str) -> Result<&'static DeviceKind, UnknownDevice> {
        let found = DEVICES.iter().find(|d| d.name == name);
        found.ok_or_else(|| UnknownDevice(name.to_owned()))
    }

    /// Memory that a plan may use, bytes.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a device's memory"
    )]
    pub fn usable_bytes(&self) -> u64 {
        (self.memory_bytes as f64 * USABLE) as u64
    }

    /// The device as an estimate of costs needs it. `one_node`: all workers are on one node. The job decides the bytes of an activation's
    /// element.
    #[must_use]
    pub fn device(&self, one_node: bool, element_bytes: u64) -> Device {
        let link = if one_node {
            self.within_node
        } else {
            self.between_nodes
        };
        Device {
            flops_per_s: self.peak_flops_per_s * self.efficiency,
            overhead_ms: self.overhead_ms,
            latency_ms: link.latency_ms,
            bytes_per_s: link.bytes_per_s,
            element_bytes,
            logits_bytes_max: match self.driver_word {
                Some(_) => Device::GPU_LOGITS,
                None => Device::CPU_CORE.logits_bytes_max,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_name() {
        for kind in &DEVICES {
            assert_eq!(DeviceKind::named(kind.name), Ok(kind));
            assert!(kind.usable_bytes() < kind.memory_bytes && kind.device(true, 2).flops_per_s > 0.0);
            assert!(kind.within_node.bytes_per_s >= kind.between_nodes.bytes_per_s);
        }
        let why = DeviceKind::named("h100").unwrap_err().to_string();
        assert!(
            why.starts_with("device \"h100\" is not known; known are cpu-core, t4")
                && why.ends_with("h200-141g")
        );
    }

    #[test]
    fn driver_names_map_to_devices_of_the_table() {
        let gpu = |name: &str, gib: u64| Hardware::Gpu {
            name: name.to_owned(),
            memory_bytes: gib * GIB,
        };
        for (name, gib, expected) in [
            ("Tesla T4", 15, "t4"),
            ("NVIDIA L4", 22, "l4"),
            ("Tesla V100-SXM2-16GB", 16, "v100-16g"),
            ("Tesla V100-SXM2-32GB", 32, "v100-16g"),
            ("NVIDIA A100-SXM4-40GB", 39, "a100-40g"),
            ("NVIDIA A100-SXM4-80GB", 79, "a100-80g"),
            ("NVIDIA A100 80GB PCIe", 79, "a100-80g"),
            ("NVIDIA H100 80GB HBM3", 79, "h100-80g"),
            ("NVIDIA H100 NVL", 93, "h100-80g"),
            ("NVIDIA H200", 140, "h200-141g"),
        ] {
            let kind = gpu(name, gib).kind().map(|kind| kind.name);
            assert_eq!(kind, Some(expected), "{name}");
        }
        for name in [
            "NVIDIA L40S",
            "NVIDIA GB200",
            "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            "",
        ] {
            assert_eq!(gpu(name, 40).kind(), None, "{name}");
            assert_eq!(gpu(name, 40).planned_as().name, "a100-40g");
        }
        assert_eq!(Hardware::Processor.planned_as().name, "cpu-core");
        assert_eq!(Hardware::Processor.to_string(), "processor cores");
    }

    #[test]
    fn other_forms_of_a_gpu_have_their_own_data_sheets() {
        let peak = |name: &str, gib: u64| {
            let gpu = Hardware::Gpu {
                name: name.to_owned(),
                memory_bytes: gib * GIB,
            };
            gpu.data_sheet_flops_per_s()
        };
        for (name, gib, expected) in [
            ("Tesla V100-SXM2-16GB", 16, 125.0e12),
            ("Tesla V100-PCIE-16GB", 16, 112.0e12),
            ("NVIDIA A100 80GB PCIe", 79, 312.0e12),
            ("NVIDIA H100 80GB HBM3", 79, 989.0e12),
            ("NVIDIA H100 PCIe", 79, 756.0e12),
            ("NVIDIA H100 NVL", 93, 835.0e12),
            ("NVIDIA H200", 140, 989.0e12),
            ("NVIDIA H200 NVL", 140, 835.0e12),
        ] {
            assert_eq!(peak(name, gib), Some(expected), "{name}");
        }
        assert_eq!(peak("NVIDIA L40S", 44), None);
        assert_eq!(Hardware::Processor.data_sheet_flops_per_s(), None);
        // A form of no kind would never be found.
        for (word, ..) in PEAKS_OF_FORMS {
            assert!(
                DEVICES.iter().any(|kind| kind.driver_word == Some(word)),
                "{word}"
            );
        }
    }

    #[test]
    fn the_core_of_the_table_is_the_one_that_jobs_are_planned_with() {
        assert_eq!(
            DeviceKind::named("cpu-core").unwrap().device(false, 4),
            Device::CPU_CORE
        );
    }
}
