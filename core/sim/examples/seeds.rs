//! `seeds run FROM COUNT`: many schedules. `seeds mutants COUNT [MUTANT]`: the first seed that catches each mutant; it fails where
//! the table of mutants is wrong.

use varuna_protocol::Mutant;
use varuna_sim::World;

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
        _ => println!("seeds run FROM COUNT | seeds mutants COUNT [MUTANT]"),
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
