//! Which communicators a plan needs, and in which order operations go over each of them.
//!
//! A collective library (NCCL) has no tags: the operations of a communicator run one after the other, and the n-th operation of one rank
//! meets the n-th of the other. So both ends must know the same order beforehand, and an operation that may have to wait for another must
//! not share a communicator with it:
//!
//! * One communicator of two ranks for each directed edge of a pipeline ([`Edge`]). With one for both directions, 1F1B would wait
//!   for ever: a stage sends its next activation before it takes a gradient, and its neighbour does the opposite.
//! * A receiver posts its receives in the order in which the sender sends ([`Wire::sent`]), not in the order in which it needs them.
//! * One communicator for each distinct set of holders ([`Group`]). All workers begin reductions in one order ([`reduction_order`]), so
//!   that no two of them wait for each other, even if a worker's reductions run one after the other. If optimizer state is sharded, the
//!   communicator also gathers parameters, before everything else in a step and in one order, too ([`parameter_order`]).
//!
//! Everything here follows from the plan alone; nothing is negotiated. It must never do I/O.

use crate::document::{Pipeline, Plan, ScheduleSpec};
use crate::ids::{Unit, WorkerId};
use crate::layout::Layout;
use crate::schedule::{self, Instruction, Task};
use std::collections::BTreeMap;

/// The direction in which tensors cross the boundaries between stages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Direction {
    /// From a stage to the next, in a forward.
    Activation,
    /// From a stage to the previous, in a backward.
    Gradient,
}

/// The part of a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Pass {
    /// The forwards over held-out samples, before the training's.
    Evaluation,
    /// The forwards and backwards of the batch.
    Training,
}

/// One tensor that crosses one boundary.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Message {
    /// The part of the step in which it is sent.
    pub pass: Pass,
    /// The stage that receives it, an index in the pipeline.
    pub stage: usize,
    /// Index of the micro-batch; each pass counts from 0.
    pub micro_batch: u32,
}

/// A directed edge: one communicator of two ranks, the sender's is 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Edge {
    /// Rank 0.
    pub sender: WorkerId,
    /// Rank 1.
    pub receiver: WorkerId,
    /// What it carries. Two workers of an interleaved pipeline may send each other both kinds, over one edge for each.
    pub direction: Direction,
}

/// The messages of a step over one edge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wire {
    /// The sender and the receiver.
    pub edge: Edge,
    /// In the order in which the sender's list sends them: the order of the communicator.
    pub sent: Vec<Message>,
    /// The same messages in the order in which the receiver's list needs them.
    pub needed: Vec<Message>,
}

impl Wire {
    /// How many receives the receiver has posted when it needs each message: all up to that message in the sender's order, and `ahead`
    /// more, so that the next messages arrive while it computes. The list is as long as [`Wire::needed`] and never decreases.
    #[must_use]
    pub fn posted(&self, ahead: usize) -> Vec<usize> {
        let places: BTreeMap<Message, usize> = self.sent.iter().copied().zip(0..).collect();
        let mut posted = 0;
        let mut upto = |message: &Message| {
            let due = places.get(message).map_or(0, |place| place + 1 + ahead);
            if bug!(PostInNeededOrder) {
                posted += 1;
                return posted;
            }
            posted = due.min(self.sent.len()).max(posted);
            posted
        };
        self.needed.iter().map(&mut upto).collect()
    }
}

/// Workers that compute with the same units and so share a communicator; a worker's rank is its position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// More than one, in the order of [`Plan::group`].
    pub holders: Vec<WorkerId>,
    /// The units that they reduce, as units of the undivided layout in [`reduction_order`].
    pub units: Vec<Unit>,
}

/// What one worker runs in a step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Program {
    evaluation: Vec<Task>,
    training: Vec<Task>,
}

impl Program {
    /// The tasks of the program, in order.
    fn tasks(&self) -> impl Iterator<Item = (Pass, Task)> + '_ {
        let evaluation = self.evaluation.iter().map(|t| (Pass::Evaluation, *t));
        evaluation.chain(self.training.iter().map(|t| (Pass::Training, *t)))
    }
}

/// What a task sends in a pipeline of `stages` stages.
fn sends(stages: usize, (pass, task): (Pass, Task)) -> Option<(Direction, Message)> {
    let message = |stage, micro_batch| Message {
        pass,
        stage,
        micro_batch,
    };
    match task.instruction {
        Instruction::Forward(m) if task.stage + 1 < stages => {
            Some((Direction::Activation, message(task.stage + 1, m)))
        }
        Instruction::Backward(m) if task.stage > 0 => Some((Direction::Gradient, message(task.stage - 1, m))),
        Instruction::Forward(_) | Instruction::Backward(_) | Instruction::Recompute(_) => None,
    }
}

/// What a task needs in a pipeline of `stages` stages.
fn needs(stages: usize, (pass, task): (Pass, Task)) -> Option<(Direction, Message)> {
    let message = |micro_batch| Message {
        pass,
        stage: task.stage,
        micro_batch,
    };
    match task.instruction {
        Instruction::Forward(m) if task.stage > 0 => Some((Direction::Activation, message(m))),
        Instruction::Backward(m) if task.stage + 1 < stages => Some((Direction::Gradient, message(m))),
        Instruction::Forward(_) | Instruction::Backward(_) | Instruction::Recompute(_) => None,
    }
}

/// The stage whose worker sends a message.
fn sender_stage(direction: Direction, message: Message) -> usize {
    match direction {
        Direction::Activation => message.stage - 1,
        Direction::Gradient => message.stage + 1,
    }
}

/// The wires of a pipeline whose stage s is on the worker `workers[s]`, from what each of its workers runs; ascending by edge.
fn wires_of(workers: &[WorkerId], programs: &BTreeMap<WorkerId, Program>) -> Vec<Wire> {
    let mut wires: BTreeMap<Edge, Wire> = BTreeMap::new();
    let edge = |direction, message: Message| Edge {
        sender: workers[sender_stage(direction, message)],
        receiver: workers[message.stage],
        direction,
    };
    for task in programs.values().flat_map(Program::tasks) {
        let ends = [
            (true, sends(workers.len(), task)),
            (false, needs(workers.len(), task)),
        ];
        for (sent, end) in ends {
            let Some((direction, message)) = end else { continue };
            let edge = edge(direction, message);
            let wire = wires.entry(edge).or_insert_with(|| Wire {
                edge,
                sent: Vec::new(),
                needed: Vec::new(),
            });
            if sent { &mut wire.sent } else { &mut wire.needed }.push(message);
        }
    }
    wires.into_values().collect()
}

/// What each worker of a pipeline runs in a step that begins with `evaluation` micro-batches of evaluation.
fn programs(plan: &Plan, pipeline: &Pipeline, evaluation: u32) -> BTreeMap<WorkerId, Program> {
    let specs: Vec<ScheduleSpec> = pipeline
        .stages
        .iter()
        .map(|s| plan.shape.schedule_of(s))
        .collect();
    let micro_batches =
        u32::try_from(pipeline.micro_batches(plan.shape.micro_batch_size)).unwrap_or(u32::MAX);
    let lists = schedule::lists(&specs, micro_batches);
    let kind = plan.shape.schedule.kind;
    let of = |(worker, training): (usize, Vec<Task>)| {
        let evaluation = schedule::evaluation_list(kind, specs.len(), worker, evaluation);
        let program = Program { evaluation, training };
        (pipeline.stages[worker].worker, program)
    };
    lists.into_iter().enumerate().map(of).collect()
}

/// The wires of one pipeline of a checked plan in a step that begins with `evaluation` micro-batches of evaluation (0: with none),
/// ascending by edge. The edges are those of [`edges`] in every step; only the messages depend on the evaluation.
///
/// # Panics
/// The plan has no such pipeline.
#[must_use]
pub fn wires(plan: &Plan, pipeline: usize, evaluation: u32) -> Vec<Wire> {
    let of = &plan.shape.pipelines[pipeline];
    let workers: Vec<WorkerId> = of.stages.iter().map(|s| s.worker).collect();
    wires_of(&workers, &programs(plan, of, evaluation))
}

/// The directed edges of all pipelines, each once, ascending within each pipeline. All workers create the communicators in this order.
#[must_use]
pub fn edges(plan: &Plan) -> Vec<Edge> {
    let of = |pipeline: &Pipeline| {
        let pairs = pipeline.stages.iter().zip(pipeline.stages.iter().skip(1));
        let both = pairs.flat_map(|(before, after)| {
            let edge = |sender, receiver, direction| Edge {
                sender,
                receiver,
                direction,
            };
            [
                edge(before.worker, after.worker, Direction::Activation),
                match bug!(OneEdgeForBothWays) {
                    true => edge(before.worker, after.worker, Direction::Activation),
                    false => edge(after.worker, before.worker, Direction::Gradient),
                },
            ]
        });
        let distinct: std::collections::BTreeSet<Edge> = both.collect();
        distinct.into_iter()
    };
    plan.shape.pipelines.iter().flat_map(of).collect()
}

/// The order in which every worker begins the reductions of its units: from the last segment to the first, as backwards finish them, and
/// the tied weight last. The holders of the head finish the tied weight first, those of the embedding last. If each began its reduction as
/// soon as it was finished, a worker that holds both ends could wait for a sum that waits for this worker's own.
pub fn reduction_order(layout: &Layout) -> impl Iterator<Item = Unit> + use<> {
    let tied = layout.tied_unit().into_iter();
    let (first, last) = match bug!(TiedWeightFirst) {
        true => (Some(tied), None),
        false => (None, Some(tied)),
    };
    let segments = (0..layout.segments).rev().map(Unit);
    let first = first.into_iter().flatten().chain(segments);
    first.chain(last.into_iter().flatten())
}

/// The order in which every worker begins to gather its units' parameters if optimizer state is sharded, as units of the undivided layout:
/// before anything else in a step, from the first segment to the last, as forwards need them. The tied weight comes first, since the first
/// segment needs it.
pub fn parameter_order(layout: &Layout) -> impl Iterator<Item = Unit> + use<> {
    let tied = layout.tied_unit().into_iter();
    tied.chain((0..layout.segments).map(Unit))
}

/// The sets of more than one holder and what each reduces, in the order of each set's first reduction. All workers create the communicators
/// in this order.
#[must_use]
pub fn groups(plan: &Plan) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for unit in reduction_order(&plan.layout) {
        let holders = plan.group(unit);
        match groups.iter_mut().find(|g| g.holders == holders) {
            Some(group) => group.units.push(unit),
            None if holders.len() > 1 || bug!(GroupOfOne) => groups.push(Group {
                holders: holders.to_vec(),
                units: vec![unit],
            }),
            None => {}
        }
    }
    groups
}

#[cfg(test)]
mod queues;
#[cfg(test)]
mod tests;
