//! `cargo run -p varuna-sim --example trace -- SEED [MUTANT]`: replays one schedule and prints every message.

use varuna_protocol::Mutant;
use varuna_sim::World;

fn main() {
    let mut args = std::env::args().skip(1);
    let Some(seed) = args.next().and_then(|s| s.parse::<u64>().ok()) else {
        println!("usage: trace SEED [MUTANT]");
        return;
    };
    let mut world = match args.next().as_deref().and_then(Mutant::named) {
        Some(mutant) => World::with_mutant(seed, mutant),
        None => World::new(seed),
    };
    world.print_messages();
    let result = world.run();
    world.dump();
    println!("{result:?} {:?}", world.stats());
}
