//! What a worker says of itself to its coordinator.

use crate::arguments::Arguments;
use crate::backend::Backend;
use crate::memory::{self, Equipment, Share};
use crate::transport::tcp::Mesh;
use anyhow::{Context, Result};
use varuna_api::UpdateRule;
use varuna_plan::device::Hardware;
use varuna_plan::{ScoreMemory, WorkerId};
use varuna_torch::Device;
use varuna_wire::address::host_port;
use varuna_wire::{Hello, process_host};

/// Before it has the job.
pub(crate) fn first_hello(arguments: &Arguments, me: WorkerId, mesh: &Mesh) -> Hello {
    let host = process_host();
    let address = match &arguments.advertise {
        Some(host) => host_port(host, mesh.address().port()),
        None => mesh.address().to_string(),
    };
    Hello {
        worker: me,
        name: arguments.name.clone(),
        address,
        node: arguments.node.clone().unwrap_or_else(|| host.clone()),
        host,
        pid: std::process::id(),
        hardware: None,
        workers_on_gpu: arguments.workers_on_gpu,
        memory_bytes: None,
        copies_bytes: None,
        scores: None,
        device: String::new(),
        speed: 1.0,
        run: String::new(),
    }
}

/// Once it knows what it computes on, and before this process has allocated anything: memory counts that is free now.
///
/// # Errors
/// The driver does not describe the GPU.
pub(crate) fn equipped(hello: Hello, device: Device, share: Share) -> Result<Hello> {
    let Equipment {
        hardware,
        memory_bytes,
        copies_bytes,
    } = memory::equipment(device, share).context("cannot tell how much memory training may use")?;
    let device = match &hardware {
        Hardware::Processor => device.to_string(),
        Hardware::Gpu { name, .. } => format!("{device} {name}"),
    };
    let mib = memory_bytes.map(|bytes| bytes >> 20);
    tracing::info!(device, memory_mib = mib, "training may use");
    Ok(Hello {
        hardware: Some(hardware),
        workers_on_gpu: share.workers_on_gpu,
        memory_bytes,
        copies_bytes,
        device,
        ..hello
    })
}

/// Once it knows how it computes.
pub(crate) fn settled(
    hello: Hello,
    backend: Backend,
    rule: UpdateRule,
    scores: Option<ScoreMemory>,
) -> Hello {
    // Elsewhere copies take memory of training.
    let copies_bytes = hello.copies_bytes.filter(|_| backend.keeps_copies_on_host(rule));
    Hello {
        scores,
        copies_bytes,
        ..hello
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::Numerics;

    /// What a worker says of the host's memory for copies, of which it has a GiB.
    fn told(device: Device, rule: UpdateRule) -> Option<u64> {
        let hello = Hello {
            worker: WorkerId(1),
            name: "w0".to_owned(),
            address: "127.0.0.1:1".to_owned(),
            node: "n".to_owned(),
            host: "h".to_owned(),
            pid: 1,
            hardware: None,
            workers_on_gpu: 1,
            memory_bytes: None,
            copies_bytes: Some(1 << 30),
            scores: None,
            device: String::new(),
            speed: 1.0,
            run: String::new(),
        };
        let backend = Backend {
            device,
            ..Backend::of_processor(Numerics::FP32)
        };
        settled(hello, backend, rule, None).copies_bytes
    }

    #[test]
    fn memory_for_copies_is_told_if_the_host_keeps_them() {
        let (beta1, beta2, epsilon) = (0.9, 0.95, 1e-8);
        let adamw = UpdateRule::Adamw {
            beta1,
            beta2,
            epsilon,
        };
        let muon = UpdateRule::Muon {
            momentum: 0.95,
            beta1,
            beta2,
            epsilon,
        };
        assert_eq!(told(Device::CpuSeparateMemory, adamw), Some(1 << 30));
        assert_eq!(
            told(Device::CpuSeparateMemory, muon),
            None,
            "they are on the device"
        );
        assert_eq!(told(Device::Cpu, adamw), None, "it is the memory of training");
    }
}
