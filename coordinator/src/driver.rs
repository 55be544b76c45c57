//! The task that owns the protocol's machine: inputs in, effects out, in order.

use crate::CoordinatorError;
use crate::folder::{Contact, Metric, RunFolder, now_ms};
use crate::server::Service;
use crate::store::{FileStore, RecordStore};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{oneshot, watch};
use tonic::Status;
use varuna_api::Job;
use varuna_plan::{StateId, Step, WorkerId};
use varuna_protocol::coordinator::{self, CoordinatorConfig, CoordinatorEffect, CoordinatorInput};
use varuna_protocol::coordinator::{Event, Outcome, Snapshot, Timing};
use varuna_protocol::{Coordinator, Order, Time};
use varuna_wire::v1::Down;
use varuna_wire::v1::coordinator_server::CoordinatorServer;
use varuna_wire::{Downward, Hello, MESSAGE_BYTES_MAX, StepMetrics, Upward, Welcome};

/// How often the machine sees the clock.
const TICK: Duration = Duration::from_millis(20);
/// `status.json` and watchers are brought up to date at most so often.
const PUBLISH: Duration = Duration::from_millis(50);
/// Inbound messages that may wait; senders wait when there are more.
const INBOUND: usize = 4096;
/// After the end, workers get so long to take their last order.
const FAREWELL: Duration = Duration::from_millis(300);

/// Identity of one stream: only a worker's newest counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct StreamNumber(pub(crate) u64);

/// What reaches the driver.
pub(crate) enum Inbound {
    Attached { number: StreamNumber, hello: Hello, orders: Sender<Result<Down, Status>> },
    Said { worker: WorkerId, number: StreamNumber, word: Upward },
    Detached { worker: WorkerId, number: StreamNumber },
    Status(oneshot::Sender<String>),
    Scale(u32, oneshot::Sender<Result<String, String>>),
    Stop,
}

/// Another number of workers is wanted; answered with a sentence, or why not.
pub struct ScaleRequest {
    /// How many there shall be.
    pub workers: u32,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Result<String, String>>,
}

/// What a coordinator is started with.
pub struct Options {
    /// The job, and its file as written.
    pub job: Job,
    /// The job file's text.
    pub job_text: String,
    /// Fingerprint of the dataset, empty = not known.
    pub data_fingerprint: String,
    /// Where to listen; port 0 = any free one.
    pub bind: String,
    /// The run's token; workers and commands must know it.
    pub token: String,
    /// Deadlines.
    pub timing: Timing,
    /// Who can start and stop workers, if anyone.
    pub scale: Option<Sender<ScaleRequest>>,
}

/// What watchers see.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The machine's present state.
    pub snapshot: Option<Snapshot>,
    /// The last committed step.
    pub metric: Option<Metric>,
    /// Diary entries in words, numbered; watchers remember what they have shown.
    pub diary: VecDeque<(u64, String)>,
}

/// The handle to a running coordinator.
pub struct Control {
    /// Where it listens.
    pub address: SocketAddr,
    /// Brought up to date a few times a second.
    pub view: watch::Receiver<View>,
    /// Ends the run in an orderly way.
    pub stop: Sender<()>,
    /// How it ended.
    pub outcome: tokio::task::JoinHandle<Result<Outcome, CoordinatorError>>,
}

/// Starts a coordinator on a run folder.
///
/// # Errors
/// It cannot listen, or the folder's record cannot be read.
pub async fn serve(options: Options, folder: RunFolder) -> Result<Control, CoordinatorError> {
    let listen = |source| CoordinatorError::Listen { address: options.bind.clone(), source };
    let listener = tokio::net::TcpListener::bind(&options.bind).await.map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let contact = Contact { address: address.to_string(), token: options.token.clone(), pid: std::process::id() };
    folder.write_contact(&contact)?;
    let (inbound, inbox) = channel(INBOUND);
    let service = Service {
        inbound: inbound.clone(),
        token: options.token.clone(),
        job_hash: options.job.spec_hash(),
        streams: Arc::new(AtomicU64::new(1)),
    };
    let service = CoordinatorServer::new(service)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let server = tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(Duration::from_secs(2)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .add_service(service)
        .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener));
    let (publish, view) = watch::channel(View::default());
    let mut driver = Driver::new(options, folder, publish)?;
    let (stop, mut stopped) = channel::<()>(1);
    let outcome = tokio::spawn(async move {
        tokio::select! {
            outcome = driver.run(inbox) => outcome,
            result = server => {
                result?;
                Ok(Outcome::Stopped)
            }
        }
    });
    tokio::spawn(async move {
        while stopped.recv().await.is_some() {
            if inbound.send(Inbound::Stop).await.is_err() {
                return;
            }
        }
    });
    Ok(Control { address, view, stop, outcome })
}

/// A worker's newest stream.
struct Attached {
    number: StreamNumber,
    orders: Sender<Result<Down, Status>>,
    hello: Hello,
    timings: Option<StepMetrics>,
}

struct Driver {
    machine: Coordinator,
    options: Options,
    store: FileStore,
    folder: RunFolder,
    streams: BTreeMap<WorkerId, Attached>,
    publish: watch::Sender<View>,
    view: View,
    start: Instant,
    published_at: Instant,
    step_at: Instant,
    diary_number: u64,
    outcome: Option<Outcome>,
}

fn entropy() -> Result<[u8; 16], CoordinatorError> {
    let mut bytes = [0; 16];
    let mut source = std::fs::File::open("/dev/urandom").map_err(CoordinatorError::Entropy)?;
    source.read_exact(&mut bytes).map_err(CoordinatorError::Entropy)?;
    Ok(bytes)
}

impl Driver {
    fn new(options: Options, folder: RunFolder, publish: watch::Sender<View>) -> Result<Driver, CoordinatorError> {
        let mut store = FileStore::new(folder.path().join("record.json"));
        store.read()?;
        let config = CoordinatorConfig {
            layout: options.job.model.layout(),
            global_batch_size: options.job.training.global_batch_size,
            last_step: Step(options.job.training.steps),
            min_workers: options.job.elasticity.min_workers as usize,
            timing: options.timing,
            final_checkpoint: false,
            published: folder.last().map(|m| m.state),
            secret_seed: entropy()?,
        };
        let machine = Coordinator::new(config, Box::new(crate::planner(&options.job)));
        let now = Instant::now();
        Ok(Driver {
            machine,
            options,
            store,
            folder,
            streams: BTreeMap::new(),
            publish,
            view: View::default(),
            start: now,
            published_at: now,
            step_at: now,
            diary_number: 0,
            outcome: None,
        })
    }

    async fn run(&mut self, mut inbox: Receiver<Inbound>) -> Result<Outcome, CoordinatorError> {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(inbound) = inbox.recv() => self.take(inbound),
                _ = ticks.tick() => self.feed(CoordinatorInput::Tick),
            }
            if self.published_at.elapsed() >= PUBLISH || self.outcome.is_some() {
                self.show();
            }
            if let Some(outcome) = self.outcome.take() {
                // The last orders are on their way; closing the streams at once could overtake them.
                tokio::time::sleep(FAREWELL).await;
                return Ok(outcome);
            }
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn take(&mut self, inbound: Inbound) {
        match inbound {
            Inbound::Attached { number, hello, orders } => self.attach(number, hello, orders),
            Inbound::Said { worker, number, word } => {
                let Some(stream) = self.streams.get_mut(&worker).filter(|s| s.number == number) else { return };
                match word {
                    Upward::Report(report) => self.feed(CoordinatorInput::Report { from: worker, report }),
                    Upward::Metrics(timings) => stream.timings = Some(timings),
                    Upward::Hello(_) => {}
                }
            }
            Inbound::Detached { worker, number } => {
                if self.streams.get(&worker).is_some_and(|s| s.number == number) {
                    self.streams.remove(&worker);
                    self.feed(CoordinatorInput::StreamDown { from: worker });
                }
            }
            Inbound::Status(tell) => drop(tell.send(self.status().to_string())),
            Inbound::Scale(workers, answer) => {
                let request = ScaleRequest { workers, answer };
                let refused = match &self.options.scale {
                    Some(scale) => scale.try_send(request).err().map(|e| (e.into_inner(), "another change is under way")),
                    None => Some((request, "workers of this run are started by hand: start or stop them where they run")),
                };
                if let Some((request, why)) = refused {
                    drop(request.answer.send(Err(why.to_owned())));
                }
            }
            Inbound::Stop => self.feed(CoordinatorInput::Stop),
        }
    }

    fn attach(&mut self, number: StreamNumber, hello: Hello, orders: Sender<Result<Down, Status>>) {
        let from = hello.worker;
        if self.streams.get(&from).is_some_and(|s| s.number > number) {
            return;
        }
        let welcome = Downward::Welcome(Welcome {
            job: self.options.job_text.clone(),
            job_hash: self.options.job.spec_hash(),
            data_fingerprint: self.options.data_fingerprint.clone(),
        });
        let spoken = coordinator::Hello {
            address: hello.address.clone(),
            name: hello.name.clone(),
            node: hello.node.clone(),
            memory_bytes: hello.memory_bytes,
            speed: hello.speed,
        };
        self.streams.insert(from, Attached { number, orders, hello, timings: None });
        self.send(from, &welcome);
        self.feed(CoordinatorInput::StreamUp { from, hello: spoken });
    }

    /// One input to the machine, its effects in order, and what those cause at once.
    fn feed(&mut self, input: CoordinatorInput) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let mut effects = Vec::new();
            self.machine.handle(self.now(), input, &mut effects);
            for effect in effects {
                inputs.extend(self.carry_out(effect));
            }
        }
    }

    fn carry_out(&mut self, effect: CoordinatorEffect) -> Option<CoordinatorInput> {
        match effect {
            CoordinatorEffect::Send { to, order } => {
                if let Order::Prepare(plan) = &order {
                    self.folder.plan(plan);
                }
                self.send(to, &Downward::Order(order));
            }
            CoordinatorEffect::Write { expect, record } => {
                let ok = self.store.compare_and_swap(expect, &record).unwrap_or_else(|error| {
                    tracing::error!(%error, "the record cannot be written; training goes on under the present plan");
                    false
                });
                return Some(CoordinatorInput::Written { ok, record });
            }
            CoordinatorEffect::ReadRecord => match self.store.read() {
                Ok(record) => return Some(CoordinatorInput::Record(record)),
                // Not answered: the machine asks again.
                Err(error) => tracing::error!(%error, "the record cannot be read"),
            },
            // Without a store, the state that every worker can make from the seed is the only checkpoint.
            CoordinatorEffect::ListCheckpoints => {
                return Some(CoordinatorInput::Checkpoints(vec![StateId::INITIAL]));
            }
            CoordinatorEffect::Event(event) => self.tell(&event),
            CoordinatorEffect::Finish(outcome) => self.outcome = Some(outcome),
        }
        None
    }

    fn send(&mut self, to: WorkerId, down: &Downward) {
        let Some(stream) = self.streams.get(&to) else { return };
        let sent = match down.to_wire(self.machine.term()) {
            Ok(wire) => stream.orders.try_send(Ok(wire)).is_ok(),
            Err(error) => {
                tracing::error!(%error, "an order cannot be written");
                true
            }
        };
        if !sent {
            // It takes no orders: its stream ends, and it attaches anew if it lives.
            self.streams.remove(&to);
        }
    }

    fn tell(&mut self, event: &Event) {
        if let Event::Committed { id, generation, step, loss, eval_loss, gradient_norm, overflow } = event {
            let snapshot = self.machine.snapshot();
            let job = &self.options.job;
            let metric = Metric {
                step: *step,
                loss: *loss,
                eval_loss: *eval_loss,
                gradient_norm: *gradient_norm,
                overflow: *overflow,
                generation: *generation,
                workers: snapshot.members,
                plan: snapshot.plan.unwrap_or_default(),
                tokens: job.training.global_batch_size * u64::from(job.model.sequence_length),
                step_ms: self.step_at.elapsed().as_secs_f64() * 1e3,
                time_ms: now_ms(),
                state: *id,
            };
            self.step_at = Instant::now();
            self.folder.metric(metric.clone());
            self.view.metric = Some(metric);
            return;
        }
        let entry = serde_json::to_value(event).unwrap_or_default();
        let text = words(&entry);
        tracing::info!("{text}");
        self.folder.event(entry);
        self.diary_number += 1;
        self.view.diary.push_back((self.diary_number, text));
        if self.view.diary.len() > 64 {
            self.view.diary.pop_front();
        }
    }

    /// The content of `status.json`.
    fn status(&self) -> Value {
        let snapshot = self.machine.snapshot();
        let mut status = serde_json::to_value(&snapshot).unwrap_or_default();
        let workers: Vec<Value> = snapshot
            .workers
            .iter()
            .filter(|w| w.up)
            .map(|worker| {
                let mut value = serde_json::to_value(worker).unwrap_or_default();
                if let (Some(fields), Some(stream)) = (value.as_object_mut(), self.streams.get(&worker.id)) {
                    fields.insert("pid".into(), stream.hello.pid.into());
                    fields.insert("host".into(), stream.hello.host.clone().into());
                    fields.insert("device".into(), stream.hello.device.clone().into());
                    fields.insert("timings".into(), stream.timings.as_ref().map_or(Value::Null, timings));
                }
                value
            })
            .collect();
        if let Some(fields) = status.as_object_mut() {
            let last = self.folder.last();
            fields.insert("job".into(), self.options.job.name.clone().into());
            fields.insert("loss".into(), last.map(|m| m.loss).into());
            fields.insert("workers".into(), workers.into());
        }
        status
    }

    fn show(&mut self) {
        self.published_at = Instant::now();
        let status = self.status();
        self.folder.status(&status);
        self.view.snapshot = Some(self.machine.snapshot());
        // Nobody may be watching.
        let _ = self.publish.send(self.view.clone());
    }
}

fn timings(t: &StepMetrics) -> Value {
    json!({
        "step": t.step, "stepMs": t.step_ms, "forwardMs": t.forward_ms, "backwardMs": t.backward_ms,
        "recomputeMs": t.recompute_ms, "waitMs": t.wait_ms, "reduceMs": t.reduce_ms, "applyMs": t.apply_ms,
    })
}

/// A diary entry as one line for people.
fn words(entry: &Value) -> String {
    let Some(fields) = entry.as_object() else { return entry.to_string() };
    let kind = fields.get("event").and_then(Value::as_str).unwrap_or("event");
    let rest = fields.iter().filter(|(key, _)| *key != "event" && *key != "worker");
    let rest: Vec<String> = rest
        .map(|(key, value)| match value {
            Value::String(text) => format!("{key}={text}"),
            Value::Object(_) => format!("{key}={}", value.get("step").unwrap_or(value)),
            Value::Array(items) => format!("{key}={}", items.len()),
            Value::Number(n) if n.is_f64() => format!("{key}={:.1}", n.as_f64().unwrap_or_default()),
            other => format!("{key}={other}"),
        })
        .collect();
    format!("{kind} {}", rest.join(" "))
}
