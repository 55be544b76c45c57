//! What catches each mutant, and which survive.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use varuna_mutants::{NOTHING, environment};
use varuna_protocol::{Mutant, Seeds};
use varuna_sim::World;

/// As in the tests of `varuna-sim`: in so many seeds from the table's on, one catches the mutant.
const SEEDS_MAX: u64 = 400;

/// Whether the table is right about the mutant.
pub(crate) fn check_table(mutant: Mutant, count: u64) -> bool {
    let expected = mutant.caught_by();
    let from = expected.seeds.map_or(0, |s| s.from);
    let caught = (from..from + count).find_map(|seed| {
        let mut world = World::with_mutant(seed, mutant);
        world.run().err().map(|v| (seed, v))
    });
    let right = caught.is_some() == expected.seeds.is_some() || (expected.unit_tests && caught.is_some());
    let remark = if right { "" } else { "; the table says otherwise" };
    match caught {
        Some((seed, v)) => println!("{mutant:?}: seed {seed} ({}) {}{remark}", v.invariant, v.seen),
        None => println!("{mutant:?}: not caught{remark}"),
    }
    right
}

/// A crate whose unit tests are to catch mutants.
#[derive(Clone, Copy)]
enum Tested {
    Plan,
    Protocol,
}

/// Whether some unit test of the crate fails with the mutant of that name, or without one where there is none.
fn unit_tests_fail(tested: Tested, mutant: Option<&str>) -> bool {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let package = match tested {
        Tested::Plan => "varuna-plan",
        Tested::Protocol => "varuna-protocol",
    };
    let status = Command::new(cargo)
        .args(["test", "--quiet", "--locked", "-p", package])
        .args(["--lib", "--features", "mutants", "--", "--skip", "mutant::"])
        .envs(environment(mutant))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    !status.expect("cargo runs").success()
}

/// Whether one of the seeds that the table names breaks an invariant.
fn seeds_catch(mutant: Mutant) -> bool {
    let breaks = |Seeds { from, .. }: Seeds| {
        (from..from + SEEDS_MAX).any(|seed| World::with_mutant(seed, mutant).run().is_err())
    };
    mutant.caught_by().seeds.is_some_and(breaks)
}

/// A mutant of one of the crates.
#[derive(Clone, Copy)]
enum AnyMutant {
    Plan(varuna_plan::Mutant),
    Protocol(Mutant),
}

impl AnyMutant {
    fn all() -> Vec<AnyMutant> {
        let plan = varuna_plan::Mutant::ALL.iter().copied().map(AnyMutant::Plan);
        let protocol = Mutant::ALL.iter().copied().map(AnyMutant::Protocol);
        plan.chain(protocol).collect()
    }

    fn name(self) -> &'static str {
        match self {
            AnyMutant::Plan(mutant) => mutant.name(),
            AnyMutant::Protocol(mutant) => mutant.name(),
        }
    }

    fn is_caught(self) -> bool {
        match self {
            AnyMutant::Plan(mutant) => unit_tests_fail(Tested::Plan, Some(mutant.name())),
            AnyMutant::Protocol(mutant) => {
                unit_tests_fail(Tested::Protocol, Some(mutant.name())) || seeds_catch(mutant)
            }
        }
    }
}

/// Prints the mutants that nothing catches, and how many there are; true where there are none.
pub(crate) fn survivors() -> bool {
    let mutants = AnyMutant::all();
    let names: BTreeSet<&str> = mutants.iter().map(|m| m.name()).collect();
    assert_eq!(names.len(), mutants.len(), "two mutants have one name");
    for tested in [Tested::Plan, Tested::Protocol] {
        assert!(
            !unit_tests_fail(tested, None),
            "the unit tests fail without a mutant"
        );
    }
    let (next, survived) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let worker = || {
        while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !mutant.is_caught() {
                println!("{} survives", mutant.name());
                survived.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(worker))));
    let survived = survived.into_inner();
    println!("RESULT mutants.survivors {survived}");
    println!("RESULT mutants.total {}", mutants.len());
    // The tests of the tables refuse a mutant that nothing is expected to catch: its guard is taken out instead.
    let nothing = |m: &&Mutant| m.caught_by() == NOTHING;
    println!(
        "RESULT mutants.equivalent {}",
        Mutant::ALL.iter().filter(nothing).count()
    );
    survived == 0
}
