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
