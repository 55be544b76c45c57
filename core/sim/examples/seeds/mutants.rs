//! What catches each mutant, and which survive.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use varuna_protocol::{Mutant, Seeds};
use varuna_sim::World;

/// As in the tests of `varuna-sim`: in so many seeds from the table's on, one catches the mutant.
const HUNT: u64 = 400;

/// Whether the table is right about the mutant.
pub(crate) fn hunt(mutant: Mutant, count: u64) -> bool {
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

/// Whether some unit test of the protocol fails with the mutant, or without one where there is none.
fn unit_tests_fail(mutant: Option<Mutant>) -> bool {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let name = mutant.map_or_else(String::new, |m| format!("{m:?}"));
    let tests = "test --quiet --locked -p varuna-protocol --lib --features mutants -- --skip mutant::";
    let status = Command::new(cargo)
        .args(tests.split(' '))
        .env("VARUNA_MUTANT", name)
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    !status.expect("cargo runs").success()
}

/// Whether one of the seeds that the table names breaks an invariant.
fn seeds_catch(mutant: Mutant) -> bool {
    let breaks = |Seeds { from, .. }: Seeds| {
        (from..from + HUNT).any(|seed| World::with_mutant(seed, mutant).run().is_err())
    };
    mutant.caught_by().seeds.is_some_and(breaks)
}

/// Prints the mutants that nothing catches, and how many there are; true where there are none.
pub(crate) fn survivors() -> bool {
    assert!(!unit_tests_fail(None), "the unit tests fail without a mutant");
    let (next, survived) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let worker = || {
        while let Some(mutant) = Mutant::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !unit_tests_fail(Some(*mutant)) && !seeds_catch(*mutant) {
                println!("{mutant:?} survives");
                survived.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(worker))));
    let survived = survived.into_inner();
    println!("RESULT mutants.survivors {survived}");
    println!("RESULT mutants.total {}", Mutant::ALL.len());
    // The tests of the table refuse a mutant that nothing is expected to catch: its guard is taken out instead.
    let nothing = |m: &&Mutant| !m.caught_by().unit_tests && m.caught_by().seeds.is_none();
    println!(
        "RESULT mutants.equivalent {}",
        Mutant::ALL.iter().filter(nothing).count()
    );
    survived == 0
}
