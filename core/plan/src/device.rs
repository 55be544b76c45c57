//! Devices known by name: what an estimate assumes where nothing has been measured.
//!
//! All figures are estimates: peaks and memory are the makers' data sheets, the efficiency is what published training runs
//! of transformers reach, links are what one worker of a usual machine of that kind sees (`docs/guides/planning.md` has the
//! sources). This module must never claim that a figure was measured here.

use crate::cost::Device;

/// Share of a device's memory that a plan may use: the rest is the runtime's own, fragmentation and communication buffers.
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
    /// Its name on the command line.
    pub name: &'static str,
    /// Its memory, bytes.
    pub memory_bytes: u64,
    /// Dense floating-point operations a second of its data sheet, at the precision that training uses there.
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
    name: &'static str,
    gib: u64,
    peak: f64,
    efficiency: f64,
    within: Link,
    between: Link,
) -> DeviceKind {
    DeviceKind {
        name,
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
        memory_bytes: 4 * GIB,
        peak_flops_per_s: 8.0e10,
        efficiency: 0.5,
        overhead_ms: 0.05,
        within_node: link(0.1, 1.0e9),
        between_nodes: link(0.1, 1.0e9),
    },
    gpu("t4", 16, 65.0e12, 0.30, link(0.02, 10.0e9), link(0.1, 1.2e9)),
    gpu("l4", 24, 121.0e12, 0.35, link(0.02, 12.0e9), link(0.05, 2.5e9)),
    gpu(
        "v100-16g",
        16,
        125.0e12,
        0.35,
        link(0.01, 100.0e9),
        link(0.14, 0.9e9),
    ),
    gpu(
        "a100-40g",
        40,
        312.0e12,
        0.45,
        link(0.01, 240.0e9),
        link(0.02, 20.0e9),
    ),
    gpu(
        "a100-80g",
        80,
        312.0e12,
        0.45,
        link(0.01, 240.0e9),
        link(0.02, 20.0e9),
    ),
    gpu(
        "h100-80g",
        80,
        989.0e12,
        0.40,
        link(0.01, 360.0e9),
        link(0.02, 40.0e9),
    ),
    gpu(
        "h200-141g",
        141,
        989.0e12,
        0.40,
        link(0.01, 360.0e9),
        link(0.02, 40.0e9),
    ),
];

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

    /// What an estimate of costs needs; `one_node`: all workers sit on one node. Bytes of an activation's element are the job's to say.
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_is_found_by_its_name_and_others_are_refused_with_the_list() {
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
    fn the_core_of_the_table_is_the_one_that_jobs_are_planned_with() {
        assert_eq!(
            DeviceKind::named("cpu-core").unwrap().device(false, 4),
            Device::CPU_CORE
        );
    }
}
