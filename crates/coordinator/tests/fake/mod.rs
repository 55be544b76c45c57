//! Workers without an engine: the real `Member` and the real stream to the coordinator, a data plane in memory, and a model whose state is
//! one number for each unit. The result of a step is a fixed function of the state, so a step that is lost, repeated or mixed up is
//! detected.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use varuna_api::Job;
use varuna_plan::state::{UnitNorm, mix};
use varuna_plan::{Decision, Generation, Layout, Plan, StateId, Step, Unit, WorkerId};
use varuna_protocol::{Digests, Member, MemberConfig, MemberEffect, MemberInput, MemberTiming, Time};
use varuna_wire::{Downward, Hello, Upward};

/// Interval of a member's ticks, and of attempts to connect.
const TICK: Duration = Duration::from_millis(5);
/// Duration of a step.
const STEP: Duration = Duration::from_millis(3);

/// The loss of the step that starts after this many steps.
pub(crate) fn loss_of(step: Step) -> f64 {
    10.0 / (f64::from(u32::try_from(step.0).expect("few steps")) + 4.0)
}

/// A unit's part of the norm exchange. The part of the last segment has the loss.
fn norm_of(layout: Layout, unit: Unit, step: Step) -> UnitNorm {
    let loss = if unit.0 + 1 == layout.segments {
        loss_of(step)
    } else {
        0.0
    };
    UnitNorm {
        norm2: f64::from(unit.0 + 1),
        overflow: false,
        before: varuna_plan::OptimizerProgress::START,
        loss,
        eval_loss: None,
    }
}

/// The data plane of all workers of a test, with the values on which they must agree.
#[derive(Clone, Default)]
pub(crate) struct Net(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    inboxes: BTreeMap<WorkerId, UnboundedSender<DataMessage>>,
    /// Workers that accept connections, with their generations.
    open: BTreeSet<(WorkerId, Generation)>,
    connections: BTreeSet<(Generation, WorkerId, WorkerId)>,
    /// The bits of each state and unit: equal state ids must mean equal bits on every worker.
    bits: BTreeMap<(StateId, Unit), u64>,
    newest: Step,
    /// A worker whose device stores wrong bits.
    faulty: Option<WorkerId>,
    /// The step before which training waits.
    hold_before: Option<Step>,
}

/// A message of the data plane to a worker.
enum DataMessage {
    Input(MemberInput),
    State {
        unit: Unit,
        id: StateId,
        bits: u64,
        input: MemberInput,
    },
}

impl Net {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.0.lock().expect("no worker has failed"))
    }

    /// The greatest number of steps that any worker has done.
    pub(crate) fn newest(&self) -> Step {
        self.with(|n| n.newest)
    }

    /// From now on the worker's device stores wrong bits.
    pub(crate) fn damage(&self, worker: u64) {
        self.with(|n| n.faulty = Some(WorkerId(worker)));
    }

    /// Training waits before the step that would complete this many steps, until this is called without one.
    pub(crate) fn hold_before(&self, step: Option<Step>) {
        self.with(|n| n.hold_before = step);
    }

    fn close(&self, me: WorkerId, which: impl Fn(Generation) -> bool) {
        self.with(|n| {
            n.open.retain(|(w, g)| *w != me || !which(*g));
            let ends = |c: &(Generation, WorkerId, WorkerId)| (c.1 == me || c.2 == me) && which(c.0);
            let gone: Vec<_> = n.connections.iter().copied().filter(ends).collect();
            for (generation, a, b) in gone {
                n.connections.remove(&(generation, a, b));
                let other = if a == me { b } else { a };
                if let Some(inbox) = n.inboxes.get(&other) {
                    let _ = inbox.send(DataMessage::Input(MemberInput::Closed { generation, peer: me }));
                }
            }
        });
    }

    fn dial(&self, generation: Generation, me: WorkerId, peer: WorkerId) -> bool {
        self.with(|n| {
            let accepted = n.open.contains(&(peer, generation)) && n.open.contains(&(me, generation));
            if accepted {
                n.connections.insert((generation, me, peer));
            }
            accepted
        })
    }

    fn deliver(&self, generation: Generation, from: WorkerId, to: WorkerId, message: DataMessage) {
        self.with(|n| {
            let joined = n.connections.contains(&(generation, from, to))
                || n.connections.contains(&(generation, to, from));
            if let Some(inbox) = n.inboxes.get(&to).filter(|_| joined) {
                let _ = inbox.send(message);
            }
        });
    }

    fn agree(&self, id: StateId, unit: Unit, bits: u64) {
        self.with(|n| {
            n.newest = n.newest.max(id.step);
            let known = *n.bits.entry((id, unit)).or_insert(bits);
            assert_eq!(
                known, bits,
                "unit {unit} at {id} has other bits on another worker"
            );
        });
    }
}

/// A running fake worker.
pub(crate) struct Fake {
    pub(crate) id: WorkerId,
    net: Net,
    task: JoinHandle<()>,
}

impl Fake {
    /// Starts a worker.
    pub(crate) fn start(net: &Net, job: &Job, coordinator: String, token: &str, number: u64) -> Fake {
        Fake::start_as(net, job, (coordinator, token.to_owned()), hello(number))
    }

    /// Starts a worker with this hello, which attaches to a coordinator with its token.
    pub(crate) fn start_as(net: &Net, job: &Job, to: (String, String), hello: Hello) -> Fake {
        let number = hello.worker.0;
        let id = WorkerId(number);
        let (inbox, message) = unbounded_channel();
        net.with(|n| n.inboxes.insert(id, inbox));
        let config = MemberConfig {
            follows: false,
            parameters_first: false,
            id,
            layout: job.layout(),
            last_step: Step(job.training.steps),
            checkpoint_every: None,
            compare_every: job.compare_every_steps,
            timing: MemberTiming {
                heartbeat: Duration::from_millis(200),
                ..MemberTiming::default()
            },
        };
        let worker = Worker {
            member: Member::new(config),
            layout: config.layout,
            me: id,
            net: net.clone(),
            start: Instant::now(),
            held: BTreeMap::new(),
            staged: BTreeMap::new(),
            dials: BTreeSet::new(),
            running: None,
            up: None,
            released: false,
        };
        let task = tokio::spawn(worker.live(hello, to, message));
        Fake {
            id,
            net: net.clone(),
            task,
        }
    }

    /// Kills the worker, as SIGKILL would.
    pub(crate) fn kill(self) {
        self.task.abort();
        self.net.with(|n| n.inboxes.remove(&self.id));
        self.net.close(self.id, |_| true);
    }

    /// Waits until the worker is released.
    pub(crate) async fn released(self) {
        self.task.await.expect("the worker has not failed");
    }
}

/// The hello of worker `number`.
pub(crate) fn hello(number: u64) -> Hello {
    Hello {
        worker: WorkerId(number),
        name: format!("w{number}"),
        address: format!("fake:{number}"),
        node: "here".into(),
        host: "here".into(),
        pid: 1,
        hardware: None,
        workers_on_gpu: 0,
        memory_bytes: None,
        copies_bytes: None,
        scores: None,
        device: "none".into(),
        speed: 1.0,
        run: String::new(),
    }
}

/// The two directions of a stream.
struct Stream {
    up: tokio::sync::mpsc::Sender<varuna_wire::v1::Up>,
    down: tonic::Streaming<varuna_wire::v1::Down>,
}

async fn attach(hello: &Hello, (coordinator, token): &(String, String)) -> Option<Stream> {
    let mut client = varuna_wire::connect(coordinator, None, token).await.ok()?;
    let (up, requests) = channel(8192);
    up.send(Upward::Hello(hello.clone()).to_wire()).await.ok()?;
    let down = client
        .attach(ReceiverStream::new(requests))
        .await
        .ok()?
        .into_inner();
    Some(Stream { up, down })
}

struct Worker {
    member: Member,
    layout: Layout,
    me: WorkerId,
    net: Net,
    start: Instant,
    held: BTreeMap<Unit, u64>,
    staged: BTreeMap<(Unit, StateId), u64>,
    dials: BTreeSet<(Generation, WorkerId)>,
    running: Option<(tokio::time::Instant, Arc<Plan>, Step)>,
    up: Option<tokio::sync::mpsc::Sender<varuna_wire::v1::Up>>,
    released: bool,
}

/// The next message of the stream; none once it has ended. Without a stream, this waits for ever.
async fn next(down: &mut Option<tonic::Streaming<varuna_wire::v1::Down>>) -> Option<(u64, Downward)> {
    match down {
        Some(stream) => Downward::from_wire(stream.message().await.ok().flatten()?).ok(),
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Worker {
    /// Runs until the worker is released, with the coordinator at this address.
    async fn live(
        mut self,
        hello: Hello,
        coordinator: (String, String),
        mut message: UnboundedReceiver<DataMessage>,
    ) {
        let mut ticks = tokio::time::interval(TICK);
        let mut down = None;
        while !self.released {
            let until = self.running.as_ref().map(|r| r.0);
            tokio::select! {
                Some(message) = message.recv() => self.handle_message(message),
                word = next(&mut down) => match word {
                    Some((_, Downward::Welcome(_))) => self.feed(MemberInput::Stream),
                    Some((term, Downward::Order(order))) => self.feed(MemberInput::Order { term, order }),
                    Some((_, Downward::Refused { reason, .. })) => panic!("refused: {reason}"),
                    None => (self.up, down) = (None, None),
                },
                () = sleep_until(until) => self.finish_step(),
                _ = ticks.tick() => {
                    if down.is_none() && let Some(stream) = attach(&hello, &coordinator).await {
                        (self.up, down) = (Some(stream.up), Some(stream.down));
                    }
                    self.tick();
                }
            }
        }
        self.net.close(self.me, |_| true);
    }

    fn tick(&mut self) {
        for (generation, peer) in self.dials.clone() {
            if self.net.dial(generation, self.me, peer) {
                self.dials.remove(&(generation, peer));
                self.feed(MemberInput::Connected { generation, peer });
            }
        }
        self.feed(MemberInput::Tick);
    }

    fn handle_message(&mut self, message: DataMessage) {
        match message {
            DataMessage::Input(input) => self.feed(input),
            DataMessage::State {
                unit,
                id,
                bits,
                input,
            } => {
                self.staged.insert((unit, id), bits);
                self.feed(input);
            }
        }
    }

    fn finish_step(&mut self) {
        let held = self.net.with(|n| n.hold_before);
        if let Some((until, _, step)) = &mut self.running
            && held.is_some_and(|held| step.0 + 1 >= held.0)
        {
            *until += STEP;
            return;
        }
        if let Some((_, plan, step)) = self.running.take() {
            let norm = |unit| (unit, norm_of(self.layout, unit, step));
            let units = plan.units(self.me).into_iter().map(norm).collect();
            self.feed(MemberInput::Prepared {
                generation: plan.generation,
                step,
                units,
                store_busy: false,
            });
        }
    }

    fn feed(&mut self, input: MemberInput) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let now = Time(u64::try_from(self.start.elapsed().as_nanos()).expect("a short test"));
            let mut effects = vec![];
            self.member.handle(now, input, &mut effects);
            for effect in effects {
                inputs.extend(self.carry_out(effect));
            }
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each effect")]
    fn carry_out(&mut self, effect: MemberEffect) -> Vec<MemberInput> {
        let me = self.me;
        match effect {
            MemberEffect::Accepted(plan) => {
                self.net.with(|n| n.open.insert((me, plan.generation)));
            }
            MemberEffect::Connect { generation, peer, .. } => drop(self.dials.insert((generation, peer))),
            MemberEffect::Disconnect { generation } => {
                self.dials.retain(|(g, _)| *g != generation);
                self.net.close(me, |g| g == generation);
            }
            MemberEffect::Send {
                generation,
                to,
                message,
            } => {
                let input = MemberInput::Peer {
                    generation,
                    from: me,
                    message,
                };
                self.net.deliver(generation, me, to, DataMessage::Input(input));
            }
            MemberEffect::Serve {
                generation,
                to,
                unit,
                id,
                decision,
            } => {
                let input = MemberInput::Fetched {
                    generation,
                    from: me,
                    unit,
                    id,
                    decision,
                };
                let bits = self.held[&unit];
                self.net.deliver(
                    generation,
                    me,
                    to,
                    DataMessage::State {
                        unit,
                        id,
                        bits,
                        input,
                    },
                );
                return vec![MemberInput::Served { generation, to, unit }];
            }
            MemberEffect::Report(report) => {
                if let Some(up) = &self.up {
                    let _ = up.try_send(Upward::Report(report).to_wire());
                }
            }
            MemberEffect::Load {
                id: StateId::INITIAL,
                unit,
                ..
            } => {
                self.held.insert(unit, u64::from(unit.0));
                return vec![MemberInput::Loaded {
                    unit,
                    id: StateId::INITIAL,
                }];
            }
            MemberEffect::Load { .. }
            | MemberEffect::SaveUnit { .. }
            | MemberEffect::Copy { .. }
            | MemberEffect::Forward { .. }
            | MemberEffect::ForwardPrepared { .. }
            | MemberEffect::KeepGradient { .. }
            | MemberEffect::ApplyForwarded { .. }
            | MemberEffect::StopServing { .. } => {}
            MemberEffect::Adopt { unit, id } => {
                let bits = self
                    .staged
                    .remove(&(unit, id))
                    .expect("only what is staged is adopted");
                self.held.insert(unit, bits);
                self.net.agree(id, unit, bits);
                return vec![MemberInput::Loaded { unit, id }];
            }
            MemberEffect::Run { plan, step, .. } => {
                self.running = Some((tokio::time::Instant::now() + STEP, plan, step));
            }
            MemberEffect::Abort => {
                self.running = None;
                return vec![MemberInput::Stopped { prepared: vec![] }];
            }
            MemberEffect::Apply { decision, units } => return self.apply(&decision, &units),
            MemberEffect::Free { keep } => {
                self.held.retain(|unit, _| keep.contains(unit));
                self.staged.clear();
            }
            MemberEffect::Digest { id, saved, units } => {
                let faulty = self.net.with(|n| n.faulty == Some(me));
                let digest = |unit: Unit| (unit, self.held[&unit] ^ u64::from(faulty));
                let units = units.into_iter().map(digest).collect();
                return vec![MemberInput::Digested(Digests { id, saved, units })];
            }
            MemberEffect::Exit(_) => self.released = true,
        }
        vec![]
    }

    fn apply(&mut self, decision: &Decision, units: &[Unit]) -> Vec<MemberInput> {
        for unit in units {
            let bits = self.held.get_mut(unit).expect("only what is held is applied to");
            *bits = mix(*bits, decision.parent.step.0);
            self.net.agree(decision.id, *unit, *bits);
        }
        vec![MemberInput::Applied { id: decision.id }]
    }
}
