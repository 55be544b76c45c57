//! A step whose workers share processor cores: workers of one node that are more than its cores take turns.
//!
//! Processor sharing: whatever is ready on a node (an instruction, a message on its way, a ring, an optimizer) goes on at
//! once, each at the share of the cores that it gets. A worker that waits takes none, so bubbles are others' time. Nothing
//! is fitted: cores, threads and the slowdown of neighbours are measured on the device. Deterministic. It must never judge
//! a schedule.

mod host;

pub use host::Host;

use crate::cost::Costs;
use crate::document::{Pipeline, Recompute, ScheduleSpec, Shape};
use crate::ids::WorkerId;
use crate::layout::SegmentRange;
use crate::schedule::{Instruction, generate};
use crate::sync::ring_factor;
use std::collections::{BTreeMap, VecDeque};

/// One pipeline.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its cuts.
    pub stages: Vec<SegmentRange>,
    /// What each stage keeps of a forward; what the schedule says where the list is shorter.
    pub policies: Vec<Recompute>,
    /// Its samples of a step; the last micro-batch may be short.
    pub samples: u64,
    /// Speed of each stage's worker, 1 where the list is shorter.
    pub speeds: Vec<f64>,
}

/// What all pipelines of a step have in common.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// What segments cost on a core that nobody else uses.
    pub costs: &'a Costs,
    /// What is shared.
    pub host: &'a Host,
    /// The order of work.
    pub schedule: ScheduleSpec,
    /// Samples in a micro-batch.
    pub micro_batch_size: u32,
    /// Workers of a node; places fill nodes in order.
    pub per_node: usize,
}

/// Where a message goes: its line, stage, micro-batch, and whether it is an activation.
type Arrival = (usize, usize, u32, bool);

#[derive(Clone, Copy, Debug)]
enum Kind {
    Compute(Instruction),
    Send(Arrival),
    Ring(usize),
    Optimizer,
}

struct Task {
    worker: usize,
    kind: Kind,
    /// Cores that it can use.
    wanted: f64,
    /// Milliseconds on cores of its own.
    left: f64,
}

/// One place of a pipeline.
struct Worker {
    line: usize,
    stage: usize,
    stages: usize,
    range: SegmentRange,
    recompute: Recompute,
    speed: f64,
    list: Vec<Instruction>,
    at: usize,
    computes: bool,
    sends: bool,
    rings: bool,
    outbox: VecDeque<(f64, Arrival)>,
    ring_queue: VecDeque<(f64, usize)>,
    /// Rings that have not ended.
    open_rings: usize,
    finished: bool,
}

struct Ring {
    holders: Vec<usize>,
    ms: f64,
    /// Holders that have not ended their part.
    left: usize,
    begun: bool,
}

struct Simulation<'a> {
    setting: Setting<'a>,
    /// Samples of each line.
    samples: Vec<u64>,
    workers: Vec<Worker>,
    rings: Vec<Ring>,
    arrived: BTreeMap<Arrival, ()>,
    tasks: Vec<Task>,
    now: f64,
}

/// A whole step, rings and optimizer included, milliseconds.
#[must_use]
pub fn step_ms(setting: Setting, lines: &[Line]) -> f64 {
    let mut simulation = Simulation::new(setting, lines);
    simulation.run();
    // The decision: everyone hears everyone's norms.
    simulation.now + setting.costs.device.latency_ms
}

/// The same of a shape; `speed` says how fast a worker is, 1 = nominal.
#[must_use]
pub fn shape_ms(
    costs: &Costs,
    host: &Host,
    shape: &Shape,
    per_node: usize,
    speed: impl Fn(WorkerId) -> f64,
) -> f64 {
    let line = |p: &Pipeline| Line {
        stages: p.stages.iter().map(|s| s.segments).collect(),
        policies: p.stages.iter().map(|s| shape.schedule_of(s).recompute).collect(),
        samples: p.samples.len(),
        speeds: p.stages.iter().map(|s| speed(s.worker)).collect(),
    };
    let lines: Vec<Line> = shape.pipelines.iter().map(line).collect();
    let setting = Setting {
        costs,
        host,
        schedule: shape.schedule,
        micro_batch_size: shape.micro_batch_size,
        per_node,
    };
    step_ms(setting, &lines)
}

impl<'a> Simulation<'a> {
    fn new(setting: Setting<'a>, lines: &[Line]) -> Simulation<'a> {
        let micro = u64::from(setting.micro_batch_size.max(1));
        let mut workers = Vec::new();
        for (line, of) in lines.iter().enumerate() {
            let n = u32::try_from(of.samples.div_ceil(micro)).unwrap_or(u32::MAX);
            for (stage, range) in of.stages.iter().enumerate() {
                let speed = of.speeds.get(stage).copied().filter(|s| *s > 0.0);
                let recompute = of.policies.get(stage).copied();
                let schedule = ScheduleSpec {
                    recompute: recompute.unwrap_or(setting.schedule.recompute),
                    ..setting.schedule
                };
                workers.push(Worker {
                    line,
                    stage,
                    stages: of.stages.len(),
                    range: *range,
                    recompute: schedule.recompute,
                    speed: speed.unwrap_or(1.0),
                    list: generate(&schedule, of.stages.len(), stage, n),
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
            setting,
            samples: lines.iter().map(|l| l.samples).collect(),
            workers,
            rings: Vec::new(),
            arrived: BTreeMap::new(),
            tasks: Vec::new(),
            now: 0.0,
        };
        simulation.make_rings();
        simulation
    }

    /// One ring for each run of segments with the same holders, and one for the tied weight.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    fn make_rings(&mut self) {
        let costs = self.setting.costs;
        let mut groups: Vec<(Vec<usize>, u64)> = Vec::new();
        for (segment, cost) in (0u32..).zip(&costs.segments) {
            let holds = |w: &Worker| w.range.start <= segment && segment < w.range.end;
            let holders = self.holders(holds);
            match groups.last_mut() {
                Some((last, parameters)) if *last == holders => *parameters += cost.parameters,
                _ => groups.push((holders, cost.parameters)),
            }
        }
        if costs.tied_parameters > 0 {
            let last = costs.layout().segments;
            let ends = self.holders(|w| w.range.start == 0 || w.range.end == last);
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

    fn holders(&self, holds: impl Fn(&Worker) -> bool) -> Vec<usize> {
        let all = self.workers.iter().enumerate();
        all.filter(|(_, w)| holds(w)).map(|(i, _)| i).collect()
    }

    fn run(&mut self) {
        loop {
            self.start_what_is_ready();
            let paces = self.paces();
            let node = |task: &Task| task.worker / self.setting.per_node.max(1);
            let soonest = self.tasks.iter().map(|t| t.left / paces[&node(t)]);
            let Some(step) = soonest.min_by(f64::total_cmp) else {
                return;
            };
            self.now += step;
            let per_node = self.setting.per_node.max(1);
            for task in &mut self.tasks {
                task.left -= step * paces[&(task.worker / per_node)];
            }
            let (ended, go_on) = std::mem::take(&mut self.tasks)
                .into_iter()
                .partition(|t| t.left <= 1e-9);
            self.tasks = go_on;
            let ended: Vec<Task> = ended;
            for task in ended {
                self.end(&task);
            }
        }
    }

    /// How fast tasks go on, by node.
    fn paces(&self) -> BTreeMap<usize, f64> {
        let mut wanted: BTreeMap<usize, (usize, f64)> = BTreeMap::new();
        for task in &self.tasks {
            let node = wanted
                .entry(task.worker / self.setting.per_node.max(1))
                .or_default();
            node.0 += 1;
            node.1 += task.wanted;
        }
        let pace = |(active, cores)| self.setting.host.pace(active, cores);
        wanted
            .into_iter()
            .map(|(node, wanted)| (node, pace(wanted)))
            .collect()
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
                && let Some((left, arrival)) = worker.outbox.pop_front()
            {
                worker.sends = true;
                self.begin(w, Kind::Send(arrival), 1.0, left);
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
        self.tasks.push(Task {
            worker,
            kind,
            wanted,
            left,
        });
    }

    /// The next instruction of a worker that is free, where its input is there; the optimizer at the end.
    fn start_compute(&mut self, w: usize) {
        let worker = &self.workers[w];
        if worker.computes || worker.finished {
            return;
        }
        let (costs, threads) = (self.setting.costs, f64::from(self.setting.host.threads.max(1)));
        let Some(instruction) = worker.list.get(worker.at).copied() else {
            if worker.open_rings == 0 {
                let ms = costs.optimizer_ms(worker.range) / worker.speed;
                self.workers[w].computes = true;
                self.workers[w].finished = true;
                self.begin(w, Kind::Optimizer, threads, ms);
            }
            return;
        };
        let (line, stage) = (worker.line, worker.stage);
        let needs = match instruction {
            Instruction::Forward(m) if stage > 0 => Some((line, stage, m, true)),
            Instruction::Backward(m) if stage + 1 < worker.stages => Some((line, stage, m, false)),
            _ => None,
        };
        if needs.is_some_and(|arrival| !self.arrived.contains_key(&arrival)) {
            return;
        }
        let ms = match instruction {
            Instruction::Forward(m) => costs.forward_ms(worker.range, self.size(line, m)),
            Instruction::Recompute(m) => {
                costs.recompute_ms(worker.range, self.size(line, m), worker.recompute)
            }
            Instruction::Backward(m) => costs.backward_ms(worker.range, self.size(line, m)),
        };
        let ms = ms / worker.speed;
        self.workers[w].computes = true;
        self.begin(w, Kind::Compute(instruction), threads, ms);
    }

    /// Samples of a micro-batch.
    fn size(&self, line: usize, micro_batch: u32) -> u32 {
        let micro = u64::from(self.setting.micro_batch_size.max(1));
        let before = u64::from(micro_batch) * micro;
        u32::try_from(self.samples[line].saturating_sub(before).min(micro)).unwrap_or(u32::MAX)
    }

    fn end(&mut self, task: &Task) {
        let w = task.worker;
        match task.kind {
            Kind::Compute(instruction) => {
                self.workers[w].computes = false;
                self.workers[w].at += 1;
                self.queue_message(w, instruction);
            }
            Kind::Send(arrival) => {
                self.workers[w].sends = false;
                self.arrived.insert(arrival, ());
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

    fn queue_message(&mut self, w: usize, instruction: Instruction) {
        let worker = &self.workers[w];
        let (line, stage) = (worker.line, worker.stage);
        let (cut, arrival) = match instruction {
            Instruction::Forward(m) if stage + 1 < worker.stages => {
                (worker.range.end, (line, stage + 1, m, true))
            }
            Instruction::Backward(m) if stage > 0 => (worker.range.start, (line, stage - 1, m, false)),
            _ => return,
        };
        let ms = self.setting.costs.transfer_ms(cut, self.size(line, arrival.2));
        self.workers[w].outbox.push_back((ms, arrival));
    }
}

#[cfg(test)]
mod tests;
