//! Against every composition there is, where they can all be tried.

use super::super::candidate::run_pipeline;
use super::super::compose::Composer;
use super::super::cut::Cut;
use super::*;
use crate::cost::{Calibration, Runtime};
use crate::profile::Profile;
use crate::simulate::Simulated;
use crate::sync::{self, Pipelines};

const BATCH: u64 = 128;
/// As in the tables of `docs/planner.md`: shallower pipelines do not fit into the memory of the measured machines.
const SHALLOWEST: usize = 6;
const WORKERS: usize = 32;

/// GPT-2 1.5B as it was measured on V100s at 10 Gb/s, calibrated on those measurements.
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

type Runs = BTreeMap<(usize, usize, u32), Simulated>;

/// The step of pipelines of these depths, their cuts weighing the rings or not.
fn step_ms(
    composer: &Composer,
    depths: &[usize],
    aware: bool,
    runs: &mut Runs,
    cuts: &mut BTreeMap<(usize, usize), Cut>,
) -> f64 {
    let family = &composer.families[0];
    let (kind, weighed) = (family.schedules[0], if aware { depths.len() } else { 0 });
    for p in depths {
        cuts.entry((*p, weighed)).or_insert_with(|| {
            let plain = family.cuts[*p].clone().unwrap();
            let other = aware.then(|| composer.aware_cut(family, *p, weighed)).flatten();
            other.unwrap_or(plain)
        });
    }
    let cut = |p: &usize| &cuts[&(*p, weighed)];
    let mut shares = vec![1u32; depths.len()];
    for _ in depths.len() as u64..BATCH {
        let end =
            |i: &usize| cut(&depths[*i]).fill_ms + cut(&depths[*i]).period_ms * f64::from(shares[*i] + 1);
        let first = (0..depths.len())
            .min_by(|a, b| end(a).total_cmp(&end(b)))
            .unwrap();
        shares[first] += 1;
    }
    for (p, n) in depths.iter().zip(&shares) {
        runs.entry((*p, weighed, *n))
            .or_insert_with(|| run_pipeline(family, kind, cut(p), *n));
    }
    let kind = |(p, n): (&usize, &u32)| Pipelines {
        stages: &cut(p).stages,
        workers: *p,
        ends_ms: &runs[&(*p, weighed, *n)].ends_ms,
        count: 1,
    };
    let kinds: Vec<Pipelines> = depths.iter().zip(&shares).map(kind).collect();
    sync::step_ms(&composer.planner.costs, &kinds)
}

#[test]
fn plans_come_within_a_hundredth_of_the_best_composition_there_is() {
    let mut least: f64 = 1.0;
    for runtime in [Runtime::Rendezvous, Runtime::Overlapped] {
        let mut planner = planner(u32::try_from(SHALLOWEST).unwrap(), None);
        planner.costs = measured(runtime);
        planner.constraints.micro_batch_size = Some(1);
        let all = request(&planner, WORKERS as u64, BATCH);
        let composer = Composer::new(&planner, &all, WORKERS, 1.0, None);
        let (mut runs, mut cuts) = (Runs::new(), BTreeMap::new());
        let mut best_of = vec![(f64::INFINITY, Vec::new()); WORKERS + 1];
        compositions(WORKERS, WORKERS, &mut Vec::new(), &mut |depths| {
            let used: usize = depths.iter().sum();
            for aware in [false, true] {
                let step = step_ms(&composer, depths, aware, &mut runs, &mut cuts);
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
    println!("RESULT any_n.vs_best_min_pct {:.2}", least * 100.0);
}
