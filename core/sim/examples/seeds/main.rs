//! Schedules of the simulated world, by their seeds.

mod chosen;
mod mutants;
mod night;
mod replay;

use chosen::Chosen;
use std::process::ExitCode;
use varuna_protocol::Mutant;

const USAGE: &str = "\
seeds run FROM COUNT [JOBS]     many schedules; what was reached, what was broken
seeds replay SEED [--faults 3,17 | none] [--mutant NAME]   one schedule, with all of its faults or these
seeds timeline SEED [--faults ...] [--mutant NAME] [--svg FILE]   what happens in it, as text or as a picture
seeds trace SEED [--faults ...] [--mutant NAME]   every message of it, and how its hosts stand at the end
seeds shrink SEED [--mutant NAME]   as few of its faults as still break the invariant
seeds mutants COUNT [MUTANT]    the first seed that catches each mutant; fails where the table of mutants is wrong
seeds survivors                 mutants, of plans too, that neither the unit tests catch nor the seeds of the table";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| args.get(i).and_then(|s| s.parse::<u64>().ok());
    let chosen = Chosen::parse(args.get(1..).unwrap_or_default());
    let succeeded = match (args.first().map(String::as_str), chosen) {
        (Some("run"), _) => match (number(1), number(2)) {
            (Some(from), Some(count)) => night::run(from, count, number(3).unwrap_or(1)),
            _ => usage(),
        },
        (Some("replay"), Some(chosen)) => replay::replay(&chosen),
        (Some("timeline"), Some(chosen)) => replay::timeline(&chosen),
        (Some("trace"), Some(chosen)) => replay::trace(&chosen),
        (Some("shrink"), Some(chosen)) => replay::shrink(&chosen),
        (Some("mutants"), _) => {
            let wanted = |m: &&Mutant| args.get(2).is_none_or(|n| *n == format!("{m:?}"));
            let all = Mutant::ALL.iter().filter(wanted);
            all.filter(|m| !mutants::check_table(**m, number(1).unwrap_or(0)))
                .count()
                == 0
        }
        (Some("survivors"), _) => mutants::survivors(),
        _ => usage(),
    };
    if succeeded {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn usage() -> bool {
    println!("{USAGE}");
    false
}
