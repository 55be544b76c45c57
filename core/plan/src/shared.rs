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
use crate::schedule::{Instruction, Task, list};
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

impl Line {
    /// The schedule of each stage.
    fn schedules(&self, schedule: ScheduleSpec) -> Vec<ScheduleSpec> {
        let of = |stage| ScheduleSpec {
            recompute: self.policies.get(stage).copied().unwrap_or(schedule.recompute),
            ..schedule
        };
        (0..self.stages.len()).map(of).collect()
    }
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
    Compute(Task),
    Send(Arrival),
    Ring(usize),
    Optimizer,
}

struct Job {
    worker: usize,
    kind: Kind,
    /// Cores that it can use.
    wanted: f64,
    /// Milliseconds on cores of its own.
    left: f64,
}

/// One worker of a pipeline.
struct Worker {
    line: usize,
    /// The segments of each of its stages.
    ranges: Vec<SegmentRange>,
    speed: f64,
    list: Vec<Task>,
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
    lines: &'a [Line],
    workers: Vec<Worker>,
    rings: Vec<Ring>,
    arrived: BTreeMap<Arrival, ()>,
    jobs: Vec<Job>,
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
    fn new(setting: Setting<'a>, lines: &'a [Line]) -> Simulation<'a> {
        let micro = u64::from(setting.micro_batch_size.max(1));
        let mut workers = Vec::new();
        for (line, of) in lines.iter().enumerate() {
            let n = u32::try_from(of.samples.div_ceil(micro)).unwrap_or(u32::MAX);
            let specs = of.schedules(setting.schedule);
            let count = setting.schedule.kind.workers(specs.len());
            for first in 0..count {
                let speed = of.speeds.get(first).copied().filter(|s| *s > 0.0);
                workers.push(Worker {
                    line,
                    ranges: of.stages.iter().skip(first).step_by(count).copied().collect(),
                    speed: speed.unwrap_or(1.0),
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
            setting,
            lines,
            workers,
            rings: Vec::new(),
            arrived: BTreeMap::new(),
            jobs: Vec::new(),
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
            let paces = self.paces();
            let node = |job: &Job| job.worker / self.setting.per_node.max(1);
            let soonest = self.jobs.iter().map(|j| j.left / paces[&node(j)]);
            let Some(step) = soonest.min_by(f64::total_cmp) else {
                return;
            };
            self.now += step;
            let per_node = self.setting.per_node.max(1);
            for job in &mut self.jobs {
                job.left -= step * paces[&(job.worker / per_node)];
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

    /// How fast jobs go on, by node.
    fn paces(&self) -> BTreeMap<usize, f64> {
        let mut wanted: BTreeMap<usize, (usize, f64)> = BTreeMap::new();
        for job in &self.jobs {
            let node = wanted
                .entry(job.worker / self.setting.per_node.max(1))
                .or_default();
            node.0 += 1;
            node.1 += job.wanted;
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
        self.jobs.push(Job {
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
        let (line, stage) = (worker.line, task.stage);
        let of = &self.lines[line];
        let range = of.stages[stage];
        let needs = match task.instruction {
            Instruction::Forward(m) if stage > 0 => Some((line, stage, m, true)),
            Instruction::Backward(m) if stage + 1 < of.stages.len() => Some((line, stage, m, false)),
            _ => None,
        };
        if needs.is_some_and(|arrival| !self.arrived.contains_key(&arrival)) {
            return;
        }
        let ms = match task.instruction {
            Instruction::Forward(m) => costs.forward_ms(range, self.size(line, m)),
            Instruction::Recompute(m) => {
                let policy = of.policies.get(stage).copied();
                let policy = policy.unwrap_or(self.setting.schedule.recompute);
                costs.recompute_ms(range, self.size(line, m), policy)
            }
            Instruction::Backward(m) => costs.backward_ms(range, self.size(line, m)),
        };
        let ms = ms / worker.speed;
        self.workers[w].computes = true;
        self.begin(w, Kind::Compute(task), threads, ms);
    }

    /// Samples of a micro-batch.
    fn size(&self, line: usize, micro_batch: u32) -> u32 {
        let micro = u64::from(self.setting.micro_batch_size.max(1));
        let before = u64::from(micro_batch) * micro;
        u32::try_from(self.lines[line].samples.saturating_sub(before).min(micro)).unwrap_or(u32::MAX)
    }

    fn end(&mut self, job: &Job) {
        let w = job.worker;
        match job.kind {
            Kind::Compute(task) => {
                self.workers[w].computes = false;
                self.workers[w].at += 1;
                self.queue_message(w, task);
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

    fn queue_message(&mut self, w: usize, task: Task) {
        let (line, stage) = (self.workers[w].line, task.stage);
        let stages = &self.lines[line].stages;
        let (cut, arrival) = match task.instruction {
            Instruction::Forward(m) if stage + 1 < stages.len() => {
                (stages[stage].end, (line, stage + 1, m, true))
            }
            Instruction::Backward(m) if stage > 0 => (stages[stage].start, (line, stage - 1, m, false)),
            _ => return,
        };
        let ms = self.setting.costs.transfer_ms(cut, self.size(line, arrival.2));
        self.workers[w].outbox.push_back((ms, arrival));
    }
}

#[cfg(test)]
mod tests;
