//! The step of workers that share processor cores: if a node has more workers than cores, they take turns.
//!
//! Processor sharing: every ready job on a node (an instruction, a message, a ring, an optimizer) progresses at once, each with its share
//! of the cores. A worker that waits uses none, so its bubbles are used by others. Nothing is fitted: cores, threads and the slowdown by
//! other workers are measured on the device. Deterministic. It must never judge a schedule.

use super::rings::ring_factor;
use super::work::{PipelineWork, StepWork, Topology, schedules};
use crate::cost::{Costs, Host};
use crate::layout::SegmentRange;
use crate::schedule::{Instruction, Task, list};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Tensor {
    Activation,
    Gradient,
}

/// Where a message goes, and what it carries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Message {
    pipeline: usize,
    stage: usize,
    micro_batch: u32,
    tensor: Tensor,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Compute(Task),
    Send(Message),
    Ring(usize),
    Optimizer,
}

struct Job {
    worker: usize,
    kind: Kind,
    /// Cores that it can use.
    wanted: f64,
    /// Remaining milliseconds on cores of its own.
    left: f64,
}

/// One worker of a pipeline.
struct Worker {
    pipeline: usize,
    /// The segments of each of its stages.
    ranges: Vec<SegmentRange>,
    speed: f64,
    list: Vec<Task>,
    at: usize,
    computes: bool,
    sends: bool,
    rings: bool,
    outbox: VecDeque<(f64, Message)>,
    ring_queue: VecDeque<(f64, usize)>,
    /// Number of rings that have not ended.
    open_rings: usize,
    finished: bool,
}

struct Ring {
    holders: Vec<usize>,
    ms: f64,
    /// Number of holders that have not ended their part.
    left: usize,
    begun: bool,
}

struct Simulation<'a> {
    costs: &'a Costs,
    host: &'a Host,
    work: &'a StepWork,
    workers_per_node: usize,
    workers: Vec<Worker>,
    rings: Vec<Ring>,
    arrived: BTreeSet<Message>,
    jobs: Vec<Job>,
    now: f64,
}

/// The time of a whole step, rings and optimizer included, in milliseconds.
pub(crate) fn step_ms(costs: &Costs, host: &Host, work: &StepWork, topology: Topology) -> f64 {
    let mut simulation = Simulation::new(costs, host, work, topology);
    simulation.run();
    // The decision: every member gets the norms of all.
    simulation.now + costs.device.latency_ms
}

impl<'a> Simulation<'a> {
    fn new(costs: &'a Costs, host: &'a Host, work: &'a StepWork, topology: Topology) -> Simulation<'a> {
        let mut workers = Vec::new();
        for (pipeline, of) in work.pipelines.iter().enumerate() {
            let n = of.micro_batches(work.micro_batch_size);
            let specs = schedules(&of.stages, work.kind);
            let count = work.kind.workers(specs.len());
            for first in 0..count {
                let own = of.stages.iter().skip(first).step_by(count);
                workers.push(Worker {
                    pipeline,
                    ranges: own.map(|s| s.segments).collect(),
                    speed: of.stages[first].speed,
                    list: list(&specs, first, n),
                    at: 0,
                    computes: false,
                    sends: false,
                    rings: false,
                    outbox: VecDeque::new(),
                    ring_queue: VecDeque::new(),
                    open_rings: 0,
                    finished: false,
                });
            }
        }
        let mut simulation = Simulation {
            costs,
            host,
            work,
            workers_per_node: topology.workers_per_node.max(1),
            workers,
            rings: Vec::new(),
            arrived: BTreeSet::new(),
            jobs: Vec::new(),
            now: 0.0,
        };
        simulation.make_rings();
        simulation
    }

    /// One ring for each run of segments with the same holders, and one for the tied weight.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    fn make_rings(&mut self) {
        let costs = self.costs;
        let mut groups: Vec<(Vec<usize>, u64)> = Vec::new();
        for (segment, cost) in (0u32..).zip(&costs.segments) {
            let holders = self.holders(|r| r.contains(segment));
            match groups.last_mut() {
                Some((last, parameters)) if *last == holders => *parameters += cost.parameters,
                _ => groups.push((holders, cost.parameters)),
            }
        }
        if costs.tied_parameters > 0 {
            let last = costs.layout().segments;
            let ends = self.holders(|r| r.start == 0 || r.end == last);
            groups.push((ends, costs.tied_parameters));
        }
        for (holders, parameters) in groups.into_iter().filter(|(h, _)| h.len() > 1) {
            let rounds = 2.0 * (holders.len() - 1) as f64;
            let ms =
                ring_factor(holders.len()) * costs.gradient_ms(parameters) + rounds * costs.device.latency_ms;
            for holder in &holders {
                self.workers[*holder].open_rings += 1;
            }
            let left = holders.len();
            self.rings.push(Ring {
                holders,
                ms,
                left,
                begun: false,
            });
        }
    }

    fn holders(&self, holds: impl Fn(&SegmentRange) -> bool) -> Vec<usize> {
        let all = self.workers.iter().enumerate();
        let some = all.filter(|(_, w)| w.ranges.iter().any(&holds));
        some.map(|(i, _)| i).collect()
    }

    fn run(&mut self) {
        loop {
            self.start_what_is_ready();
            let rates = self.rates();
            let per_node = self.workers_per_node;
            let soonest = self.jobs.iter().map(|j| j.left / rates[&(j.worker / per_node)]);
            let Some(step) = soonest.min_by(f64::total_cmp) else {
                return;
            };
            self.now += step;
            for job in &mut self.jobs {
                job.left -= step * rates[&(job.worker / per_node)];
            }
            let (ended, go_on) = std::mem::take(&mut self.jobs)
                .into_iter()
                .partition(|j| j.left <= 1e-9);
            self.jobs = go_on;
            let ended: Vec<Job> = ended;
            for job in ended {
                self.end(&job);
            }
        }
    }

    /// The rate at which jobs progress, by node.
    fn rates(&self) -> BTreeMap<usize, f64> {
        let mut wanted: BTreeMap<usize, (usize, f64)> = BTreeMap::new();
        for job in &self.jobs {
            let node = wanted.entry(job.worker / self.workers_per_node).or_default();
            node.0 += 1;
            node.1 += job.wanted;
        }
        let rate = |(node, (active, cores))| (node, self.host.rate(active, cores));
        wanted.into_iter().map(rate).collect()
    }

    fn start_what_is_ready(&mut self) {
        for ring in 0..self.rings.len() {
            let ready =
                |w: &usize| self.workers[*w].at == self.workers[*w].list.len() && !self.workers[*w].computes;
            if !self.rings[ring].begun && self.rings[ring].holders.iter().all(ready) {
                self.rings[ring].begun = true;
                for holder in self.rings[ring].holders.clone() {
                    let ms = self.rings[ring].ms;
                    self.workers[holder].ring_queue.push_back((ms, ring));
                }
            }
        }
        for w in 0..self.workers.len() {
            self.start_compute(w);
            let worker = &mut self.workers[w];
            if !worker.sends
                && let Some((left, message)) = worker.outbox.pop_front()
            {
                worker.sends = true;
                self.begin(w, Kind::Send(message), 1.0, left);
            }
            let worker = &mut self.workers[w];
            if !worker.rings
                && let Some((left, ring)) = worker.ring_queue.pop_front()
            {
                worker.rings = true;
                self.begin(w, Kind::Ring(ring), 1.0, left);
            }
        }
    }

    fn begin(&mut self, worker: usize, kind: Kind, wanted: f64, left: f64) {
        self.jobs.push(Job {
            worker,
            kind,
            wanted,
            left,
        });
    }

    /// Starts the next instruction of a free worker if its input is there, or the optimizer at the end.
    fn start_compute(&mut self, w: usize) {
        let worker = &self.workers[w];
        if worker.computes || worker.finished {
            return;
        }
        let (costs, threads) = (self.costs, f64::from(self.host.threads.max(1)));
        let Some(task) = worker.list.get(worker.at).copied() else {
            if worker.open_rings == 0 {
                let ms: f64 = worker.ranges.iter().map(|r| costs.optimizer_ms(*r)).sum();
                let ms = ms / worker.speed;
                self.workers[w].computes = true;
                self.workers[w].finished = true;
                self.begin(w, Kind::Optimizer, threads, ms);
            }
            return;
        };
        let (pipeline, stage) = (worker.pipeline, task.stage);
        let of = &self.work.pipelines[pipeline];
        let range = of.stages[stage].segments;
        let (micro_batch, tensor) = match task.instruction {
            Instruction::Forward(m) => (m, (stage > 0).then_some(Tensor::Activation)),
            Instruction::Backward(m) => (m, (stage + 1 < of.stages.len()).then_some(Tensor::Gradient)),
            Instruction::Recompute(m) => (m, None),
        };
        let message = tensor.map(|tensor| Message {
            pipeline,
            stage,
            micro_batch,
            tensor,
        });
        if message.is_some_and(|message| !self.arrived.contains(&message)) {
            return;
        }
        let samples = self.samples(of, micro_batch);
        let ms = match task.instruction {
            Instruction::Forward(_) => costs.forward_ms(range, samples),
            Instruction::Recompute(_) => costs.recompute_ms(range, samples, of.stages[stage].recompute),
            Instruction::Backward(_) => costs.backward_ms(range, samples),
        };
        let ms = ms / worker.speed;
        self.workers[w].computes = true;
        self.begin(w, Kind::Compute(task), threads, ms);
    }

    /// Samples of a micro-batch: the last one may be short.
    fn samples(&self, pipeline: &PipelineWork, micro_batch: u32) -> u32 {
        let micro = u64::from(self.work.micro_batch_size.max(1));
        let before = u64::from(micro_batch) * micro;
        u32::try_from(pipeline.samples.saturating_sub(before).min(micro)).unwrap_or(u32::MAX)
    }

    fn end(&mut self, job: &Job) {
        let w = job.worker;
        match job.kind {
            Kind::Compute(task) => {
                self.workers[w].computes = false;
                self.workers[w].at += 1;
                self.queue_message(w, task);
            }
            Kind::Send(message) => {
                self.workers[w].sends = false;
                self.arrived.insert(message);
            }
            Kind::Ring(ring) => {
                self.workers[w].rings = false;
                self.rings[ring].left -= 1;
                if self.rings[ring].left == 0 {
                    for holder in self.rings[ring].holders.clone() {
                        self.workers[holder].open_rings -= 1;
                    }
                }
            }
            Kind::Optimizer => {}
        }
    }

    fn queue_message(&mut self, w: usize, task: Task) {
        let (pipeline, stage) = (self.workers[w].pipeline, task.stage);
        let of = &self.work.pipelines[pipeline];
        let (cut, to, micro_batch, tensor) = match task.instruction {
            Instruction::Forward(m) if stage + 1 < of.stages.len() => {
                (of.stages[stage].segments.end, stage + 1, m, Tensor::Activation)
            }
            Instruction::Backward(m) if stage > 0 => {
                (of.stages[stage].segments.start, stage - 1, m, Tensor::Gradient)
            }
            _ => return,
        };
        let ms = self.costs.transfer_ms(cut, self.samples(of, micro_batch));
        let message = Message {
            pipeline,
            stage: to,
            micro_batch,
            tensor,
        };
        self.workers[w].outbox.push_back((ms, message));
    }
}

#[cfg(test)]
mod tests;
