//! The program `varuna-worker`: from its command line to the end of its agent. What it finds on its machine is a value, so that tests can run the
//! same program on another.

use crate::ablation::Ablation;
use crate::agent::uplink::{self, UplinkEvent};
use crate::agent::{self, AgentParts};
use crate::arguments::{Arguments, Command};
use crate::backend::{Backend, Platform};
use crate::checkpoints::{Buffers, Checkpoints, CheckpointsConfig, DataTokenizer};
use crate::engine::{Engine, EngineConfig};
use crate::gpu_place::placed;
use crate::introduction::{Introduction, equipped, first_hello, settled};
use crate::memory::{self, Share};
use crate::model::{Module, attention_shape, score_memory};
use crate::samples::DatasetSamples;
use crate::{inference, job_data, job_network, optimizer_check, processors, profile};
use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use std::sync::Arc;
use tokio::sync::mpsc::{Receiver, channel};
use varuna_api::{Job, WorkerDevice, parse_job_of_any_release};
use varuna_checkpoint::{RateLimit, Store};
use varuna_dataset::TrainingData;
use varuna_frames::RunKey;
use varuna_plan::{ScoreMemory, Step, WorkerId};
use varuna_protocol::{MemberConfig, MemberTiming};
use varuna_torch::{Attention, AttentionChoice, Device, DeviceChoice};
use varuna_wire::{Upward, Welcome};

/// How many events of peers may wait for the agent.
const EVENTS: usize = 4096;

/// Runs the program with this process's command line.
///
/// # Errors
/// The worker failed or was refused; the exit code is then 1.
pub fn run(platform: Platform) -> Result<()> {
    varuna_cuda::ask_for_connections();
    varuna_torch::keep_freed_memory();
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        // By default a log line that cannot be written is reported with eprintln!, which panics if standard error is closed or its disk full.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("VARUNA_LOG").unwrap_or_else(|_| "info".into()),
        )
        .init();
    varuna_open_files::raise();
    match &arguments.command {
        Some(Command::Profile(arguments)) => return profile::run(arguments, platform),
        Some(Command::ProfilePeer(arguments)) => return profile::peer(arguments, platform),
        Some(Command::CheckOptimizer(arguments)) => return optimizer_check::run(arguments, platform),
        Some(Command::Generate(arguments)) => return inference::generate(arguments, platform),
        Some(Command::Evaluate(arguments)) => return inference::evaluate(arguments, platform),
        Some(Command::Logits(arguments)) => return inference::logits(arguments, platform),
        None => {}
    }
    let coordinator = arguments.coordinator.clone().context("--coordinator is needed")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start")?;
    // libtorch keeps threads for each thread that computes with several. The engine's alone does: where there are more of them than cores, they
    // sleep between any two operators in place of waiting awake, which costs a sixth of a step.
    tch::set_num_threads(1);
    let ended = runtime.block_on(work(&arguments, &coordinator, platform));
    // Dropped, it would wait for a digest that hangs, which may be why this worker ends.
    runtime.shutdown_background();
    ended
}

/// Attaches, gets the job, and trains until this worker is released.
async fn work(arguments: &Arguments, coordinator: &str, platform: Platform) -> Result<()> {
    let mut drain = notices()?;
    // What the command line names must be there, whatever the job says.
    let named = arguments.device.map(platform.device).transpose();
    let named = named.context("--device")?;
    let me = WorkerId(rand::random::<u64>().max(1));
    let (events, inbox) = channel(EVENTS);
    let mesh = job_network::listen(arguments, me, coordinator, events.clone())?;
    let hello = first_hello(arguments, me, &mesh);
    let (reports, mut orders) = uplink::start(reached(arguments, coordinator), hello.clone());
    let Some(welcome) = first_welcome((&mut orders, &mut drain), coordinator).await? else {
        return Ok(());
    };
    let introduction = Introduction::repeat(&reports, &hello);
    let job =
        parse_job_of_any_release(&welcome.job).context("the coordinator's job file is not valid here")?;
    // Before anything else asks libtorch. Libraries for GPUs are loaded only where the job may use one.
    let found = named.map_or_else(|| device_of(&job, platform), Ok)?;
    let (device, workers_on_gpu) = placed(found, arguments.gpu(), platform)?;
    // The memory that is free for training, before this process has allocated anything.
    let host = memory::host_limit(arguments.host_memory);
    let share = Share {
        host_bytes: host,
        data_bytes: varuna_dataset::cache_bytes(&job.data),
        workers_on_gpu,
    };
    let hello = equipped(hello, device, share)?;
    let (backend, scores) = backend(arguments, ((device, workers_on_gpu), platform), &job)?;
    let hello = settled(hello, backend, job.training.optimizer.rule, scores);
    introduction.change(&hello);
    let reader = format!("{} on {}", hello.name, hello.node);
    if reports.send(Upward::Hello(hello)).await.is_err() {
        bail!("the stream to {coordinator} ended");
    }
    let Some(data) = job_data::open(arguments, (&job, &welcome), (&mut orders, &mut drain)).await? else {
        return Ok(());
    };
    let store = Store::of_job(&job, &data.fingerprint()).context("spec.checkpoint.uri")?;
    let model = Module::open(&job.model, device)?;
    let copies = memory_of_copies(host);
    let threads = arguments.threads.or(job.workers.threads).unwrap_or(1);
    let checkpoints = store
        .map(|store| checkpoints(store, (&job, &model), &copies, reader, threads))
        .transpose()
        .context("cannot start uploads of checkpoints")?;
    job_network::configure(&mesh, &job, backend)?;
    let engine = engine((me, backend), (&job, model), data);
    tracing::info!(worker = %me, %device, name = arguments.name, job = job.name, address = %mesh.address(), "attached");
    let member = member(arguments, me, &job);
    let parts = AgentParts {
        member,
        engine,
        threads,
        mesh: job_network::data_plane(mesh, me, (device, platform), &job)?,
        events: (events, inbox),
        uplink: (reports, orders),
        run: RunKey {
            token: arguments.token.clone(),
            run: welcome.run,
        },
        checkpoints,
        copies,
        tokens_per_sample: u64::from(job.model.sample_length()),
        memory_taken: Box::new(move || memory::most_taken(device)),
    };
    drop(introduction);
    agent::run(parts, drain).await.map_err(Into::into)
}

/// What the protocol needs to know of the job and of this worker.
fn member(arguments: &Arguments, me: WorkerId, job: &Job) -> MemberConfig {
    MemberConfig {
        follows: !arguments.without.has(Ablation::Following),
        parameters_first: !arguments.without.has(Ablation::ParametersFirst),
        id: me,
        layout: job.layout(),
        last_step: Step(job.training.steps),
        checkpoint_every: job.checkpoint.as_ref().map(varuna_api::Checkpoint::regular_steps),
        compare_every: job.compare_every_steps,
        timing: MemberTiming::default(),
    }
}

/// Memory for copies of states, within what this process may use of the host's, bytes.
fn memory_of_copies(host: Option<u64>) -> Arc<Buffers> {
    let room = move |now, most| memory::room_for_copies(host?, now, most);
    Arc::new(Buffers::within(Box::new(room)))
}

/// Checkpoints of a job that is trained with this many threads. `reader` is this worker, for people.
fn checkpoints(
    store: Store,
    (job, model): (&Job, &Module),
    buffers: &Arc<Buffers>,
    reader: String,
    threads: u32,
) -> std::io::Result<Checkpoints> {
    let rate = job.checkpoint.as_ref().and_then(|c| c.upload_bytes_per_second);
    Checkpoints::start(CheckpointsConfig {
        store,
        model: model.clone(),
        scaling: job.training.loss_scaling,
        rate_limit: RateLimit::new(rate),
        tokenizer: DataTokenizer::of(job.data.clone()),
        buffers: Arc::clone(buffers),
        reader,
        idle_processors: processors::idle_beside(threads),
    })
}

/// SIGTERM and Ctrl-C are notices.
fn notices() -> Result<Receiver<()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (tell, drain) = channel(1);
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("notice: this worker asks to be planned around");
            if tell.send(()).await.is_err() {
                return;
            }
        }
    });
    Ok(drain)
}

/// The device that the job names.
fn device_of(job: &Job, platform: Platform) -> Result<Device> {
    let choice = match job.workers.device {
        WorkerDevice::Auto => DeviceChoice::Auto,
        WorkerDevice::Cpu => DeviceChoice::Cpu,
        WorkerDevice::Cuda => DeviceChoice::AnyCuda,
    };
    (platform.device)(choice).context("spec.workers.device of the job file")
}

/// Where the coordinator is, by the command line.
fn reached(arguments: &Arguments, coordinator: &str) -> uplink::Coordinator {
    uplink::Coordinator {
        address: coordinator.to_owned(),
        certificate: arguments.certificate.clone().filter(|c| !c.is_empty()),
        token: arguments.token.clone(),
    }
}

/// Waits until the coordinator takes this worker in; it may come up later than its workers. None after a notice: nobody plans with this worker
/// yet, so it can go at once.
async fn first_welcome(
    (orders, drain): (&mut Receiver<UplinkEvent>, &mut Receiver<()>),
    coordinator: &str,
) -> Result<Option<Welcome>> {
    loop {
        let event = tokio::select! {
            // Who was taken in before the notice hands it to its coordinator.
            biased;
            event = orders.recv() => event,
            Some(()) = drain.recv() => {
                tracing::info!(coordinator, "this worker ends: it was not taken in before the notice");
                return Ok(None);
            }
        };
        match event {
            Some(UplinkEvent::Up(welcome)) => return Ok(Some(welcome)),
            Some(UplinkEvent::Refused(reason)) => {
                bail!("the coordinator at {coordinator} refused this worker: {reason}")
            }
            Some(UplinkEvent::Down | UplinkEvent::Order { .. }) => {}
            None => return Err(anyhow!("the stream to {coordinator} ended")),
        }
    }
}

/// How this worker computes, and what its attention takes for scores that it makes.
fn backend(
    arguments: &Arguments,
    (shared, platform): ((Device, u32), Platform),
    job: &Job,
) -> Result<(Backend, Option<ScoreMemory>)> {
    let (device, _) = shared;
    let opened = Backend::open(platform, shared, job.precision.into(), arguments.without);
    let (backend, why) = opened.with_context(|| format!("cannot compute on {device}"))?;
    let left_out = [Ablation::Kernels, Ablation::Optimizer].map(|part| arguments.without.has(part));
    if why.is_some() || left_out.contains(&true) {
        // Nobody asks workers for it: a mixture shows only where their copies of state are compared.
        tracing::warn!(
            "the optimizer is libtorch's here and not our own: it has other last bits, so all workers of the job should have it alike"
        );
    }
    if let Some(why) = why {
        tracing::warn!(%why, "libtorch's operators are used instead of kernels of our own");
    }
    let Some(model) = job.model.transformer() else {
        tracing::info!("computing a model of one's own");
        return Ok((backend, None));
    };
    let shape = attention_shape(model, job.training.packing, backend.numerics);
    let attention = Attention::select(arguments.attention, device, shape).context("--attention")?;
    let scores = score_memory(model, attention, backend.numerics);
    // Nobody asked for it.
    if let (AttentionChoice::Auto, Some(scores)) = (arguments.attention, scores) {
        tracing::warn!(
            saved_bytes = scores.saved_bytes,
            forward_bytes = scores.forward_bytes,
            backward_bytes = scores.backward_bytes,
            "libtorch has no fused attention for this model on {device}: each block keeps its scores, so many bytes of a sample, until its \
             backward, and takes more while it computes; the planner counts that where the job has no profile"
        );
    }
    tracing::info!(kernels = ?backend.kernels, %attention, without = %backend.without, "computing");
    Ok((backend, scores))
}

fn engine((me, backend): (WorkerId, Backend), (job, model): (&Job, Module), data: TrainingData) -> Engine {
    Engine::new(EngineConfig {
        me,
        model,
        training: job.training.clone(),
        backend,
        samples: Arc::new(DatasetSamples(data)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn notice_before_the_first_welcome_ends_the_worker() {
        let ((events, mut orders), (tell, mut drain)) = (channel(4), channel(1));
        let run = "demo-1".to_owned();
        let welcome = Welcome {
            job: String::new(),
            run: run.clone(),
            data_fingerprint: String::new(),
        };
        events.send(UplinkEvent::Down).await.unwrap();
        tell.send(()).await.unwrap();
        let ended = first_welcome((&mut orders, &mut drain), "c:1").await.unwrap();
        assert!(ended.is_none(), "the coordinator is away");
        events.send(UplinkEvent::Up(welcome)).await.unwrap();
        tell.send(()).await.unwrap();
        let taken_in = first_welcome((&mut orders, &mut drain), "c:1").await.unwrap();
        assert_eq!(taken_in.map(|welcome| welcome.run), Some(run));
        assert!(drain.try_recv().is_ok(), "its agent hears of the notice");
    }
}
