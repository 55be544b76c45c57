//! Candidates: the short list of compositions with the cuts and the schedule that simulate fastest.

use super::compose::{Composer, Entry, policies_of};
use super::cut::Cut;
use super::family::{Composition, Family, Share};
use crate::cost::Runtime;
use crate::document::{Recompute, ScheduleKind, ScheduleSpec};
use crate::layout::SegmentRange;
use crate::partition::Aware;
use crate::schedule::lists;
use crate::shared::{self, Line, Setting};
use crate::simulate::{Simulated, rendezvous, simulate};
use crate::sync::{self, Pipelines};
use std::collections::BTreeMap;

/// Compositions whose cuts are improved, and how many of those are simulated, for few workers and for many: there the list
/// is flat at its top, and time is short.
const SHORT_LIST: [(usize, usize); 2] = [(400, 100), (8, 4)];
/// What the closed form puts this much above the best simulated step is not simulated.
const SURE: f64 = 1.03;
/// Up to so many workers that share cores are simulated together; beyond, sharing is left out.
const MANY_SHARING: usize = 64;
/// Workers from which on the short list is the shorter one.
const MANY: usize = 256;

/// One pipeline of a candidate.
#[derive(Clone, Debug)]
pub(super) struct CandidatePipeline {
    /// Segments of each stage.
    pub(super) stages: Vec<SegmentRange>,
    /// What each stage keeps of a forward.
    pub(super) policies: Vec<Recompute>,
    /// Samples of each step.
    pub(super) samples: u64,
}

/// Where a step's time goes, milliseconds; together the step.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct StepParts {
    /// All micro-batches at the pace of the slowest stage.
    pub steady_ms: f64,
    /// Filling and draining the pipeline.
    pub fill_ms: f64,
    /// Gradient rings and optimizer after the last backward.
    pub rings_ms: f64,
}

/// A shape without workers.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) pipelines: Vec<CandidatePipeline>,
    pub(super) micro_batch_size: u32,
    pub(super) schedule: ScheduleSpec,
    pub(super) step_ms: f64,
    pub(super) bubble: f64,
    pub(super) parts: StepParts,
}

impl Candidate {
    pub(super) fn workers(&self) -> usize {
        self.depths().sum()
    }

    /// Workers of each pipeline.
    pub(super) fn depths(&self) -> impl Iterator<Item = usize> {
        let kind = self.schedule.kind;
        self.pipelines.iter().map(move |p| kind.workers(p.stages.len()))
    }
}

/// Simulated pipelines: by family, schedule, depth, number of pipelines that the cut weighs (0: none), micro-batches.
type Memo = BTreeMap<(usize, usize, usize, usize, u32), Simulated>;
/// Cuts that weigh rings: by family, depth, pipelines.
type AwareCuts = BTreeMap<(usize, usize, usize), Option<Cut>>;

/// Which entry, with which schedule, and whether its cuts weigh the rings.
#[derive(Clone, Copy)]
struct Variant<'e> {
    entry: &'e Entry,
    schedule: usize,
    aware: bool,
}

impl Composer<'_> {
    /// The compositions that the closed form likes best, simulated.
    pub(super) fn candidates(&self) -> Vec<Candidate> {
        let (listed, most) = SHORT_LIST[usize::from(self.workers > MANY)];
        let (mut memo, mut aware_cuts) = (Memo::new(), AwareCuts::new());
        let mut list = self.short_list(listed);
        for entry in &mut list {
            self.rescore(entry, &mut aware_cuts);
        }
        list.sort_by(|a, b| a.score.total_cmp(&b.score));
        let mut best = f64::INFINITY;
        let mut found = Vec::new();
        for entry in list.iter().take(most) {
            if entry.score > best * SURE {
                break;
            }
            let mut fastest: Option<Candidate> = None;
            for schedule in 0..self.families[entry.family].schedules.len() {
                for aware in self.variants(entry, &aware_cuts) {
                    let variant = Variant {
                        entry,
                        schedule,
                        aware,
                    };
                    let candidate = self.simulated(variant, &mut memo, &aware_cuts);
                    let limit = fastest
                        .as_ref()
                        .map_or(f64::INFINITY, |f| f.step_ms * (1.0 - 1e-9));
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

    /// Whether to try cuts that do not and cuts that do weigh the rings: both, or for many workers what the closed form likes.
    fn variants(&self, entry: &Entry, aware_cuts: &AwareCuts) -> Vec<bool> {
        if self.workers <= MANY {
            return vec![false, true];
        }
        let family = &self.families[entry.family];
        let weighed = aware_of(entry, family, aware_cuts)
            .iter()
            .any(|(_, pipelines)| *pipelines > 0);
        vec![weighed && entry.score < family.closed_form(&entry.composition).unwrap_or(f64::INFINITY)]
    }

    /// Takes the closed form with cuts that weigh the rings, where that is less.
    fn rescore(&self, entry: &mut Entry, aware_cuts: &mut AwareCuts) {
        let family = &self.families[entry.family];
        self.know_aware_cuts(entry, aware_cuts);
        let cuts = aware_of(entry, family, aware_cuts).map(|(cut, _)| cut);
        if let Some(shares) = family.shares(&entry.composition, cuts) {
            let turns = self.turns(entry.composition.workers());
            let score = Family::closed_form_of(&entry.composition, cuts, shares) * turns;
            entry.score = entry.score.min(score);
        }
    }

    /// Makes the cuts that weigh the rings of a composition, if they have not been made.
    fn know_aware_cuts(&self, entry: &Entry, aware_cuts: &mut AwareCuts) {
        let (family, pipelines) = (&self.families[entry.family], entry.composition.pipelines());
        if pipelines < 2 && self.planner.costs.tied_parameters == 0 {
            return;
        }
        for (depth, _) in entry.composition.classes.iter().filter(|c| c.1 > 0) {
            let key = (entry.family, *depth, pipelines);
            let make = || self.aware_cut(family, *depth, pipelines);
            aware_cuts.entry(key).or_insert_with(make);
        }
    }

    /// The cut of a depth that weighs the rings of so many pipelines.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    pub(super) fn aware_cut(&self, family: &Family, depth: usize, pipelines: usize) -> Option<Cut> {
        let base = family.cuts.get(depth)?.as_ref()?;
        let deepest = u32::try_from(depth).ok()?;
        let stashes = self.most_stashes(&family.schedules, deepest, family.batches);
        let tables = &family.tables;
        let keeps = |r: SegmentRange, later: u32| {
            let stash = stashes.get(later as usize)?;
            self.keeps(tables, &family.policies, r, *stash)
        };
        let cost = |r: SegmentRange, later: u32| Some(tables.stage_ms(r, keeps(r, later)?));
        let tail = |r: SegmentRange| Cut::stage_tail_ms(tables, r, pipelines);
        let aware = Aware {
            segments: tables.segments(),
            depth: deepest,
            micro_batches: family.batches as f64 / pipelines as f64,
            cost: &cost,
            tail: &tail,
        };
        let least = base
            .stages
            .iter()
            .zip(&base.policies)
            .map(|(r, p)| tables.stage_ms(*r, *p))
            .fold(0.0, f64::max);
        let stages = aware.cut(least)?;
        if stages == base.stages {
            return None;
        }
        let latency_ms = self.planner.costs.device.latency_ms;
        let policies = policies_of(&stages, &keeps)?;
        Some(Cut::new(tables, stages, policies, &stashes, latency_ms))
    }

    fn simulated(&self, variant: Variant, memo: &mut Memo, aware_cuts: &AwareCuts) -> Option<Candidate> {
        let Variant {
            entry,
            schedule,
            aware,
        } = variant;
        let composition = entry.composition;
        let family = &self.families[entry.family];
        let kind = family.schedules[schedule];
        let plain = |(depth, _): (usize, usize)| (family.cuts.get(depth).and_then(Option::as_ref), 0);
        let chosen = if aware {
            aware_of(entry, family, aware_cuts)
        } else {
            composition.classes.map(plain)
        };
        let (cuts, weighed) = (chosen.map(|c| c.0), chosen.map(|c| c.1));
        if aware && weighed == [0; 2] {
            return None;
        }
        let shares = family.shares(&composition, cuts)?;
        let mut runs: Vec<(usize, usize, Simulated)> = Vec::new();
        let mut steady_ms = 0.0f64;
        for (i, share) in shares.iter().enumerate() {
            let Some(cut) = cuts[i] else { continue };
            let count = composition.classes[i].1;
            let extra = usize::try_from(share.extra).ok()?;
            for (n, count) in [(share.each + 1, extra), (share.each, count - extra)] {
                if count == 0 {
                    continue;
                }
                let n = u32::try_from(n).ok()?;
                let known = n.min(steady(cut.stages.len()));
                let key = (entry.family, schedule, cut.stages.len(), weighed[i], known);
                let run = memo
                    .entry(key)
                    .or_insert_with(|| run_pipeline(family, kind, cut, known));
                runs.push((i, count, extended(run, cut, known, n)));
                steady_ms = steady_ms.max(cut.period_ms * f64::from(n));
            }
        }
        self.conclude(variant, cuts, shares, &runs, steady_ms)
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    fn conclude(
        &self,
        variant: Variant,
        cuts: [Option<&Cut>; 2],
        shares: [Share; 2],
        runs: &[(usize, usize, Simulated)],
        steady_ms: f64,
    ) -> Option<Candidate> {
        let family = &self.families[variant.entry.family];
        let kinds: Vec<Pipelines> = runs
            .iter()
            .filter_map(|(i, count, run)| {
                let stages = &cuts[*i]?.stages;
                Some(Pipelines {
                    stages,
                    workers: stages.len(),
                    ends_ms: &run.ends_ms,
                    count: *count,
                })
            })
            .collect();
        let mut step_ms = sync::step_ms(&self.planner.costs, &kinds);
        let makespan_ms = runs
            .iter()
            .map(|(_, _, run)| run.makespan_ms())
            .fold(0.0, f64::max);
        let busy: f64 = runs
            .iter()
            .map(|(_, n, run)| *n as f64 * run.busy_ms.iter().sum::<f64>())
            .sum();
        let composition: Composition = variant.entry.composition;
        let mut left = self.request.global_batch_size;
        let mut pipelines = Vec::with_capacity(composition.pipelines());
        for ((cut, share), (_, count)) in cuts.iter().zip(shares).zip(composition.classes) {
            for i in 0..count as u64 {
                // Whole micro-batches; only the last pipeline's last one can be short.
                let n = share.each + u64::from(i < share.extra);
                let samples = (n * u64::from(family.micro)).min(left);
                left -= samples;
                let Cut { stages, policies, .. } = (*cut)?;
                pipelines.push(CandidatePipeline {
                    stages: stages.clone(),
                    policies: policies.clone(),
                    samples,
                });
            }
        }
        let schedule = ScheduleSpec {
            kind: family.schedules[variant.schedule],
            recompute: family.policies.first().copied().unwrap_or(Recompute::None),
        };
        if let Some(shared_ms) = self.shared_ms(&pipelines, family.micro, schedule) {
            step_ms = shared_ms.max(makespan_ms);
        }
        Some(Candidate {
            pipelines,
            micro_batch_size: family.micro,
            schedule,
            step_ms,
            bubble: (1.0 - busy / (composition.workers() as f64 * step_ms)).clamp(0.0, 1.0),
            parts: StepParts {
                steady_ms,
                fill_ms: makespan_ms - steady_ms,
                rings_ms: step_ms - makespan_ms,
            },
        })
    }
}

impl Composer<'_> {
    /// How much longer everything takes because so many workers take turns on their nodes' cores; 1 where each has a
    /// device of its own.
    pub(super) fn turns(&self, workers: usize) -> f64 {
        let beside = u32::try_from(workers.min(self.per_node)).unwrap_or(u32::MAX);
        self.planner.costs.host.as_ref().map_or(1.0, |h| h.turns(beside))
    }

    /// The step of workers that share their nodes' cores; none where they do not, or are too many to look at one by one.
    fn shared_ms(
        &self,
        pipelines: &[CandidatePipeline],
        micro_batch_size: u32,
        schedule: ScheduleSpec,
    ) -> Option<f64> {
        let host = self.planner.costs.host.as_ref()?;
        let workers: usize = pipelines.iter().map(|p| p.stages.len()).sum();
        if workers > MANY_SHARING {
            return None;
        }
        let line = |p: &'_ CandidatePipeline| Line {
            stages: p.stages.clone(),
            policies: p.policies.clone(),
            samples: p.samples,
            speeds: Vec::new(),
        };
        let lines: Vec<Line> = pipelines.iter().map(line).collect();
        let setting = Setting {
            costs: &self.planner.costs,
            host,
            schedule,
            micro_batch_size,
            per_node: self.per_node,
        };
        Some(shared::step_ms(setting, &lines))
    }
}

/// The cuts of a composition that weigh its rings, where they differ from those that do not, each with the number of
/// pipelines that it weighs (0: none).
fn aware_of<'c>(
    entry: &Entry,
    family: &'c Family,
    aware_cuts: &'c AwareCuts,
) -> [(Option<&'c Cut>, usize); 2] {
    let pipelines = entry.composition.pipelines();
    entry.composition.classes.map(|(depth, count)| {
        let key = (entry.family, depth, pipelines);
        match aware_cuts.get(&key) {
            Some(Some(cut)) if count > 0 => (Some(cut), pipelines),
            _ => (family.cuts.get(depth).and_then(Option::as_ref), 0),
        }
    })
}

/// Micro-batches after which a pipeline of so many stages is surely in its steady state.
fn steady(stages: usize) -> u32 {
    u32::try_from(3 * stages + 16).unwrap_or(u32::MAX)
}

/// Simulates the fill and some steady state of a pipeline.
pub(super) fn run_pipeline(family: &Family, kind: ScheduleKind, cut: &Cut, n: u32) -> Simulated {
    let kept = cut.stages.iter().zip(&cut.policies);
    let times: Vec<_> = kept.map(|(r, p)| family.tables.times(*r, *p)).collect();
    match family.tables.runtime {
        Runtime::Rendezvous => rendezvous(&times, n, |_| {}),
        Runtime::Overlapped => {
            let spec = |recompute: &Recompute| ScheduleSpec {
                kind,
                recompute: *recompute,
            };
            let specs: Vec<ScheduleSpec> = cut.policies.iter().map(spec).collect();
            simulate(&lists(&specs, n), &times, n)
        }
    }
}

/// A run of `known` micro-batches goes on to `n` at its period.
fn extended(run: &Simulated, cut: &Cut, known: u32, n: u32) -> Simulated {
    let more = cut.period_ms * f64::from(n - known);
    let times = f64::from(n) / f64::from(known);
    Simulated {
        ends_ms: run.ends_ms.iter().map(|end| end + more).collect(),
        busy_ms: run.busy_ms.iter().map(|busy| busy * times).collect(),
    }
}
