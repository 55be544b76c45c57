//! Many workers in one process, for `make bench-coordinator`: the shipped agent and uplink with an engine that computes nothing.
//! Each has its own stream to the coordinator. Connections between workers are the shipped ones over TCP, or, with `--in-memory`,
//! none at all. Commands come on the standard input: `add FIRST COUNT` starts workers with these numbers, `kill NUMBER` ends one as
//! if its process had died.

mod hub;
mod stub;

use anyhow::{Context, Result, bail};
use clap::Parser;
use hub::{Connections, Hub};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use stub::{Stub, tiny};
use tokio::io::AsyncBufReadExt as _;
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::JoinHandle;
use varuna_api::parse_job_of_any_release;
use varuna_frames::RunKey;
use varuna_model::Transformer;
use varuna_plan::state::mix;
use varuna_plan::{Moments, Step, WorkerId};
use varuna_protocol::{MemberConfig, MemberTiming};
use varuna_wire::{Hello, Welcome};
use varuna_worker::agent::uplink::{self, UplinkEvent};
use varuna_worker::agent::{self, AgentEvent, AgentParts};
use varuna_worker::numerics::Numerics;
use varuna_worker::transport::data_plane::DataPlane;
use varuna_worker::transport::tcp::{Mesh, of_job};

/// Limit of waiting events, as in the worker.
const EVENTS: usize = 4096;
/// Bytes that wait from each peer: nothing but what the protocol sends.
const BYTES_MAX: usize = 4 << 20;
/// Workers of one node, by their numbers.
const NODE: u64 = 8;

#[derive(Parser)]
struct Arguments {
    /// Address of the coordinator (host:port).
    #[arg(long)]
    coordinator: String,
    /// The run's token.
    #[arg(long, env = "VARUNA_TOKEN", default_value = "", hide_env_values = true)]
    token: String,
    /// Certificate (PEM) that the coordinator must present.
    #[arg(long, env = "VARUNA_CERTIFICATE", hide_env_values = true)]
    certificate: Option<String>,
    /// Time of a step's computation, in milliseconds.
    #[arg(long, default_value_t = 100)]
    step_ms: u64,
    /// Workers of this process reach each other without sockets, and do not reach other workers.
    #[arg(long)]
    in_memory: bool,
}

/// What all workers of this process share.
struct Common {
    arguments: Arguments,
    hub: Option<Arc<Hub>>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("VARUNA_LOG").unwrap_or_else(|_| "error".into());
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_env_filter(filter)
        .init();
    let hub = arguments.in_memory.then(Arc::default);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start")?
        .block_on(obey(Arc::new(Common { arguments, hub })))
}

/// Carries out the commands until there are no more.
async fn obey(common: Arc<Common>) -> Result<()> {
    let mut workers: BTreeMap<u64, JoinHandle<()>> = BTreeMap::new();
    let mut commands = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    while let Some(command) = commands.next_line().await.context("standard input")? {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words[..] {
            ["add", first, count] => {
                let (first, count): (u64, u64) = (first.parse()?, count.parse()?);
                for number in first..first + count {
                    workers.insert(number, tokio::spawn(work_or_say(Arc::clone(&common), number)));
                }
            }
            ["kill", number] => {
                if let Some(worker) = workers.remove(&number.parse()?) {
                    worker.abort();
                }
            }
            _ => bail!("{command:?} is neither \"add FIRST COUNT\" nor \"kill NUMBER\""),
        }
    }
    Ok(())
}

async fn work_or_say(common: Arc<Common>, number: u64) {
    if let Err(error) = work(&common, number).await {
        eprintln!("worker {number}: {error:#}");
    }
}

/// The connections of one worker.
enum Plane {
    Tcp(Mesh),
    Memory(Connections),
}

impl Plane {
    fn start(common: &Common, me: WorkerId, events: Sender<AgentEvent>) -> Result<Plane> {
        if let Some(hub) = &common.hub {
            return Ok(Plane::Memory(hub.worker(me, events)));
        }
        let mesh = Mesh::listen_bounded(me, "127.0.0.1:0", BYTES_MAX, move |event| {
            let _ = events.blocking_send(AgentEvent::Peer(event));
        });
        mesh.map(Plane::Tcp).context("cannot listen for peers")
    }

    fn address(&self, number: u64) -> String {
        match self {
            Plane::Tcp(mesh) => mesh.address().to_string(),
            // As long as a real one.
            Plane::Memory(_) => format!("10.0.{}.{}:4000", number / 256 % 256, number % 256),
        }
    }

    fn of_model(self, model: &Transformer, global_batch_size: u64) -> Box<dyn DataPlane> {
        match self {
            Plane::Tcp(mesh) => {
                mesh.limit(of_job(
                    (&model.clone().into(), model.layout()),
                    global_batch_size,
                    Numerics::FP32.boundary(),
                    Moments::Adam,
                ));
                Box::new(mesh)
            }
            Plane::Memory(connections) => Box::new(connections),
        }
    }
}

/// An id that is as random as a real one.
fn id(number: u64) -> WorkerId {
    WorkerId(mix(number, 1).max(1))
}

async fn work(common: &Common, number: u64) -> Result<()> {
    let (me, arguments) = (id(number), &common.arguments);
    let (events, inbox) = channel(EVENTS);
    let plane = Plane::start(common, me, events.clone())?;
    let to = uplink::Coordinator {
        address: arguments.coordinator.clone(),
        certificate: arguments.certificate.clone().filter(|c| !c.is_empty()),
        token: arguments.token.clone(),
    };
    let (reports, mut orders) = uplink::start(to, hello(number, plane.address(number)));
    let Welcome { job, run, .. } = loop {
        match orders.recv().await {
            Some(UplinkEvent::Up(welcome)) => break welcome,
            Some(UplinkEvent::Refused(reason)) => bail!("refused: {reason}"),
            Some(_) => {}
            None => bail!("the stream to the coordinator ended"),
        }
    };
    let job = parse_job_of_any_release(&job).context("the coordinator's job file is not valid here")?;
    let model = tiny(&job)?;
    let parts = AgentParts {
        member: MemberConfig {
            follows: true,
            parameters_first: false,
            id: me,
            layout: job.layout(),
            last_step: Step(job.training.steps),
            checkpoint_every: None,
            compare_every: job.compare_every_steps,
            timing: MemberTiming::default(),
        },
        mesh: plane.of_model(&model, job.training.global_batch_size),
        engine: Stub {
            me,
            step: Duration::from_millis(arguments.step_ms),
            model,
        },
        threads: 1,
        events: (events, inbox),
        uplink: (reports, orders),
        run: RunKey {
            token: arguments.token.clone(),
            run,
        },
        checkpoints: None,
        copies: Arc::default(),
        tokens_per_sample: u64::from(job.model.sample_length()),
        memory_taken: Box::new(|| None),
    };
    let (_never, drain) = channel(1);
    Ok(agent::run(parts, drain).await?)
}

fn hello(number: u64, address: String) -> Hello {
    Hello {
        worker: id(number),
        name: format!("worker-{number}"),
        address,
        node: format!("node-{}", (number - 1) / NODE),
        host: "stub".into(),
        pid: std::process::id(),
        hardware: None,
        workers_on_gpu: 1,
        memory_bytes: None,
        copies_bytes: None,
        scores: None,
        device: "stub".into(),
        speed: 1.0,
        run: String::new(),
    }
}
