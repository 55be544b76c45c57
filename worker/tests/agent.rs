//! The agent around its member: what it does without messages of a coordinator or peers.
#![expect(clippy::unwrap_used, reason = "this is a test")]

#[expect(clippy::unwrap_used, reason = "a part of tests")]
mod common;

use common::{Case, engine, engine_with, plan, single};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use varuna_frames::{RunKey, StateHeader, TransferHeader};
use varuna_plan::{Generation, StateId, Step, StepDeadline, WorkerId};
use varuna_protocol::{Inventory, MemberConfig, MemberTiming, Order, PeerMessage, Phase, Report, Suspicion};
use varuna_wire::{Upward, Welcome};
use varuna_worker::agent::uplink::UplinkEvent;
use varuna_worker::agent::{self, AgentError, AgentParts};
use varuna_worker::engine::{Engine, EngineError, SampleError, Samples};
use varuna_worker::transport::Link;
use varuna_worker::transport::data_plane::DataPlane;
use varuna_worker::transport::local::LocalMesh;
use varuna_worker::transport::tcp::StateSource;

const ME: WorkerId = WorkerId(1);
const PATIENCE: Duration = Duration::from_secs(60);

/// Connections without messages; `link` until there is none any more.
struct Silent {
    link: Option<Arc<dyn Link>>,
}

impl DataPlane for Silent {
    fn open(&self, _: Generation, _: &str) {}
    fn dial(&self, _: Generation, _: WorkerId, _: &str) {}
    fn close(&self, _: Generation) {}
    fn link(&self, _: Generation) -> Option<Arc<dyn Link>> {
        self.link.clone()
    }
    fn send_message(&self, _: Generation, _: WorkerId, _: &PeerMessage) {}
    fn stop_states(&self, _: Generation) {}
    fn send_state(&self, _: Generation, _: WorkerId, _: StateHeader, _: Box<dyn StateSource>) {}
    fn send_gradient(&self, _: Generation, _: WorkerId, _: TransferHeader, _: Vec<f32>) {}
}

struct Rig {
    agent: JoinHandle<Result<(), AgentError>>,
    reports: Receiver<Upward>,
    coordinator: Sender<UplinkEvent>,
    _drain: Sender<()>,
}

impl Rig {
    fn start(engine: Engine, link: Option<Arc<dyn Link>>) -> Rig {
        let case = Case::default();
        let (reports, told) = channel(64);
        let (coordinator, orders) = channel(64);
        let (drain, drained) = channel(1);
        let parts = AgentParts {
            member: MemberConfig {
                follows: true,
                parameters_first: false,
                id: ME,
                layout: case.model().layout(),
                last_step: Step(100),
                checkpoint_every: None,
                compare_every: None,
                timing: MemberTiming::default(),
            },
            engine,
            threads: 1,
            mesh: Box::new(Silent { link }),
            events: channel(64),
            uplink: (reports, orders),
            run: RunKey {
                token: String::new(),
                run: "mine".into(),
            },
            checkpoints: None,
            copies: Arc::default(),
            tokens_per_sample: 16,
            memory_taken: Box::new(|| Some(7)),
        };
        Rig {
            agent: tokio::spawn(agent::run(parts, drained)),
            reports: told,
            coordinator,
            _drain: drain,
        }
    }

    async fn say(&self, event: UplinkEvent) {
        self.coordinator.send(event).await.unwrap();
    }

    /// Lets it run a plan in which it is the only member, and whose steps may take hours.
    async fn train(&mut self) {
        let case = Case::default();
        let mut plan = plan(&case, &single(&case));
        plan.deadline = StepDeadline::of_ms(3 * 3_600_000);
        let generation = plan.generation;
        let order = Order::Prepare(Arc::new(plan));
        self.say(UplinkEvent::Order { term: 1, order }).await;
        let ready = |report| matches!(report, Report::Status(s) if s.phase == Phase::Ready).then_some(());
        self.report(ready).await;
        let order = Order::Go { generation };
        self.say(UplinkEvent::Order { term: 1, order }).await;
    }

    /// The first report of this kind.
    async fn report<T>(&mut self, of: impl Fn(Report) -> Option<T>) -> T {
        let found = async {
            loop {
                let told = self.reports.recv().await.expect("the agent goes on");
                if let Upward::Report(report) = told
                    && let Some(found) = of(report)
                {
                    return found;
                }
            }
        };
        tokio::time::timeout(PATIENCE, found).await.unwrap()
    }

    /// The error with which it ends.
    async fn end(self) -> AgentError {
        let ended = tokio::time::timeout(PATIENCE, self.agent).await.unwrap();
        ended.unwrap().unwrap_err()
    }
}

fn own() -> Engine {
    engine(&Case::default(), ME)
}

#[tokio::test]
async fn step_over_lost_connections_fails_at_once() {
    let mut rig = Rig::start(own(), None);
    rig.train().await;
    let suspect = |report| match report {
        Report::Suspect {
            generation, about, ..
        } => Some((generation, about)),
        _ => None,
    };
    // It cannot know which worker is at fault, so it reports itself.
    assert_eq!(rig.report(suspect).await, (Generation(1), ME));
    rig.agent.abort();
}

#[tokio::test]
async fn coordinator_of_another_run_ends_the_worker() {
    let rig = Rig::start(own(), None);
    let welcome = |run: &str| {
        UplinkEvent::Up(Welcome {
            job: String::new(),
            run: run.into(),
            data_fingerprint: String::new(),
        })
    };
    rig.say(UplinkEvent::Down).await;
    rig.say(welcome("mine")).await;
    rig.say(UplinkEvent::Down).await;
    rig.say(welcome("other")).await;
    match rig.end().await {
        AgentError::OtherRun { before, now } => {
            assert_eq!((before.as_str(), now.as_str()), ("mine", "other"))
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_refusal_ends_the_worker_with_its_reason() {
    let rig = Rig::start(own(), None);
    rig.say(UplinkEvent::Refused("no such job".into())).await;
    assert!(matches!(rig.end().await, AgentError::Refused(why) if why == "no such job"));
}

/// Data that cannot be read, either now or ever.
struct Broken {
    may_pass: bool,
}

impl Samples for Broken {
    fn train(&self, index: u64, _: &mut [i64]) -> Result<(), SampleError> {
        Err(SampleError {
            index,
            why: "for the test".into(),
            may_pass: self.may_pass,
        })
    }
    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.train(index, tokens)
    }
    fn held_out_len(&self) -> u64 {
        0
    }
}

#[tokio::test]
async fn an_engine_that_cannot_go_on_ends_the_worker() {
    let broken = engine_with(&Case::default(), ME, Broken { may_pass: false });
    let mut rig = Rig::start(broken, Some(LocalMesh::new(&[ME]).link(ME)));
    rig.train().await;
    let ended = rig.end().await;
    assert!(
        matches!(&ended, AgentError::Engine(EngineError::Sample(_))),
        "{ended}"
    );
}

fn suspicion(report: Report) -> Option<(Generation, WorkerId, Suspicion)> {
    match report {
        Report::Suspect {
            generation,
            about,
            why,
        } => Some((generation, about, why)),
        _ => None,
    }
}

fn inventory(report: Report) -> Option<Inventory> {
    match report {
        Report::Inventory(inventory) => Some(inventory),
        _ => None,
    }
}

/// Reads begin, which the test notices, and never end.
struct Hanging(std::sync::mpsc::SyncSender<()>);

impl Samples for Hanging {
    fn train(&self, _: u64, _: &mut [i64]) -> Result<(), SampleError> {
        // The test may not be waiting any more.
        let _ = self.0.send(());
        loop {
            std::thread::park();
        }
    }
    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.train(index, tokens)
    }
    fn held_out_len(&self) -> u64 {
        0
    }
}

/// The step is stopped before its deadline because of another worker. Otherwise the worker that cannot read would never report it.
#[tokio::test(flavor = "multi_thread")]
async fn missing_data_is_reported_when_the_step_stops() {
    let (begins, begun) = std::sync::mpsc::sync_channel(8);
    let hanging = engine_with(&Case::default(), ME, Hanging(begins));
    let mut rig = Rig::start(hanging, Some(LocalMesh::new(&[ME]).link(ME)));
    rig.train().await;
    begun.recv_timeout(PATIENCE).unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let order = Order::Fence { upto: Generation(1) };
    rig.say(UplinkEvent::Order { term: 1, order }).await;
    assert_eq!(
        rig.report(suspicion).await,
        (Generation(1), ME, Suspicion::NoData)
    );
    assert_eq!(rig.report(inventory).await.upto, Generation(1));
    rig.agent.abort();
}

/// All workers may read from this store: if they ended, all copies of the state would be lost.
#[tokio::test]
async fn unreadable_data_fails_the_step_and_keeps_the_state() {
    let away = engine_with(&Case::default(), ME, Broken { may_pass: true });
    let mut rig = Rig::start(away, Some(LocalMesh::new(&[ME]).link(ME)));
    rig.train().await;
    assert_eq!(
        rig.report(suspicion).await,
        (Generation(1), ME, Suspicion::NoData)
    );
    let upto = Generation(1);
    let order = Order::Fence { upto };
    rig.say(UplinkEvent::Order { term: 1, order }).await;
    let held = rig.report(inventory).await;
    assert_eq!(held.upto, upto);
    let units = Case::default().model().layout().units();
    assert_eq!(held.units.len(), units);
    assert!(held.units.values().all(|id| *id == StateId::INITIAL));
    rig.agent.abort();
}

/// Reads of it panic as libtorch's operators do where a GPU has no memory.
struct Full;

impl Samples for Full {
    fn train(&self, _: u64, _: &mut [i64]) -> Result<(), SampleError> {
        panic!("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB");
    }
    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.train(index, tokens)
    }
    fn held_out_len(&self) -> u64 {
        0
    }
}

/// If it ended, it would be started again, and the same plan would end it again.
#[tokio::test]
async fn lack_of_device_memory_fails_the_step_and_keeps_the_state() {
    let full = engine_with(&Case::default(), ME, Full);
    let mut rig = Rig::start(full, Some(LocalMesh::new(&[ME]).link(ME)));
    rig.train().await;
    let (generation, about, why) = rig.report(suspicion).await;
    assert_eq!((generation, about), (Generation(1), ME));
    let Suspicion::NoMemory(shortage) = why else {
        panic!("{why:?}");
    };
    assert_eq!(shortage.needed_bytes, Some(2 << 30));
    let order = Order::Fence { upto: Generation(1) };
    rig.say(UplinkEvent::Order { term: 1, order }).await;
    let held = rig.report(inventory).await;
    assert_eq!(held.units.len(), Case::default().model().layout().units());
    rig.agent.abort();
}
