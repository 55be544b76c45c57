//! The task that owns the protocol's machine: inputs in, effects out, in order.

mod diary;
mod elsewhere;
mod saving;

use crate::CoordinatorError;
use crate::checkpoints::{Known, Watch};
use crate::folder::RunFolder;
use crate::in_order::InOrder;
use crate::keeping::Keeping;
use crate::narrator::Narrator;
use crate::serve::{self, Options, ScaleRequest, View};
use crate::words::{observed, status_document};
use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::sync::{oneshot, watch};
use tonic::Status;
use varuna_plan::{StateId, Step, WorkerId};
use varuna_protocol::coordinator::Outcome;
use varuna_protocol::coordinator::{self, CoordinatorConfig, CoordinatorEffect, CoordinatorInput};
use varuna_protocol::{Coordinator, Order, Time};
use varuna_wire::v1::Down;
use varuna_wire::{Downward, Hello, StepMetrics, Upward, Welcome};

/// How often the machine sees the clock.
const TICK: Duration = Duration::from_millis(20);
/// Watchers are brought up to date at most so often.
const PUBLISH: Duration = Duration::from_millis(50);
/// `status.json` is replaced at most so often.
const STATUS: Duration = Duration::from_millis(250);
/// Checkpoints are stale when the newest is so many intervals behind: one may be on its way, one may have given way to the next.
const STALE_INTERVALS: u64 = 3;
/// After the end, workers get so long to take their last order.
const FAREWELL: Duration = Duration::from_millis(300);

/// Identity of one stream: only a worker's newest counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct StreamNumber(pub(crate) u64);

/// What reaches the driver.
pub(crate) enum Inbound {
    Attached {
        number: StreamNumber,
        hello: Hello,
        orders: Sender<Result<Down, Status>>,
    },
    Said {
        worker: WorkerId,
        number: StreamNumber,
        word: Upward,
    },
    Detached {
        worker: WorkerId,
        number: StreamNumber,
    },
    Status(oneshot::Sender<String>),
    Checkpoints(Known),
    /// This run writes there no more: the other one.
    Taken(String),
    /// The process with this id, on this host, has ended.
    Ended(u32),
    /// Seen by somebody else.
    Known(serve::Known),
    Scale(u32, oneshot::Sender<Result<String, String>>),
    /// A checkpoint is wanted; answered with the steps done.
    Save(oneshot::Sender<Result<u64, String>>),
    /// What a store that is asked by a thread of its own answers.
    Stored(CoordinatorInput),
    Stop,
}

/// A worker's newest stream.
pub(crate) struct Attached {
    number: StreamNumber,
    orders: Sender<Result<Down, Status>>,
    pub(crate) hello: Hello,
    pub(crate) timings: Option<StepMetrics>,
}

pub(crate) struct Driver {
    machine: Coordinator,
    options: Options,
    store: Keeping,
    checkpoints: Option<Watch>,
    known: Known,
    taken: Option<String>,
    stale: bool,
    /// When the newest checkpoint was first seen.
    saved_at: Instant,
    folder: RunFolder,
    order: InOrder,
    streams: BTreeMap<WorkerId, Attached>,
    /// Workers of this host by process.
    processes: BTreeMap<u32, WorkerId>,
    publish: watch::Sender<View>,
    view: View,
    start: Instant,
    published_at: Instant,
    status_at: Instant,
    /// `status.json` is older than what it tells of.
    status_due: bool,
    /// What watchers were last shown: diary entry, event, state.
    shown: (u64, Option<u64>, Option<StateId>),
    step_at: Instant,
    diary_number: u64,
    narrator: Narrator,
    outcome: Option<Outcome>,
}

fn entropy() -> Result<[u8; 16], CoordinatorError> {
    let mut bytes = [0; 16];
    let mut source = std::fs::File::open("/dev/urandom").map_err(CoordinatorError::Entropy)?;
    source.read_exact(&mut bytes).map_err(CoordinatorError::Entropy)?;
    Ok(bytes)
}

impl Driver {
    pub(crate) fn new(
        mut options: Options,
        folder: RunFolder,
        store: Keeping,
        publish: watch::Sender<View>,
        inbound: &Sender<Inbound>,
    ) -> Result<Driver, CoordinatorError> {
        let settings = options.job.checkpoint.as_ref();
        let config = CoordinatorConfig {
            layout: options.job.model.layout(),
            global_batch_size: options.job.training.global_batch_size,
            last_step: Step(options.job.training.steps),
            min_workers: options.job.elasticity.min_workers as usize,
            timing: options.timing,
            expected_workers: options.expected_workers,
            final_checkpoint: options.checkpoints.is_some(),
            save_every: settings.and_then(|c| c.interval_seconds).map(Duration::from_secs),
            published: folder.last().map(|m| m.state),
            secret_seed: entropy()?,
        };
        let machine = Coordinator::new(
            config,
            Box::new(crate::planner_with(&options.job, options.costs.as_ref())),
        );
        let start = |given| Watch::start(given, inbound.clone());
        let checkpoints = options.checkpoints.take().map(start);
        let now = Instant::now();
        let narrator = Narrator::new(options.job.model.layout());
        let order = InOrder::after(folder.last().map_or(Step(0), |m| m.step));
        Ok(Driver {
            machine,
            options,
            store,
            checkpoints,
            known: Known::default(),
            taken: None,
            stale: false,
            saved_at: now,
            folder,
            order,
            streams: BTreeMap::new(),
            processes: BTreeMap::new(),
            publish,
            view: View::default(),
            start: now,
            published_at: now,
            status_at: now,
            status_due: true,
            shown: (0, None, None),
            step_at: now,
            diary_number: 0,
            narrator,
            outcome: None,
        })
    }

    pub(crate) async fn run(&mut self, mut inbox: Receiver<Inbound>) -> Result<Outcome, CoordinatorError> {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(inbound) = inbox.recv() => self.take(inbound),
                _ = ticks.tick() => self.feed(CoordinatorInput::Tick),
            }
            let due = match self.outcome {
                None => self.order.overdue(Instant::now()),
                Some(_) => self.order.rest(),
            };
            self.publish_steps(due);
            if self.published_at.elapsed() >= PUBLISH || self.outcome.is_some() {
                self.show();
            }
            if let Some(outcome) = self.outcome.take() {
                // The last orders are on their way; closing the streams at once could overtake them.
                tokio::time::sleep(FAREWELL).await;
                if let Some(watch) = self.checkpoints.take() {
                    watch.end().await;
                }
                return match self.taken.take() {
                    Some(run) => Err(CoordinatorError::CheckpointsTaken { run }),
                    None => Ok(outcome),
                };
            }
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// What a worker says, where it comes by its newest stream.
    fn said(&mut self, worker: WorkerId, number: StreamNumber, word: Upward) {
        let Some(stream) = self.streams.get_mut(&worker).filter(|s| s.number == number) else {
            return;
        };
        match word {
            Upward::Report(report) => self.feed(CoordinatorInput::Report { from: worker, report }),
            Upward::Metrics(timings) => {
                let observed = observed(&timings);
                stream.timings = Some(timings);
                self.status_due = true;
                self.feed(CoordinatorInput::Observed {
                    from: worker,
                    observed,
                });
            }
            Upward::Hello(_) => {}
        }
    }

    fn take(&mut self, inbound: Inbound) {
        match inbound {
            Inbound::Attached {
                number,
                hello,
                orders,
            } => self.attach(number, hello, orders),
            Inbound::Said { worker, number, word } => self.said(worker, number, word),
            Inbound::Detached { worker, number } => {
                if self.streams.get(&worker).is_some_and(|s| s.number == number) {
                    self.streams.remove(&worker);
                    self.feed(CoordinatorInput::StreamDown { from: worker });
                }
            }
            Inbound::Status(tell) => drop(
                tell.send(
                    status_document(
                        &self.machine.snapshot(),
                        &self.options.job,
                        &self.folder,
                        &self.streams,
                        &self.known,
                    )
                    .to_string(),
                ),
            ),
            Inbound::Scale(workers, answer) => {
                let request = ScaleRequest { workers, answer };
                let refused = match &self.options.scale {
                    Some(scale) => scale
                        .try_send(request)
                        .err()
                        .map(|e| (e.into_inner(), "another change is under way")),
                    None => Some((
                        request,
                        "workers of this run are started by hand: start or stop them where they run",
                    )),
                };
                if let Some((request, why)) = refused {
                    drop(request.answer.send(Err(why.to_owned())));
                }
            }
            Inbound::Save(answer) => drop(answer.send(self.save())),
            Inbound::Checkpoints(known) => self.checkpoints(known),
            Inbound::Taken(run) => self.taken(run),
            Inbound::Ended(process) => {
                if let Some(worker) = self.processes.remove(&process) {
                    self.streams.remove(&worker);
                    self.feed(CoordinatorInput::ProcessEnded { worker });
                }
            }
            Inbound::Known(known) => self.seen_elsewhere(&known),
            Inbound::Stored(answer) => self.feed(answer),
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
        if self.options.host.as_deref() == Some(hello.host.as_str()) {
            self.processes.insert(hello.pid, from);
        }
        self.streams.insert(
            from,
            Attached {
                number,
                orders,
                hello,
                timings: None,
            },
        );
        if self.send(from, &welcome) {
            self.feed(CoordinatorInput::StreamUp { from, hello: spoken });
        }
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
                if !self.send(to, &Downward::Order(order)) {
                    return Some(CoordinatorInput::StreamDown { from: to });
                }
            }
            CoordinatorEffect::Write { expect, record } => {
                return self.store.write(expect, record);
            }
            CoordinatorEffect::ReadRecord => return self.store.read(),
            CoordinatorEffect::ListCheckpoints => match &self.checkpoints {
                Some(watch) => watch.ask(),
                // Without a store, the state that every worker can make from the seed is the only checkpoint.
                None => return Some(CoordinatorInput::Checkpoints(vec![StateId::INITIAL])),
            },
            CoordinatorEffect::Event(event) => self.tell(&event),
            CoordinatorEffect::Finish(outcome) => self.outcome = Some(outcome),
        }
        None
    }

    /// False where the worker takes no orders: its stream ends here, and it attaches anew if it lives.
    fn send(&mut self, to: WorkerId, down: &Downward) -> bool {
        let Some(stream) = self.streams.get(&to) else {
            return true;
        };
        let sent = match down.to_wire(self.machine.term()) {
            Ok(wire) => stream.orders.try_send(Ok(wire)).is_ok(),
            Err(error) => {
                tracing::error!(%error, "an order cannot be written");
                true
            }
        };
        if !sent {
            tracing::warn!(worker = %to, "takes no orders; its stream is closed");
            self.streams.remove(&to);
        }
        sent
    }
}
