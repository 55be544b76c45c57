//! Thousands of schedules run without breaking an invariant, and mutants are caught.

use std::sync::atomic::{AtomicUsize, Ordering};
use varuna_plan::state::mix;
use varuna_protocol::{Mutant, Seeds};
use varuna_sim::{Stats, World};

const SEEDS: usize = 4_000;
/// Number of seeds of one line of the golden file.
const SEEDS_PER_LINE: usize = 50;
/// Each line has its first seed, the digest of all effects of the state machines, and the digest of all events of the world.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/effects.txt");
/// If this variable is set, the test writes the golden file instead: only after an intended change of behaviour.
const UPDATE: &str = "VARUNA_UPDATE_GOLDEN";

/// Some of the situations that the schedules must reach.
const REACHED: &[&str] = &[
    "change cancelled: cannot reach",
    "change switched",
    "coordinator: deposed",
    "coordinator: write failed",
    "end: checkpoint of the last step",
    "end: goes on with more steps",
    "end: last step reported",
    "end: of more steps than the job's text says",
    "end: state lost",
    "end: the checkpoint of the last step is damaged",
    "fault DamagedTransfers",
    "fault DuplicatedReports",
    "fault Flap",
    "fault FlipBits",
    "fault Hit",
    "fault JumpClock",
    "fault JumpCoordinatorClock",
    "fault LastingCut",
    "fault LateNotice",
    "fault LoneLoss",
    "fault LoseZone",
    "fault MoreSteps",
    "fault OldRecords",
    "fault Slow",
    "fault SlowStore",
    "fault StoreDown",
    "fault StoreFull",
    "fault Storm",
    "faults become rarer",
    "lone loss: keepers hold everything",
    "lone loss: of a last holder",
    "lone loss: others hold everything",
    "parameters first: a step begins before Go",
    "recovery: no step was committed for four deadlines",
    "recovery: the change to generation failed",
    "resume: finishes a step",
    "resume: from a checkpoint",
    "resume: from memory",
    "states differ: goes back",
    "states differ: replaces",
    "step skipped: the loss scale cannot fall",
    "step skipped: the loss scale falls",
    "the loss scale rises",
    "the record is read seldom",
    "the shipped planner plans",
];

/// The results of the seeds of one residue class.
#[derive(Default)]
struct Ran {
    stats: Stats,
    broken: Vec<String>,
    /// Seed, digest of the effects, hash of the trace.
    digests: Vec<(usize, u64, u64)>,
}

impl Ran {
    fn seeds(from: usize, step: usize) -> Ran {
        let mut ran = Ran::default();
        for seed in (from..SEEDS).step_by(step) {
            let mut world = World::new(seed as u64);
            if let Err(v) = world.run() {
                let replay = format!("cargo run --release -p varuna-sim --example seeds -- shrink {seed}");
                ran.broken.push(format!(
                    "seed {seed} breaks ({}): {}; replay: {replay}",
                    v.invariant, v.seen
                ));
            }
            ran.stats.add(world.stats());
            ran.digests
                .push((seed, world.effects_digest(), world.trace_hash()));
        }
        ran
    }
}

/// The lines of the golden file.
fn golden_lines(mut digests: Vec<(usize, u64, u64)>) -> Vec<String> {
    digests.sort_unstable();
    let fold = |seeds: &[(usize, u64, u64)]| {
        let (effects, trace) = seeds.iter().fold((0, 0), |(e, t), (_, effects, trace)| {
            (mix(e, *effects), mix(t, *trace))
        });
        format!("{} {effects:016x} {trace:016x}", seeds[0].0)
    };
    digests.chunks(SEEDS_PER_LINE).map(fold).collect()
}

/// Compares the effects of every seed with the golden file.
fn compare_with_golden(lines: &[String]) {
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(GOLDEN, lines.join("\n") + "\n").expect("the golden file can be written");
        return;
    }
    let golden = std::fs::read_to_string(GOLDEN).expect("the golden file");
    let golden: Vec<&str> = golden.lines().collect();
    assert_eq!(golden.len(), lines.len());
    let changed: Vec<_> = golden.iter().zip(lines).filter(|(a, b)| *a != b).collect();
    assert!(
        changed.is_empty(),
        "the protocol behaves differently in {} of {} groups of {SEEDS_PER_LINE} seeds; first (was, is): {:?}; \
         if that was meant: {UPDATE}=1 cargo test -p varuna-sim",
        changed.len(),
        lines.len(),
        changed[0]
    );
}

#[test]
fn schedules_keep_invariants_and_golden_effects() {
    let halves = std::thread::scope(|scope| {
        let other = scope.spawn(|| Ran::seeds(1, 2));
        [Ran::seeds(0, 2), other.join().unwrap()]
    });
    let mut total = Stats::default();
    let mut digests = Vec::new();
    for ran in halves {
        assert!(ran.broken.is_empty(), "{}", ran.broken.join("\n"));
        total.add(&ran.stats);
        digests.extend(ran.digests);
    }
    println!("{SEEDS} schedules: {total:?}");
    // the schedules reach the situations for which they exist
    let seeds = SEEDS as u64;
    assert_eq!(total.done + total.lost, seeds);
    assert!(total.lost > seeds / 100 && total.lost < seeds / 10, "{total:?}");
    assert!(total.planned > seeds / 2, "{total:?}");
    assert!(total.rolled > seeds / 4, "{total:?}");
    assert!(total.restores > seeds / 20, "{total:?}");
    assert!(total.faults > seeds * 4, "{total:?}");
    for kind in REACHED {
        assert!(total.reached.contains_key(*kind), "{kind}: {:?}", total.reached);
    }
    compare_with_golden(&golden_lines(digests));
}

/// Number of seeds in which a mutant is searched for that the seeds should catch.
const SEEDS_MAX: u64 = 400;

/// The error in this line of the table of mutants, if there is one.
fn compare_with_table(mutant: Mutant) -> Option<String> {
    let caught = |from: u64, count: u64| {
        let violation = |seed| World::with_mutant(seed, mutant).run().err();
        (from..from + count).find_map(|seed| violation(seed).map(|v| (seed, v)))
    };
    let Seeds { invariants, from } = mutant.caught_by().seeds?;
    match caught(from, SEEDS_MAX) {
        Some((_, v)) if invariants.contains(v.invariant) => None,
        Some((seed, v)) => Some(format!("{mutant:?}, seed {seed}: ({}) {}", v.invariant, v.seen)),
        None => Some(format!("{mutant:?} is not caught from {from}")),
    }
}

#[test]
fn seeds_catch_the_mutants_of_the_table() {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mine = std::iter::from_fn(|| Mutant::ALL.get(next.fetch_add(1, Ordering::Relaxed)));
        mine.filter_map(|m| compare_with_table(*m)).collect::<Vec<_>>()
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(worker));
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let trace = |seed| {
        let mut world = World::new(seed);
        world.run().unwrap();
        world.trace_hash()
    };
    for seed in 0..20 {
        assert_eq!(trace(seed), trace(seed));
        assert_ne!(trace(seed), trace(seed + 1));
    }
}

#[test]
fn at_the_end_everyone_is_released_and_the_coordinator_ends() {
    let mut looked_at = 0;
    for seed in (0..1_200).filter(|s| World::new(*s).has_no_faults()) {
        let mut world = World::new(seed);
        world.run().unwrap();
        world
            .run_until_released()
            .unwrap_or_else(|v| panic!("seed {seed}: {}", v.seen));
        looked_at += 1;
    }
    assert!(looked_at > 20);
}

/// Two coordinators took over at the same time, and the loser used the winner's record as its own.
#[test]
fn two_coordinators_that_take_over_at_once_do_not_share_a_term() {
    assert_eq!(World::new(4_709).run(), Ok(()));
}

/// A worker that was loading reported the last step of a history that had been given up.
#[test]
fn a_loading_worker_does_not_end_the_run() {
    assert_eq!(World::new(21_567).run(), Ok(()));
}

/// These schedules have no other faults. If a comparison is made soon enough, wrong bits do not remain while other holders have the right
/// ones.
#[test]
fn wrong_bits_are_found_where_others_hold_the_right_ones() {
    let (mut schedules, mut reached) = (0, std::collections::BTreeSet::new());
    for seed in 0..4_000 {
        let flips = World::new(seed).bit_flips().clone();
        if flips.is_empty() {
            continue;
        }
        schedules += 1;
        let mut world = World::with_faults(seed, None, Some(flips));
        world.run().unwrap_or_else(|v| panic!("seed {seed}: {v:?}"));
        assert_eq!(world.unnoticed_flips(), 0, "seed {seed}");
        reached.extend(world.stats().reached.keys().cloned());
    }
    assert!(schedules > 200, "{schedules}");
    for kind in ["states differ: goes back", "states differ: replaces"] {
        assert!(reached.contains(kind), "{kind}");
    }
}
