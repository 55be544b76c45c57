//! Runs the corpus, and a fixed number of mutated inputs for each target. `make fuzz` explores further.

use varuna_fuzz::corpus::{self, VALID};
use varuna_fuzz::explore::{Until, explore};
use varuna_fuzz::run::run;
use varuna_fuzz::{ONE_AT_A_TIME, TARGETS};

/// Number of mutated inputs of each target; all of them together take a few seconds.
const MUTATED: u64 = 400;
const SEED: u64 = 1;

#[test]
fn corpus_inputs_are_handled_and_seeds_accepted() {
    let _one = ONE_AT_A_TIME.lock();
    let mut wrong = Vec::new();
    for target in TARGETS {
        for (name, input) in corpus::read(target).unwrap() {
            match run(target, &input) {
                Ok(answer) if name.starts_with(VALID) && !answer.accepted => {
                    wrong.push(format!("{}/{name} is refused: {}", target.name, answer.said));
                }
                Ok(_) => {}
                Err(failure) => wrong.push(format!("{}/{name}: {failure}", target.name)),
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn mutated_inputs_are_taken_or_refused() {
    for target in TARGETS {
        let inputs = corpus::read(target).unwrap();
        let name = target.name;
        match explore(target, &inputs, SEED, Until::Count(MUTATED), |_| {}) {
            Ok(stats) => assert!(stats.answers > 1, "{name}: the mutations change nothing"),
            Err(found) => panic!(
                "{name}: {found}\nthe input: {:?}",
                String::from_utf8_lossy(&found.input)
            ),
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_inputs() {
    let target = &TARGETS[0];
    let inputs = corpus::read(target).unwrap();
    let run = |seed| {
        let mut all = Vec::new();
        explore(target, &inputs, seed, Until::Count(100), |input| {
            all.push(input.to_vec())
        })
        .unwrap();
        all
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn every_target_has_a_corpus_with_seeds() {
    // Otherwise the memory of seeds would count for an input of another test.
    let _one = ONE_AT_A_TIME.lock();
    let folder = corpus::folder(&TARGETS[0]);
    let folders = std::fs::read_dir(folder.parent().unwrap()).unwrap();
    let mut folders: Vec<String> = folders
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .collect();
    folders.sort();
    let mut names: Vec<&str> = TARGETS.iter().map(|t| t.name).collect();
    names.sort_unstable();
    assert_eq!(folders, names);
    for target in TARGETS {
        let inputs = corpus::read(target).unwrap();
        for (name, seed) in (target.seeds)() {
            let name = format!("{VALID}{name}");
            let here = inputs.iter().find(|(n, _)| *n == name);
            let here = here.map(|(_, input)| input == &seed);
            assert_eq!(
                here,
                Some(true),
                "{}/{name} is not what is written today: cargo run -p varuna-fuzz -- seeds",
                target.name
            );
        }
    }
}
