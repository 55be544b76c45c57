//! What a worker says of itself to its coordinator.

use crate::arguments::Arguments;
use crate::backend::Backend;
use crate::memory::{self, Equipment, Share};
use crate::transport::tcp::Mesh;
use anyhow::{Context, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio::task::JoinHandle;
use varuna_api::UpdateRule;
use varuna_plan::device::Hardware;
use varuna_plan::{ScoreMemory, WorkerId};
use varuna_torch::Device;
use varuna_wire::address::host_port;
use varuna_wire::{Hello, Upward, process_host};

/// How often a worker says who it is until its agent runs. A coordinator takes one that is silent for five seconds for lost, and counts it among those
/// that come and go. A GPU's libraries, and the index of a large dataset, take longer to load.
const REPEAT: Duration = Duration::from_secs(2);

/// Says again and again who this worker is, until it is dropped.
pub(crate) struct Introduction {
    /// None once the agent runs, which speaks for the worker then.
    hello: Arc<Mutex<Option<Hello>>>,
    task: JoinHandle<()>,
}

impl Introduction {
    /// Begins to repeat what the worker has said.
    pub(crate) fn repeat(reports: &Sender<Upward>, hello: &Hello) -> Introduction {
        Introduction::every(REPEAT, reports, hello)
    }

    fn every(interval: Duration, reports: &Sender<Upward>, hello: &Hello) -> Introduction {
        let hello = Arc::new(Mutex::new(Some(hello.clone())));
        let (reports, said) = (reports.clone(), Arc::clone(&hello));
        let task = tokio::spawn(async move {
            while !reports.is_closed() {
                tokio::time::sleep(interval).await;
                // Without a stream one is enough: it waits for the next.
                if reports.capacity() == reports.max_capacity() {
                    // Locked until it is queued: none is queued after a newer one, or after what the agent says.
                    let said = said.lock();
                    if let Some(hello) = said.as_ref() {
                        let _ = reports.try_send(Upward::Hello(hello.clone()));
                    }
                }
            }
        });
        Introduction { hello, task }
    }

    /// What is repeated from now on.
    pub(crate) fn change(&self, hello: &Hello) {
        *self.hello.lock() = Some(hello.clone());
    }
}

impl Drop for Introduction {
    fn drop(&mut self) {
        // The task may run at this moment, and ends only where it waits.
        *self.hello.lock() = None;
        self.task.abort();
    }
}

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

    fn hello() -> Hello {
        Hello {
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
        }
    }

    #[tokio::test]
    async fn a_worker_says_who_it_is_until_its_agent_runs() {
        let (reports, mut outbox) = tokio::sync::mpsc::channel(4);
        let introduction = Introduction::every(Duration::from_millis(1), &reports, &hello());
        for device in ["", "cpu"] {
            let known = Hello {
                device: device.to_owned(),
                ..hello()
            };
            introduction.change(&known);
            // What was queued before may be older.
            let known = Upward::Hello(known);
            while outbox.recv().await.expect("a hello") != known {}
            assert_eq!(outbox.recv().await, Some(known), "it is repeated");
        }
        drop((introduction, reports));
        while outbox.recv().await.is_some() {}
    }

    /// What a worker says of the host's memory for copies, of which it has a GiB.
    fn told(device: Device, rule: UpdateRule) -> Option<u64> {
        let backend = Backend {
            device,
            ..Backend::of_processor(Numerics::FP32)
        };
        settled(hello(), backend, rule, None).copies_bytes
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
