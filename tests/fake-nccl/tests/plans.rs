//! Whole steps of plans over communicators that behave like NCCL's. Each worker is a thread with its own communicators.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests; what fails here fails the test"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use varuna_cuda::{
    Action, Communicator, Context, DeviceBuffer, Element, Libraries, Membership, Operation, Pending, Pinned,
    Reaper, Stream, UniqueId, init, issue,
};
use varuna_plan::communicators::{
    Direction, Edge, Group, Message, Pass, Wire, edges, groups, reduction_order, wires,
};
use varuna_plan::schedule::{Instruction, Task, evaluation_list, list};
use varuna_plan::{
    Layout, Pipeline, Plan, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec, SegmentRange,
    Shape, Stage, Unit, WorkerId,
};

/// Micro-batches of the evaluation at the beginning of each step.
const EVALUATION: u32 = 3;
/// Number of receives that are posted before they are needed.
const AHEAD: usize = 1;

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A plan with pipelines of these depths, over 8 segments with a tied weight, and with 5 micro-batches or whole groups.
fn plan(kind: ScheduleKind, depths: &[u64]) -> Plan {
    let mut pipelines: Vec<Pipeline> = Vec::new();
    for depth in depths {
        let (first, start) = (
            10 * pipelines.len() as u64,
            pipelines.last().map_or(0, |p| p.samples.end),
        );
        let stages = depth * kind.chunks() as u64;
        let cut = |s: u64| u32::try_from(8 * s / stages).unwrap();
        let stage = |s| Stage {
            worker: WorkerId(first + s % depth),
            segments: SegmentRange {
                start: cut(s),
                end: cut(s + 1),
            },
            recompute: None,
        };
        let samples = if kind.chunks() > 1 { 2 * depth } else { 5 };
        pipelines.push(Pipeline {
            stages: (0..stages).map(stage).collect(),
            samples: SampleRange {
                start,
                end: start + samples,
            },
        });
    }
    let layout = Layout::new(8, true);
    let shape = Shape {
        pipelines,
        spares: Vec::new(),
        micro_batch_size: 1,
        schedule: ScheduleSpec {
            kind,
            recompute: Recompute::Full,
        },
        predicted: Prediction::default(),
    };
    Plan::first(layout, shape)
}

/// A number for each message of a step; all of them differ.
fn number(direction: Direction, message: Message) -> f32 {
    let direction = if direction == Direction::Activation {
        0.0
    } else {
        1.0
    };
    let pass = if message.pass == Pass::Training { 0.0 } else { 2.0 };
    direction + pass + message.stage as f32 * 4.0 + message.micro_batch as f32 * 1000.0
}

struct Worker {
    me: WorkerId,
    context: Arc<Context>,
    edges: BTreeMap<Edge, (Communicator, Stream)>,
    groups: Vec<(Group, Communicator, Stream)>,
}

impl Worker {
    /// Creates the communicators of one worker, for its edges and groups, from ids that all workers know.
    fn start(me: WorkerId, context: &Arc<Context>, plan: &Plan, ids: &[UniqueId]) -> Worker {
        let reaper = Reaper::start().unwrap();
        let (edges, groups) = (edges(plan), groups(plan));
        let rank_of = |holders: &[WorkerId]| holders.iter().position(|w| *w == me);
        let pairs = edges.iter().map(|e| vec![e.sender, e.receiver]);
        let all = pairs.chain(groups.iter().map(|g| g.holders.clone())).zip(ids);
        let (mut own, mut memberships) = (Vec::new(), Vec::new());
        for (i, (holders, id)) in all.enumerate() {
            if let Some(rank) = rank_of(&holders) {
                own.push(i);
                memberships.push(Membership {
                    id: *id,
                    ranks: u32::try_from(holders.len()).unwrap(),
                    rank: u32::try_from(rank).unwrap(),
                    blocks_max: None,
                });
            }
        }
        let made = init(context, &reaper, &memberships, &AtomicBool::new(false), later()).unwrap();
        let mut worker = Worker {
            me,
            context: Arc::clone(context),
            edges: BTreeMap::new(),
            groups: Vec::new(),
        };
        for (i, communicator) in own.into_iter().zip(made) {
            let stream = Stream::new(context).unwrap();
            match edges.get(i) {
                Some(edge) => drop(worker.edges.insert(*edge, (communicator, stream))),
                None => worker
                    .groups
                    .push((groups[i - edges.len()].clone(), communicator, stream)),
            }
        }
        worker
    }

    fn memory(&self, value: f32, stream: &Stream) -> Arc<DeviceBuffer> {
        let mut pinned = Pinned::new(&self.context, 4).unwrap();
        pinned.as_mut_slice().copy_from_slice(&value.to_ne_bytes());
        let memory = Arc::new(DeviceBuffer::new(&self.context, 4).unwrap());
        let copy = pinned.copy_to(Arc::clone(&memory), stream).unwrap();
        drop(copy.finish(later()).unwrap());
        memory
    }

    fn value(&self, pending: Pending<Arc<DeviceBuffer>>, stream: &Stream) -> f32 {
        pending.wait(later()).unwrap();
        let memory = pending.release(later()).unwrap();
        let copy = Pinned::new(&self.context, 4)
            .unwrap()
            .copy_from(memory, stream)
            .unwrap();
        let (pinned, _) = copy.finish(later()).unwrap();
        f32::from_ne_bytes(pinned.as_slice().try_into().unwrap())
    }

    fn begin(&self, of: &(Communicator, Stream), action: Action, value: f32) -> Pending<Arc<DeviceBuffer>> {
        let operation = Operation {
            communicator: &of.0,
            action,
            memory: self.memory(value, &of.1),
            element: Element::Float32,
            stream: &of.1,
        };
        issue(vec![operation], later()).unwrap().remove(0)
    }

    /// Runs the tasks. Each task receives its input, checks that it is the right message, and sends its output.
    fn step(&self, plan: &Plan) {
        let (pipeline, own) = plan.shape.stages_of(self.me).unwrap();
        let of = &plan.shape.pipelines[pipeline];
        let stages = of.stages.len();
        let wires: BTreeMap<Edge, Wire> = wires(plan, pipeline, EVALUATION)
            .into_iter()
            .map(|w| (w.edge, w))
            .collect();
        let specs: Vec<ScheduleSpec> = of.stages.iter().map(|s| plan.shape.schedule_of(s)).collect();
        let micro_batches = u32::try_from(of.micro_batches(1)).unwrap();
        let evaluation = evaluation_list(plan.shape.schedule.kind, stages, own[0], EVALUATION).into_iter();
        let training = list(&specs, own[0], micro_batches).into_iter();
        let tasks: Vec<(Pass, Task)> = evaluation
            .map(|t| (Pass::Evaluation, t))
            .chain(training.map(|t| (Pass::Training, t)))
            .collect();
        let mut inbox: BTreeMap<(Edge, Message), Pending<Arc<DeviceBuffer>>> = BTreeMap::new();
        let (mut needed, mut sent) = (BTreeMap::<Edge, usize>::new(), Vec::new());
        let reading = Stream::new(&self.context).unwrap();
        for (pass, task) in tasks {
            let message = |stage, micro_batch| Message {
                pass,
                stage,
                micro_batch,
            };
            let (takes, gives, direction, m) = match task.instruction {
                Instruction::Forward(m) => (
                    task.stage.checked_sub(1),
                    Some(task.stage + 1),
                    Direction::Activation,
                    m,
                ),
                Instruction::Backward(m) => (
                    Some(task.stage + 1),
                    task.stage.checked_sub(1),
                    Direction::Gradient,
                    m,
                ),
                Instruction::Recompute(_) => continue,
            };
            let edge = |sender: usize, receiver: usize| Edge {
                sender: of.stages[sender].worker,
                receiver: of.stages[receiver].worker,
                direction,
            };
            if let Some(from) = takes.filter(|s| *s < stages) {
                let (edge, message) = (edge(from, task.stage), message(task.stage, m));
                let (wire, k) = (&wires[&edge], needed.entry(edge).or_default());
                let posted = wire.posted(AHEAD);
                let before = k.checked_sub(1).map_or(0, |k| posted[k]);
                for next in &wire.sent[before..posted[*k]] {
                    let receive = self.begin(&self.edges[&edge], Action::Receive { from: 0 }, -1.0);
                    inbox.insert((edge, *next), receive);
                }
                *k += 1;
                let taken = inbox.remove(&(edge, message)).unwrap();
                assert_eq!(
                    self.value(taken, &reading),
                    number(direction, message),
                    "{edge:?}"
                );
            }
            if let Some(to) = gives.filter(|s| *s < stages) {
                let value = number(direction, message(to, m));
                sent.push(self.begin(&self.edges[&edge(task.stage, to)], Action::Send { to: 1 }, value));
            }
        }
        self.reduce(plan, &reading);
        assert!(inbox.is_empty());
        sent.iter().for_each(|s| s.wait(later()).unwrap());
    }

    /// Sums each unit over its holders. Each holder adds its own number.
    fn reduce(&self, plan: &Plan, reading: &Stream) {
        let mut sums: Vec<(f32, Pending<Arc<DeviceBuffer>>)> = Vec::new();
        for unit in reduction_order(&plan.layout) {
            let has = |g: &&(Group, Communicator, Stream)| g.0.units.contains(&unit);
            let Some((group, communicator, stream)) = self.groups.iter().find(has) else {
                continue;
            };
            let add = |w: &WorkerId, unit: Unit| w.0 as f32 + unit.0 as f32 * 100.0;
            let of = (communicator.clone(), Stream::new(stream.context()).unwrap());
            let pending = self.begin(&of, Action::AllReduceSum, add(&self.me, unit));
            sums.push((group.holders.iter().map(|w| add(w, unit)).sum(), pending));
        }
        for (expected, pending) in sums {
            assert_eq!(self.value(pending, reading), expected);
        }
    }
}

#[test]
fn messages_and_sums_follow_the_plan() {
    let library = std::env::current_exe()
        .unwrap()
        .with_file_name("libvaruna_fake_nccl.so");
    let libraries = Libraries::load_from(&library).unwrap();
    let warmup = |warmup_factor| ScheduleKind::OneForwardOneBackward { warmup_factor };
    let plans = [
        plan(ScheduleKind::Gpipe, &[2, 1]),
        plan(warmup(1.0), &[3, 1]),
        plan(warmup(2.0), &[4]),
        plan(ScheduleKind::Interleaved { chunks: 2 }, &[2, 3]),
    ];
    for plan in plans {
        let count = edges(&plan).len() + groups(&plan).len();
        let ids: Vec<UniqueId> = (0..count).map(|_| UniqueId::draw(&libraries).unwrap()).collect();
        std::thread::scope(|scope| {
            for me in plan.members() {
                let (plan, ids) = (plan.clone(), &ids);
                let context = Context::open(&libraries, 0).unwrap();
                scope.spawn(move || Worker::start(*me, &context, &plan, ids).step(&plan));
            }
        });
    }
}
