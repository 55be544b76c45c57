//! Thousands of schedules without a broken invariant; every seeded bug is caught.

use varuna_protocol::Mutant;
use varuna_sim::{Stats, World};

const SEEDS: u64 = 4_000;

/// Runs the seeds of one residue class.
fn run_seeds(from: u64, step: usize) -> (Stats, Vec<String>) {
    let mut total = Stats::default();
    let mut broken = Vec::new();
    for seed in (from..SEEDS).step_by(step) {
        let mut world = World::new(seed);
        if let Err(v) = world.run() {
            let replay = format!("cargo run -p varuna-sim --example trace -- {seed}");
            broken.push(format!(
                "seed {seed} breaks ({}): {}; replay: {replay}",
                v.invariant, v.seen
            ));
        }
        total.add(&world.stats);
    }
    (total, broken)
}

#[test]
fn thousands_of_schedules_with_faults_break_no_invariant_and_end() {
    let halves = std::thread::scope(|scope| {
        let other = scope.spawn(|| run_seeds(1, 2));
        [run_seeds(0, 2), other.join().unwrap()]
    });
    let mut total = Stats::default();
    for (stats, broken) in &halves {
        assert!(broken.is_empty(), "{}", broken.join("\n"));
        total.add(stats);
    }
    println!("{SEEDS} schedules: {total:?}");
    // the schedules exercise what they are there for
    assert_eq!(total.done, SEEDS);
    assert!(total.planned > SEEDS / 2, "{total:?}");
    assert!(total.rolled > SEEDS / 4, "{total:?}");
    assert!(total.restores > SEEDS / 20, "{total:?}");
    assert!(total.faults > SEEDS * 4, "{total:?}");
}

/// Where to look for each seeded bug, and what it may break.
const HUNTS: &[(Mutant, u64, &str)] = &[
    (Mutant::SkipFenceCheck, 0, "eb"),
    (Mutant::CommitAfterFence, 0, "c"),
    (Mutant::ForgetNorm, 0, "b"),
    (Mutant::GoEarly, 0, "bfg"),
    (Mutant::SendBeforePersist, 0, "a"),
    (Mutant::BlindWrite, 0, "a"),
    (Mutant::ReuseGeneration, 0, "a"),
    (Mutant::RollBackPrepared, 0, "c"),
    (Mutant::OnlyIfSurvivorCommitted, 0, "c"),
    (Mutant::ForgetPersistedDecision, 0, "c"),
    (Mutant::StepIsIdentity, 8_200, "b"),
    (Mutant::TornApply, 0, "b"),
    (Mutant::FreeBeforeGo, 0, "c"),
    (Mutant::ShardsWithoutGeneration, 3_600, "b"),
    (Mutant::NewestByEach, 0, "b"),
    (Mutant::SwitchAlone, 400, "g"),
    (Mutant::CancelAfterArm, 0, "g"),
    (Mutant::ExitAtEnd, 0, "fg"),
    (Mutant::ForgetBadLinks, 0, "f"),
    (Mutant::NoRelay, 400, "f"),
];

#[test]
fn every_seeded_bug_is_caught_by_the_invariant_that_it_breaks() {
    for mutant in Mutant::ALL {
        assert!(HUNTS.iter().any(|(m, ..)| m == mutant), "nobody hunts {mutant:?}");
    }
    for (mutant, from, invariants) in HUNTS {
        let caught = (*from..from + 400)
            .find_map(|seed| World::with_mutant(seed, *mutant).run().err().map(|v| (seed, v)));
        let Some((seed, v)) = caught else {
            panic!("{mutant:?} is not caught by seeds {from}..{}", from + 400);
        };
        assert!(
            invariants.contains(v.invariant),
            "{mutant:?}, seed {seed}: ({}) {}",
            v.invariant,
            v.seen
        );
    }
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
    for seed in (0..1_200).filter(|s| World::new(*s).is_calm()) {
        let mut world = World::new(seed);
        world.run().unwrap();
        world
            .run_until_released()
            .unwrap_or_else(|v| panic!("seed {seed}: {}", v.seen));
        looked_at += 1;
    }
    assert!(looked_at > 20);
}

/// Two coordinators took over at once, and the loser took the winner's record for its own.
#[test]
fn two_coordinators_that_take_over_at_once_do_not_share_a_term() {
    assert_eq!(World::new(4_709).run(), Ok(()));
}

/// A worker that was loading told the last step of a history that had been given up.
#[test]
fn a_loading_worker_does_not_end_the_run() {
    assert_eq!(World::new(21_567).run(), Ok(()));
}
