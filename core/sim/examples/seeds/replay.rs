//! One schedule: again, or with as few of its faults as still break an invariant.

use crate::chosen::Chosen;
use varuna_sim::shrink::{Shrunk, shrink as fewest_faults};
use varuna_sim::{InjectedFault, Violation};

/// Runs it; true where no invariant is broken.
pub(crate) fn replay(chosen: &Chosen) -> bool {
    let mut world = chosen.world();
    let result = world.run();
    print_faults(world.faults());
    println!("ended after {} ms of its own time", world.stats().simulated_ms);
    match &result {
        Ok(()) => println!("seed {}: no invariant is broken", chosen.seed),
        Err(violation) => println!("{}", sentence(chosen.seed, violation)),
    }
    result.is_ok()
}

/// Draws the schedule; `--svg FILE` as a picture. True where no invariant is broken.
pub(crate) fn timeline(chosen: &Chosen) -> bool {
    let mut world = chosen.world();
    world.keep_timeline();
    let result = world.run();
    let timeline = world.timeline().expect("it was kept");
    match &chosen.svg {
        Some(path) => std::fs::write(path, timeline.svg()).expect("the picture can be written"),
        None => print!("{}", timeline.text()),
    }
    result.is_ok()
}

/// Prints every message, and how the hosts stand at the end. True where no invariant is broken.
pub(crate) fn trace(chosen: &Chosen) -> bool {
    let mut world = chosen.world();
    world.print_messages();
    let result = world.run();
    world.dump();
    println!("{result:?} {:?}", world.stats());
    result.is_ok()
}

/// Prints the fewest faults; true where no invariant is broken.
pub(crate) fn shrink(chosen: &Chosen) -> bool {
    match fewest_faults(chosen.seed, chosen.mutant) {
        Some(shrunk) => {
            print_shrunk(chosen, &shrunk);
            false
        }
        None => {
            println!("seed {}: no invariant is broken", chosen.seed);
            true
        }
    }
}

/// What is broken, by which faults, and the command that shows it again.
pub(crate) fn print_shrunk(chosen: &Chosen, shrunk: &Shrunk) {
    println!("{}", sentence(chosen.seed, &shrunk.violation));
    print_faults(&shrunk.faults);
    println!(
        "  these {} faults are enough ({} schedules tried)",
        shrunk.faults.len(),
        shrunk.attempts
    );
    println!("  replay: {}", chosen.command("replay", &shrunk.faults));
    println!("  see: {}", chosen.command("timeline", &shrunk.faults));
}

fn print_faults(faults: &[InjectedFault]) {
    for fault in faults {
        println!("  {}", fault);
    }
}

fn sentence(seed: u64, violation: &Violation) -> String {
    format!("seed {seed} breaks ({}): {}", violation.invariant, violation.seen)
}
