//! The network to other workers, as the command line and the job want it: the address, encryption, and what carries tensors.

use crate::agent::AgentEvent;
use crate::arguments::{Arguments, bind_address};
use crate::backend::{Backend, Platform};
use crate::transport::data_plane::DataPlane;
use crate::transport::nccl::{Nccl, NcclPlane};
use crate::transport::tcp::{Mesh, of_job};
use anyhow::{Context, Result, bail};
use std::sync::Arc;
use tokio::sync::mpsc::Sender;
use varuna_api::{Encryption, Job, WorkerDevice, WorkerTransport};
use varuna_plan::WorkerId;
use varuna_torch::Device;

/// Listens for peers; what comes from them goes to `events`.
pub(crate) fn listen(
    arguments: &Arguments,
    me: WorkerId,
    coordinator: &str,
    events: Sender<AgentEvent>,
) -> Result<Mesh> {
    let bind = bind_address(
        arguments.bind.as_deref(),
        arguments.advertise.as_deref(),
        coordinator,
    )?;
    let mesh = Mesh::listen(me, bind.as_str(), move |event| {
        // If this fails the agent has ended; so will these connections.
        let _ = events.blocking_send(AgentEvent::Peer(event));
    });
    mesh.with_context(|| format!("cannot listen on {bind} (--bind)"))
}

/// Encrypts the connections to other workers where the job wants it, and bounds what others may send.
pub(crate) fn configure(mesh: &Mesh, job: &Job, backend: Backend) -> Result<()> {
    if job.network.encryption == Encryption::Tls {
        mesh.encrypt().context("network.encryption of the job file")?;
        tracing::info!("connections to other workers are encrypted");
    }
    let batch = job.training.global_batch_size;
    mesh.limit(of_job(
        (&job.model, job.layout()),
        job.pipeline.micro_batch_size.map_or(batch, u64::from),
        backend.numerics.boundary(),
        job.training.optimizer.rule.moments(),
    ));
    Ok(())
}

/// The connections of all generations; between GPUs with NCCL beside them, as the job says.
pub(crate) fn data_plane(
    mesh: Mesh,
    me: WorkerId,
    found: (Device, Platform),
    job: &Job,
) -> Result<Box<dyn DataPlane>> {
    if job.workers.transport == WorkerTransport::Tcp || job.workers.device == WorkerDevice::Cpu {
        return Ok(Box::new(mesh));
    }
    // A worker without NCCL tells its peers so: each communicator needs all of its ranks. Those of another release may ask.
    Ok(Box::new(NcclPlane::new(mesh, me, nccl_of_job(found, job)?)))
}

/// NCCL, as the job wants it; none where tensors go over TCP.
fn nccl_of_job(found: (Device, Platform), job: &Job) -> Result<Option<Arc<Nccl>>> {
    match (nccl(found, job.network.encryption), job.workers.transport) {
        (Ok(nccl), _) => Ok(Some(nccl)),
        (Err(error), WorkerTransport::Nccl) => {
            Err(error.context("spec.workers.transport of the job file is nccl"))
        }
        (Err(error), WorkerTransport::Auto | WorkerTransport::Tcp) => {
            tracing::info!(reason = format!("{error:#}"), "tensors go over TCP");
            Ok(None)
        }
    }
}

fn nccl((device, platform): (Device, Platform), encryption: Encryption) -> Result<Arc<Nccl>> {
    if encryption == Encryption::Tls {
        bail!("NCCL does not encrypt what it sends, and network.encryption of the job file is tls");
    }
    match device {
        Device::Cuda(_) | Device::CpuSeparateMemory => Ok(Nccl::open(&(platform.libraries)()?, device)?),
        Device::Cpu => bail!("NCCL needs a GPU, and this worker computes on {device}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_api::parse_job;
    use varuna_cuda::{Libraries, LoadError};

    /// The stand-in, which is in the folder of this test's program.
    fn libraries() -> Result<Libraries, LoadError> {
        let library = std::env::current_exe().unwrap();
        Libraries::load_from(&library.with_file_name("libvaruna_fake_nccl.so"))
    }

    fn job(encryption: &str, transport: &str) -> Job {
        let text = format!(
            "
apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata: {{name: demo}}
spec:
  model: {{preset: gpt2-tiny}}
  data: {{path: data/kjv}}
  training: {{globalBatchSize: 16, steps: 200, optimizer: {{learningRate: 3e-4}}}}
  workers: {{transport: {transport}}}
  network: {{encryption: {encryption}}}
"
        );
        parse_job(&text).unwrap()
    }

    #[test]
    fn encrypted_network_does_not_use_nccl() {
        let platform = Platform {
            libraries,
            ..Platform::MACHINE
        };
        let found = |job: &Job| nccl_of_job((Device::CpuSeparateMemory, platform), job);
        assert!(found(&job("none", "auto")).unwrap().is_some(), "it is there");
        assert!(found(&job("none", "nccl")).unwrap().is_some());
        assert!(found(&job("tls", "auto")).unwrap().is_none());
        // A job file with both is refused earlier, but the worker does not rely on that.
        let both = Job {
            network: job("tls", "auto").network,
            ..job("none", "nccl")
        };
        let why = format!("{:#}", found(&both).err().unwrap());
        assert!(
            why.contains("transport") && why.contains("does not encrypt"),
            "{why}"
        );
    }
}
