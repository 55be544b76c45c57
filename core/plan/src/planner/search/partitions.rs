//! How the model is cut for every depth, for each micro-batch size and each schedule that memory allows.

use crate::cost::SegmentKind;
use crate::document::{Recompute, ScheduleKind};
use crate::layout::SegmentRange;
use crate::partition::{RingAwareCut, partition_all};
use crate::planner::problem::Problem;
use crate::planner::request::WorkerInfo;
use crate::predict::closed_form::ClosedForm;
use crate::predict::stage_sums::StageSums;
use crate::predict::work::{StageWork, rounded_speed};
use crate::schedule::stash_max;

/// The model cut for one depth.
#[derive(Clone, Debug)]
pub(in crate::planner) struct Partition {
    /// Segments of each stage.
    pub(in crate::planner) stages: Vec<SegmentRange>,
    /// The recompute policy of each stage.
    pub(in crate::planner) policies: Vec<Recompute>,
    pub(in crate::planner) form: ClosedForm,
}

impl Partition {
    /// The work of the stages on workers of this speed.
    pub(in crate::planner) fn work(&self, speed: f64) -> Vec<StageWork> {
        let stages = self.stages.iter().zip(&self.policies);
        let stage = |(segments, recompute): (&SegmentRange, &Recompute)| StageWork {
            segments: *segments,
            recompute: *recompute,
            speed,
        };
        stages.map(stage).collect()
    }
}

/// One micro-batch size with one partition for each depth, and the schedules that fit into memory with these.
pub(in crate::planner) struct PartitionSet {
    pub(in crate::planner) micro_batch_size: u32,
    /// Micro-batches in a step.
    pub(in crate::planner) micro_batches: u64,
    pub(in crate::planner) schedules: Vec<ScheduleKind>,
    /// The recompute policies that stages may use.
    pub(in crate::planner) policies: Policies,
    pub(in crate::planner) sums: StageSums,
    /// `by_depth[p]`: the partition into p stages, if there is one.
    by_depth: Vec<Option<Partition>>,
}

impl PartitionSet {
    /// The partition into `depth` stages.
    pub(in crate::planner) fn of_depth(&self, depth: usize) -> Option<&Partition> {
        self.by_depth.get(depth)?.as_ref()
    }

    /// All partitions, shallow ones first.
    pub(in crate::planner) fn partitions(&self) -> impl Iterator<Item = &Partition> {
        self.by_depth.iter().flatten()
    }

    /// Depths for which there is a partition, ascending.
    pub(in crate::planner) fn depths(&self) -> Vec<usize> {
        self.partitions().map(|p| p.stages.len()).collect()
    }
}

/// What stages may recompute, the fastest policy first. Each stage uses the first that fits.
#[derive(Clone)]
pub(in crate::planner) struct Policies {
    /// The policies with which each stage must fit.
    pub(in crate::planner) each: Vec<Recompute>,
    /// What the last stage may use instead, if it fits: its backward directly follows its forward.
    last: Vec<Recompute>,
}

/// What the memory limit means for partitions that were made without regard to it.
enum MemoryEffect {
    /// All partitions fit into memory.
    AllFit,
    /// The depths that do not fit cannot be made to fit; these partitions remain.
    SomeFit(Vec<Option<Partition>>),
    /// Other partitions of the same depth might fit.
    CutAnew,
}

/// Cuts the model for the workers of one pool.
pub(in crate::planner) struct Partitioner<'a> {
    pub(in crate::planner) problem: Problem<'a>,
    /// At most this many workers may be used.
    pub(in crate::planner) workers: usize,
    /// Speed of the slowest of them.
    pub(in crate::planner) speed: f64,
    /// Memory of the smallest of them, bytes: what every stage must fit into.
    memory: Option<u64>,
}

impl<'a> Partitioner<'a> {
    pub(in crate::planner) fn new(problem: Problem<'a>, workers: &[&WorkerInfo]) -> Self {
        let smallest = workers.iter().map(|w| problem.capacity(w)).min();
        Partitioner {
            problem,
            workers: workers.len().min(problem.max_workers()),
            speed: workers
                .iter()
                .map(|w| rounded_speed(w.speed))
                .fold(f64::INFINITY, f64::min),
            memory: smallest.filter(|m| *m < u64::MAX),
        }
    }

    /// All sets of partitions, for every micro-batch size.
    pub(in crate::planner) fn sets(&self) -> Vec<PartitionSet> {
        let mut sets = Vec::new();
        for micro_batch_size in self.micro_batch_sizes() {
            for (policies, schedules) in self.choices() {
                self.add_sets(&mut sets, micro_batch_size, &policies, &schedules);
            }
        }
        sets
    }

    fn micro_batch_sizes(&self) -> Vec<u32> {
        match self.problem.constraints.micro_batch_size {
            Some(m) => vec![m.max(1)],
            None => (0..6)
                .map(|i| 1 << i)
                .filter(|m| *m == 1 || u64::from(*m) * 2 <= self.problem.request.global_batch_size)
                .collect(),
        }
    }

    /// The schedules, grouped by what stages may recompute. If no attention is known, selective recompute recomputes nothing and is left
    /// out of a choice.
    fn choices(&self) -> Vec<(Vec<Recompute>, Vec<ScheduleKind>)> {
        let segments = &self.problem.costs.segments;
        let attention = segments.iter().any(|s| s.kind == SegmentKind::Attention);
        let specs = &self.problem.constraints.schedules;
        let mut choices: Vec<(Vec<Recompute>, Vec<ScheduleKind>)> = Vec::new();
        let mut seen: Vec<ScheduleKind> = Vec::new();
        for spec in specs {
            if seen.contains(&spec.kind) || spec.kind.chunks() > 1 {
                continue;
            }
            seen.push(spec.kind);
            let same = specs.iter().filter(|s| s.kind == spec.kind);
            let mut policies: Vec<Recompute> = same.map(|s| s.recompute).collect();
            policies.sort_unstable();
            policies.dedup();
            if policies.len() > 1 && !attention {
                policies.retain(|p| *p != Recompute::Selective);
            }
            match choices.iter_mut().find(|(p, _)| *p == policies) {
                Some((_, kinds)) => kinds.push(spec.kind),
                None => choices.push((policies, vec![spec.kind])),
            }
        }
        choices
    }

    /// Adds the sets of a micro-batch size: a single one for all schedules if memory limits none of them.
    fn add_sets(
        &self,
        sets: &mut Vec<PartitionSet>,
        micro_batch_size: u32,
        policies: &[Recompute],
        schedules: &[ScheduleKind],
    ) {
        let lightest = policies.first().copied().unwrap_or(Recompute::None);
        let sums = StageSums::new(self.problem.costs, micro_batch_size, lightest, self.speed);
        let micro_batches = self.problem.micro_batches(micro_batch_size);
        let deepest = self.deepest();
        // The schedule that keeps most micro-batches in flight stalls least; the others of a set are tried in the simulation.
        let most = most_stashes(schedules, deepest, micro_batches);
        let free = self.cut(&sums, &|_, _| Some(lightest), &most);
        let mut unbound: Vec<ScheduleKind> = Vec::new();
        let restricted = |each: &[Recompute]| Policies {
            each: each.to_vec(),
            last: policies.to_vec(),
        };
        let mut found: Vec<(Vec<ScheduleKind>, Policies, Vec<Option<Partition>>)> = Vec::new();
        for kind in schedules {
            let stashes = stashes(*kind, deepest, micro_batches);
            match self.memory_effect(&sums, &free, &stashes) {
                MemoryEffect::AllFit => unbound.push(*kind),
                MemoryEffect::SomeFit(some) => found.push((vec![*kind], restricted(policies), some)),
                MemoryEffect::CutAnew => {
                    // The slowest stage is fastest if each stage recomputes as little as it can. The whole step may be shorter if all
                    // stages do the same: they are cut differently, and the pipeline may fill faster.
                    let same = policies.iter().map(std::slice::from_ref);
                    let alike = same.filter(|one| *one != policies);
                    for allowed in std::iter::once(policies).chain(alike) {
                        let allowed = restricted(allowed);
                        let policy = |r: SegmentRange, later: u32| {
                            self.fastest_that_fits(&sums, &allowed, r, (later, stashes[later as usize]))
                        };
                        let by_depth = self.cut(&sums, &policy, &stashes);
                        found.push((vec![*kind], allowed, by_depth));
                    }
                }
            }
        }
        if !unbound.is_empty() {
            found.insert(0, (unbound, restricted(policies), free));
        }
        for (schedules, policies, by_depth) in found {
            if by_depth.iter().any(Option::is_some) {
                sets.push(PartitionSet {
                    micro_batch_size,
                    micro_batches,
                    schedules,
                    policies,
                    sums: sums.clone(),
                    by_depth,
                });
            }
        }
    }

    /// The deepest pipeline that may be made.
    fn deepest(&self) -> u32 {
        let segments = self.problem.request.layout.segments;
        let widest = u32::try_from(self.workers).unwrap_or(u32::MAX);
        let most = self.problem.constraints.max_depth.unwrap_or(segments);
        most.min(segments).min(widest)
    }

    /// The best partition for every depth. `policy` tells what a stage recomputes with this many stages behind it; none if it does not fit.
    fn cut(
        &self,
        sums: &StageSums,
        policy: &dyn Fn(SegmentRange, u32) -> Option<Recompute>,
        in_flight: &[u32],
    ) -> Vec<Option<Partition>> {
        let (segments, deepest) = (self.problem.request.layout.segments, self.deepest());
        let min_depth = self.problem.constraints.min_depth.max(1);
        let all = partition_all(segments, deepest, |r, later| {
            Some(sums.stage_cost(r, policy(r, later)?))
        });
        let one = |p: u32| self.partition(sums, all.stages(p)?, policy, in_flight);
        let shallow = (0..min_depth).map(|_| None);
        shallow.chain((min_depth..=deepest).map(one)).collect()
    }

    fn partition(
        &self,
        sums: &StageSums,
        stages: Vec<SegmentRange>,
        policy: &dyn Fn(SegmentRange, u32) -> Option<Recompute>,
        in_flight: &[u32],
    ) -> Option<Partition> {
        let later = |j: usize| u32::try_from(stages.len() - 1 - j).unwrap_or(u32::MAX);
        let policies = stages.iter().enumerate().map(|(j, r)| policy(*r, later(j)));
        let policies: Vec<Recompute> = policies.collect::<Option<_>>()?;
        let latency_ms = self.problem.costs.device.latency_ms;
        Some(Partition {
            form: ClosedForm::new(sums, &stages, &policies, in_flight, latency_ms),
            stages,
            policies,
        })
    }

    fn memory_effect(&self, sums: &StageSums, free: &[Option<Partition>], stashes: &[u32]) -> MemoryEffect {
        let Some(memory) = self.memory else {
            return MemoryEffect::AllFit;
        };
        let least = sums.memory_bytes(self.problem.request.layout.whole(), 1, Recompute::None);
        let (mut all, mut some) = (true, Vec::with_capacity(free.len()));
        for partition in free {
            let holds = |p: &&Partition| {
                let mut stages = p.stages.iter().zip(&p.policies).rev().zip(stashes);
                stages.all(|((r, policy), stash)| sums.memory_bytes(*r, *stash, *policy) <= memory)
            };
            let fits = partition.as_ref().filter(holds);
            if let (Some(partition), None) = (partition, fits) {
                all = false;
                if least <= memory.saturating_mul(partition.stages.len() as u64) {
                    return MemoryEffect::CutAnew;
                }
            }
            some.push(fits.cloned());
        }
        if all {
            MemoryEffect::AllFit
        } else {
            MemoryEffect::SomeFit(some)
        }
    }

    /// The fastest of these policies under which a stage with `later` stages behind it, which keeps `stash` micro-batches, fits into
    /// memory.
    fn fastest_that_fits(
        &self,
        sums: &StageSums,
        policies: &Policies,
        range: SegmentRange,
        (later, stash): (u32, u32),
    ) -> Option<Recompute> {
        let fits = |p: &&Recompute| {
            self.memory
                .is_none_or(|m| sums.memory_bytes(range, stash, **p) <= m)
        };
        let own = policies.each.iter().find(fits)?;
        let last = policies.last.iter().find(fits).filter(|_| later == 0);
        Some(*last.unwrap_or(own))
    }

    /// The partition of a depth that takes the gradient rings of this many pipelines into account as well as compute, if it differs.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    pub(in crate::planner) fn ring_aware(
        &self,
        set: &PartitionSet,
        depth: usize,
        pipelines: usize,
    ) -> Option<Partition> {
        let base = set.of_depth(depth)?;
        let deepest = u32::try_from(depth).ok()?;
        let stashes = most_stashes(&set.schedules, deepest, set.micro_batches);
        let sums = &set.sums;
        let policy = |r: SegmentRange, later: u32| {
            let stash = stashes.get(later as usize)?;
            self.fastest_that_fits(sums, &set.policies, r, (later, *stash))
        };
        let cost = |r: SegmentRange, later: u32| Some(sums.stage_cost(r, policy(r, later)?));
        let tail = |r: SegmentRange| ClosedForm::stage_tail_ms(sums, r, pipelines);
        let aware = RingAwareCut {
            segments: sums.segments(),
            depth: deepest,
            micro_batches: set.micro_batches as f64 / pipelines as f64,
            cost: &cost,
            tail: &tail,
        };
        let each = base.stages.iter().zip(&base.policies);
        let least = each.map(|(r, p)| sums.stage_ms(*r, *p)).fold(0.0, f64::max);
        let stages = aware.cut(least)?;
        if stages == base.stages {
            return None;
        }
        self.partition(sums, stages, &policy, &stashes)
    }
}

/// Number of micro-batches that a stage keeps, by the number of stages behind it (it depends on nothing else).
fn stashes(kind: ScheduleKind, deepest: u32, micro_batches: u64) -> Vec<u32> {
    let micro_batches = u32::try_from(micro_batches).unwrap_or(u32::MAX);
    (1..=deepest as usize)
        .map(|p| stash_max(kind, p, 0, micro_batches))
        .collect()
}

/// The largest of the stashes of several schedules.
fn most_stashes(kinds: &[ScheduleKind], deepest: u32, micro_batches: u64) -> Vec<u32> {
    let all = kinds.iter().map(|kind| stashes(*kind, deepest, micro_batches));
    let most = |a: Vec<u32>, b: Vec<u32>| a.into_iter().zip(b).map(|(a, b)| a.max(b)).collect();
    all.reduce(most).unwrap_or_default()
}
