//! `seeds run FROM COUNT`: many schedules. `seeds mutants COUNT [MUTANT]`: the first seed that catches each mutant; it fails where
//! the table of mutants is wrong. `seeds survivors`: the mutants that neither the unit tests catch nor the seeds of the table.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use varuna_protocol::{Mutant, Seeds};
use varuna_sim::World;

/// As in the tests of `varuna-sim`: in so many seeds from the table's on, one catches the mutant.
const HUNT: u64 = 400;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize| args.get(i).and_then(|s| s.parse::<u64>().ok()).unwrap_or(0);
    match args.get(1).map(String::as_str) {
        Some("run") => run(number(2), number(3)),
        Some("mutants") => {
            let wanted = |m: &&Mutant| args.get(3).is_none_or(|n| *n == format!("{m:?}"));
            let mutants = Mutant::ALL.iter().filter(wanted);
            if mutants.filter(|m| !hunt(**m, number(2))).count() > 0 {
                std::process::exit(1);
            }
        }
        Some("survivors") => survivors(),
        _ => println!("seeds run FROM COUNT | seeds mutants COUNT [MUTANT] | seeds survivors"),
    }
}

fn run(from: u64, count: u64) {
    let mut total = varuna_sim::Stats::default();
    let mut bad = 0;
    for seed in from..from + count {
        let mut world = World::new(seed);
        if let Err(v) = world.run() {
            bad += 1;
            if bad <= 10 {
                println!("seed {seed}: ({}) {}", v.invariant, v.seen);
            }
        }
        total.add(world.stats());
    }
    println!("{count} schedules, {bad} violations: {total:?}");
}

/// Whether the table is right about the mutant.
fn hunt(mutant: Mutant, count: u64) -> bool {
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

/// Prints the mutants that nothing catches, and how many there are; fails where there are any.
fn survivors() {
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
    if survived > 0 {
        std::process::exit(1);
    }
}
