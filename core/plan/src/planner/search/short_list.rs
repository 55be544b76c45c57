//! The short list: the compositions that are best in closed form are simulated, each with its fastest partitions and schedule.

use super::composition::{Composition, Share, closed_form_ms, shares};
use super::partitions::{Partition, PartitionSet, Partitioner};
use super::screening::{Scored, Screening};
use crate::document::{Recompute, ScheduleKind};
use crate::planner::candidate::Candidate;
use crate::predict::pipeline::run_pipeline;
use crate::predict::simulation::Simulated;
use crate::predict::stage_times::StageTimes;
use crate::predict::step::{PipelineGroup, StepTotals, shared_cores_ms};
use crate::predict::work::{PipelineWork, StepWork, schedules};
use std::collections::BTreeMap;

/// The number of compositions whose partitions are improved, and how many of those are simulated, for few workers and for many: with many
/// workers the top of the list is flat, and time is short.
const SHORT_LIST: [(usize, usize); 2] = [(400, 100), (8, 4)];
/// A composition whose closed form exceeds the best simulated step by this factor is not simulated; for few workers and for many. A step
/// with few micro-batches recomputes less than the closed form assumes.
const SURE: [f64; 2] = [1.1, 1.03];
/// From this many workers on, the shorter list is used.
const MANY: usize = 256;

/// Identifies a partition: its set, its depth, and the number of pipelines whose rings it takes into account (0: none).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PartitionKey {
    set: usize,
    depth: usize,
    pipelines: usize,
}

/// Identifies a simulated pipeline.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct SimulationKey {
    partition: PartitionKey,
    schedule: usize,
    micro_batches: u32,
}

/// A scored composition with one schedule, and whether its partitions take the rings into account.
#[derive(Clone, Copy)]
struct Variant {
    scored: Scored,
    schedule: usize,
    ring_aware: bool,
}

/// A partition that a class of pipelines may take.
#[derive(Clone, Copy)]
struct Choice<'c> {
    partition: Option<&'c Partition>,
    key: PartitionKey,
}

struct ShortList<'a> {
    partitioner: &'a Partitioner<'a>,
    sets: &'a [PartitionSet],
    /// Partitions that take rings into account, if they differ from those that do not.
    ring_aware: BTreeMap<PartitionKey, Option<Partition>>,
}

/// Simulates the compositions that are best in closed form.
pub(in crate::planner) fn simulate(
    partitioner: &Partitioner,
    sets: &[PartitionSet],
    screening: &Screening,
) -> Vec<Candidate> {
    let many = usize::from(partitioner.workers > MANY);
    let ((listed, most), sure) = (SHORT_LIST[many], SURE[many]);
    let mut list = screening.short_list(listed);
    let mut short = ShortList {
        partitioner,
        sets,
        ring_aware: BTreeMap::new(),
    };
    for scored in &mut list {
        short.rescore(scored);
    }
    list.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
    let mut simulations = BTreeMap::new();
    let mut best = f64::INFINITY;
    let mut found = Vec::new();
    for scored in list.iter().take(most) {
        if scored.step_ms > best * sure {
            break;
        }
        let mut fastest: Option<Candidate> = None;
        for schedule in 0..sets[scored.set].schedules.len() {
            for ring_aware in short.variants(scored) {
                let variant = Variant {
                    scored: *scored,
                    schedule,
                    ring_aware,
                };
                let limit = fastest
                    .as_ref()
                    .map_or(f64::INFINITY, |f| f.step_ms * (1.0 - 1e-9));
                let candidate = short.simulate(variant, &mut simulations);
                if let Some(candidate) = candidate.filter(|c| c.step_ms < limit) {
                    fastest = Some(candidate);
                }
            }
        }
        if let Some(candidate) = fastest {
            best = best.min(candidate.step_ms);
            found.push(candidate);
        }
    }
    found
}

impl ShortList<'_> {
    /// Whether to try partitions without and with regard to the rings: both, or, for many workers, the kind that is better in closed form.
    fn variants(&self, scored: &Scored) -> Vec<bool> {
        if self.partitioner.workers <= MANY {
            return vec![false, true];
        }
        let set = &self.sets[scored.set];
        let weighed = self.choices(scored, true).iter().any(|c| c.key.pipelines > 0);
        let composition = &scored.composition;
        let plain_ms = closed_form_ms(set, composition, composition.partitions(set));
        vec![weighed && scored.step_ms < plain_ms.unwrap_or(f64::INFINITY)]
    }

    /// Uses the closed form with partitions that take the rings into account, if it is smaller.
    fn rescore(&mut self, scored: &mut Scored) {
        self.make_ring_aware(scored);
        let partitions = self.choices(scored, true).map(|c| c.partition);
        let step_ms = closed_form_ms(&self.sets[scored.set], &scored.composition, partitions);
        if let Some(step_ms) = step_ms {
            let turns = self.partitioner.problem.turns(scored.composition.workers());
            scored.step_ms = scored.step_ms.min(step_ms * turns);
        }
    }

    /// Makes the partitions that take the rings of a composition into account, if they have not been made.
    fn make_ring_aware(&mut self, scored: &Scored) {
        let (set, pipelines) = (&self.sets[scored.set], scored.composition.pipelines());
        if pipelines < 2 && self.partitioner.problem.costs.tied_parameters == 0 {
            return;
        }
        for class in scored.composition.classes.iter().filter(|c| c.count > 0) {
            let key = PartitionKey {
                set: scored.set,
                depth: class.depth,
                pipelines,
            };
            let make = || self.partitioner.ring_aware(set, class.depth, pipelines);
            self.ring_aware.entry(key).or_insert_with(make);
        }
    }

    /// The partitions of a composition: those that take its rings into account, if wanted and if they differ from those that do not.
    fn choices(&self, scored: &Scored, ring_aware: bool) -> [Choice<'_>; 2] {
        let pipelines = scored.composition.pipelines();
        scored.composition.classes.map(|class| {
            let key = |pipelines| PartitionKey {
                set: scored.set,
                depth: class.depth,
                pipelines,
            };
            match self.ring_aware.get(&key(pipelines)) {
                Some(Some(partition)) if ring_aware && class.count > 0 => Choice {
                    partition: Some(partition),
                    key: key(pipelines),
                },
                _ => Choice {
                    partition: self.sets[scored.set].of_depth(class.depth),
                    key: key(0),
                },
            }
        })
    }

    fn simulate(
        &self,
        variant: Variant,
        simulations: &mut BTreeMap<SimulationKey, Simulated>,
    ) -> Option<Candidate> {
        let Variant { scored, schedule, .. } = variant;
        let (composition, set) = (scored.composition, &self.sets[scored.set]);
        let chosen = self.choices(&scored, variant.ring_aware);
        if variant.ring_aware && chosen.iter().all(|c| c.key.pipelines == 0) {
            return None;
        }
        let shares = shares(set, &composition, chosen.map(|c| c.partition))?;
        let mut groups: Vec<PipelineGroup> = Vec::new();
        for ((share, choice), class) in shares.iter().zip(chosen).zip(composition.classes) {
            let Some(partition) = choice.partition else {
                continue;
            };
            let extra = usize::try_from(share.extra).ok()?;
            for (n, count) in [(share.each + 1, extra), (share.each, class.count - extra)] {
                if count == 0 {
                    continue;
                }
                let n = u32::try_from(n).ok()?;
                let simulated_n = n.min(steady(partition.stages.len()));
                let key = SimulationKey {
                    partition: choice.key,
                    schedule,
                    micro_batches: simulated_n,
                };
                let run = simulations
                    .entry(key)
                    .or_insert_with(|| self.run(set, set.schedules[schedule], partition, simulated_n));
                groups.push(PipelineGroup {
                    count,
                    micro_batches: n,
                    stages: partition.stages.clone(),
                    workers: partition.stages.len(),
                    simulated: extended(run, partition.form.period_ms, simulated_n, n),
                    steady_ms: partition.form.period_ms * f64::from(n),
                });
            }
        }
        let partitions = chosen.map(|c| c.partition);
        self.candidate(
            set,
            set.schedules[schedule],
            &composition,
            partitions,
            shares,
            &groups,
        )
    }

    /// Simulates the filling and part of the steady state of a pipeline.
    fn run(&self, set: &PartitionSet, kind: ScheduleKind, partition: &Partition, n: u32) -> Simulated {
        let costs = self.partitioner.problem.costs;
        let stages = partition.work(self.partitioner.speed);
        let times = stages
            .iter()
            .map(|s| StageTimes::new(costs, *s, set.micro_batch_size));
        let times: Vec<StageTimes> = times.collect();
        run_pipeline(
            costs.runtime,
            &schedules(&stages, kind),
            &times,
            n,
            |_, ms| ms,
            |_| {},
        )
    }

    fn candidate(
        &self,
        set: &PartitionSet,
        kind: ScheduleKind,
        composition: &Composition,
        partitions: [Option<&Partition>; 2],
        shares: [Share; 2],
        groups: &[PipelineGroup],
    ) -> Option<Candidate> {
        let problem = &self.partitioner.problem;
        let mut left = problem.request.global_batch_size;
        let mut pipelines = Vec::with_capacity(composition.pipelines());
        for ((partition, share), class) in partitions.iter().zip(shares).zip(composition.classes) {
            for i in 0..class.count as u64 {
                // Whole micro-batches; only the last pipeline's last one can be short.
                let n = share.each + u64::from(i < share.extra);
                let samples = (n * u64::from(set.micro_batch_size)).min(left);
                left -= samples;
                // Workers that share cores are simulated at nominal speed: not every worker is as slow as the slowest of its pool, and the
                // time of the slowest alone is a lower bound already.
                let stages = (*partition)?.work(1.0);
                pipelines.push(PipelineWork { stages, samples });
            }
        }
        let work = StepWork {
            pipelines,
            micro_batch_size: set.micro_batch_size,
            kind,
        };
        let shared_ms = shared_cores_ms(problem.costs, &work, problem.topology);
        let step = StepTotals::new(problem.costs, groups, shared_ms);
        Some(Candidate {
            work,
            recompute: set.policies.each.first().copied().unwrap_or(Recompute::None),
            step_ms: step.step_ms,
            bubble: step.bubble,
            parts: step.parts,
        })
    }
}

/// Number of micro-batches after which a pipeline of this many stages has certainly reached its steady state.
fn steady(stages: usize) -> u32 {
    u32::try_from(3 * stages + 16).unwrap_or(u32::MAX)
}

/// A run of `known` micro-batches continued to `n` at this period.
fn extended(run: &Simulated, period_ms: f64, known: u32, n: u32) -> Simulated {
    let more = period_ms * f64::from(n - known);
    let times = f64::from(n) / f64::from(known);
    Simulated {
        ends_ms: run.ends_ms.iter().map(|end| end + more).collect(),
        busy_ms: run.busy_ms.iter().map(|busy| busy * times).collect(),
    }
}
