//! Which schedule is meant, and with which of its faults.

use std::collections::BTreeSet;
use varuna_protocol::Mutant;
use varuna_sim::{InjectedFault, World};

/// A schedule.
pub(crate) struct Chosen {
    pub(crate) seed: u64,
    pub(crate) mutant: Option<Mutant>,
    /// The numbers of its faults that happen; none = all.
    pub(crate) faults: Option<BTreeSet<usize>>,
    /// Path of the picture.
    pub(crate) svg: Option<String>,
}

impl Chosen {
    /// The whole schedule of a seed.
    pub(crate) fn all_of(seed: u64) -> Self {
        Self {
            seed,
            mutant: None,
            faults: None,
            svg: None,
        }
    }

    /// `SEED [--faults 3,17 | none] [--mutant NAME] [--svg FILE]`; none where that is not what stands there.
    pub(crate) fn parse(args: &[String]) -> Option<Self> {
        let (seed, options) = args.split_first()?;
        let mut chosen = Self::all_of(seed.parse().ok()?);
        for option in options.chunks(2) {
            match option {
                [name, value] if name == "--faults" => chosen.faults = Some(numbers(value)?),
                [name, value] if name == "--mutant" => chosen.mutant = Some(Mutant::named(value)?),
                [name, value] if name == "--svg" => chosen.svg = Some(value.clone()),
                _ => return None,
            }
        }
        Some(chosen)
    }

    pub(crate) fn world(&self) -> World {
        World::with_faults(self.seed, self.mutant, self.faults.clone())
    }

    /// The command that does this with the schedule and these of its faults.
    pub(crate) fn command(&self, what: &str, faults: &[InjectedFault]) -> String {
        let numbers: Vec<String> = faults.iter().map(|f| f.number.to_string()).collect();
        let numbers = if numbers.is_empty() {
            "none".to_owned()
        } else {
            numbers.join(",")
        };
        let mutant = self
            .mutant
            .map_or_else(String::new, |m| format!(" --mutant {m:?}"));
        let seed = self.seed;
        format!(
            "cargo run --release -p varuna-sim --example seeds -- {what} {seed} --faults {numbers}{mutant}"
        )
    }
}

fn numbers(text: &str) -> Option<BTreeSet<usize>> {
    if text == "none" {
        return Some(BTreeSet::new());
    }
    text.split(',').map(|n| n.parse().ok()).collect()
}
