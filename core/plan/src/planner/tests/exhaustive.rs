//! Compares the search with all compositions, where it is possible to try them all.

use super::super::search::partitions::{Partition, PartitionSet, Partitioner};
use super::*;
use crate::cost::{Calibration, Runtime};
use crate::predict::step::{PipelineGroup, StepTotals};
use crate::predict::work::{PipelineWork, StepWork};
use crate::profile::Profile;

const BATCH: u64 = 128;
/// As in the tables of `docs/internals/planner.md`: on the measured machines there is not enough memory for shallower pipelines.
const SHALLOWEST: usize = 6;
const WORKERS: usize = 32;

/// The costs of GPT-2 1.5B, measured on V100s at 10 Gb/s and calibrated with these measurements.
fn measured(runtime: Runtime) -> Costs {
    let profile = include_str!("../../../../../bench/data/measured/gpt-1.5b-v100-profile.json");
    let links = include_str!("../../../../../bench/data/measured/p2p-10gbps.csv");
    let mut costs = Profile::read("profile", profile, Some(("links", links)))
        .unwrap()
        .costs();
    costs.calibration = Calibration {
        compute: 0.283,
        transfer: 0.87,
    };
    costs.runtime = runtime;
    costs
}

/// All multisets of depths that use at most `left` workers.
fn compositions(left: usize, most: usize, now: &mut Vec<usize>, each: &mut dyn FnMut(&[usize])) {
    for depth in SHALLOWEST..=most.min(left) {
        now.push(depth);
        each(now);
        compositions(left - depth, depth, now, each);
        now.pop();
    }
}

/// Simulated pipelines by depth, number of pipelines whose rings the partition considers, and number of micro-batches.
type Groups = BTreeMap<(usize, usize, u32), PipelineGroup>;

/// The step time of pipelines with these depths. The partitions may consider the rings or not.
fn step_ms(
    partitioner: &Partitioner,
    set: &PartitionSet,
    depths: &[usize],
    ring_aware: bool,
    known: &mut Groups,
    partitions: &mut BTreeMap<(usize, usize), Partition>,
) -> f64 {
    let weighed = if ring_aware { depths.len() } else { 0 };
    for p in depths {
        partitions.entry((*p, weighed)).or_insert_with(|| {
            let plain = set.of_depth(*p).unwrap().clone();
            let other = ring_aware.then(|| partitioner.ring_aware(set, *p, weighed));
            other.flatten().unwrap_or(plain)
        });
    }
    let partition = |p: &usize| &partitions[&(*p, weighed)];
    let mut shares = vec![1u32; depths.len()];
    for _ in depths.len() as u64..BATCH {
        let end = |i: &usize| {
            let form = &partition(&depths[*i]).form;
            form.fill_ms + form.period_ms * f64::from(shares[*i] + 1)
        };
        let first = (0..depths.len())
            .min_by(|a, b| end(a).total_cmp(&end(b)))
            .unwrap();
        shares[first] += 1;
    }
    for (p, n) in depths.iter().zip(&shares) {
        known.entry((*p, weighed, *n)).or_insert_with(|| {
            let pipeline = PipelineWork {
                stages: partition(p).work(1.0),
                samples: u64::from(*n),
            };
            let work = StepWork {
                pipelines: vec![pipeline.clone()],
                micro_batch_size: 1,
                kind: set.schedules[0],
            };
            PipelineGroup::new(partitioner.problem.costs, &work, &pipeline, 1, |_, ms| ms, |_| {})
        });
    }
    let group = |(p, n): (&usize, &u32)| &known[&(*p, weighed, *n)];
    let groups: Vec<&PipelineGroup> = depths.iter().zip(&shares).map(group).collect();
    StepTotals::new(partitioner.problem.costs, &groups, None).step_ms
}

#[test]
fn plans_are_within_one_percent_of_the_best() {
    let mut least: f64 = 1.0;
    for runtime in [Runtime::Rendezvous, Runtime::Overlapped] {
        let mut planner = planner(u32::try_from(SHALLOWEST).unwrap(), None);
        planner.costs = measured(runtime);
        planner.constraints.micro_batch_size = Some(1);
        let all = request(&planner, WORKERS as u64, BATCH);
        let workers: Vec<&WorkerInfo> = all.workers.iter().collect();
        let partitioner = Partitioner::new(planner.problem(&all, 1), &workers);
        let sets = partitioner.sets();
        let (mut groups, mut partitions) = (Groups::new(), BTreeMap::new());
        let mut best_of = vec![(f64::INFINITY, Vec::new()); WORKERS + 1];
        compositions(WORKERS, WORKERS, &mut Vec::new(), &mut |depths| {
            let used: usize = depths.iter().sum();
            for aware in [false, true] {
                let step = step_ms(
                    &partitioner,
                    &sets[0],
                    depths,
                    aware,
                    &mut groups,
                    &mut partitions,
                );
                if step < best_of[used].0 {
                    best_of[used] = (step, depths.to_vec());
                }
            }
        });
        let mut best = (f64::INFINITY, Vec::new());
        for (n, of) in best_of.iter().enumerate().skip(SHALLOWEST) {
            if of.0 < best.0 {
                best = of.clone();
            }
            let shape = planner.plan(&request(&planner, n as u64, BATCH)).unwrap();
            let ours = shape.predicted.step_ms;
            least = least.min(best.0 / ours);
            let said = format!(
                "{runtime:?} {n}: {} {ours:.1} ms, best {best:.1?}",
                shape.summary()
            );
            println!("{said}");
            assert!(best.0 / ours >= 0.99, "{said}");
        }
    }
    println!("against every composition: at least {:.2} %", least * 100.0);
}
