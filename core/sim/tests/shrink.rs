//! If a schedule breaks an invariant, the report names few faults and shows what happened.

use std::collections::BTreeSet;
use varuna_protocol::Mutant;
use varuna_sim::World;
use varuna_sim::shrink::{ATTEMPTS, Shrunk, shrink};

/// The first schedule that catches the mutant, and the number of its faults.
fn caught(mutant: Mutant) -> (u64, usize) {
    let breaks = |seed: &u64| World::with_mutant(*seed, mutant).run().is_err();
    let seed = (0..400).find(breaks).expect("the mutant is caught");
    let mut world = World::with_mutant(seed, mutant);
    world.run().expect_err("the mutant is caught");
    (seed, world.faults().len())
}

fn numbers(shrunk: &Shrunk) -> BTreeSet<usize> {
    shrunk.faults.iter().map(|f| f.number).collect()
}

#[test]
fn failing_schedule_is_shrunk_to_few_faults() {
    for mutant in [Mutant::ForgetNorm, Mutant::AnswerFenceOnce, Mutant::NewestByEach] {
        let (seed, all) = caught(mutant);
        let shrunk = shrink(seed, Some(mutant)).expect("it fails");
        assert!(shrunk.faults.len() <= 6, "{mutant:?}: {shrunk:?}");
        for left_out in numbers(&shrunk) {
            let mut others = numbers(&shrunk);
            others.remove(&left_out);
            let without = World::with_faults(seed, Some(mutant), Some(others)).run();
            let same = without.is_err_and(|v| v.invariant == shrunk.violation.invariant);
            assert!(!same, "{mutant:?}: fault {left_out} is not needed");
        }
        assert!(shrunk.faults.len() <= all && shrunk.attempts <= ATTEMPTS);
        let violation = World::with_mutant(seed, mutant).run().unwrap_err();
        assert_eq!(shrunk.violation.invariant, violation.invariant);
        let mut replay = World::with_faults(seed, Some(mutant), Some(numbers(&shrunk)));
        assert_eq!(replay.run().as_ref(), Err(&shrunk.violation));
        assert_eq!(replay.faults(), shrunk.faults);
        assert_eq!(
            shrink(seed, Some(mutant)),
            Some(shrunk),
            "it shrinks the same way again"
        );
    }
}

#[test]
fn nothing_is_shrunk_where_no_invariant_is_broken() {
    assert_eq!(shrink(0, None), None);
}

#[test]
fn a_schedule_without_its_faults_ends_and_injects_none() {
    for seed in 0..40 {
        let mut world = World::with_faults(seed, None, Some(BTreeSet::new()));
        assert_eq!(world.run(), Ok(()), "seed {seed}");
        assert!(world.faults().is_empty(), "{:?}", world.faults());
    }
}

#[test]
fn timeline_shows_all_rows_faults_and_the_violation() {
    let (failing, _) = caught(Mutant::ForgetNorm);
    for (seed, mutant) in [(3, None), (11, None), (failing, Some(Mutant::ForgetNorm))] {
        let mut world = World::with_faults(seed, mutant, None);
        world.keep_timeline();
        let violation = world.run().err();
        let timeline = world.timeline().unwrap();
        let (text, svg) = (timeline.text(), timeline.svg());
        let rows = |name: &str| {
            text.lines()
                .filter(|l| l.starts_with(name) && l.ends_with('|'))
                .count()
        };
        assert!(rows("coordinator") >= 1 && rows("worker") >= 2, "{text}");
        for fault in world.faults() {
            let fault = fault.to_string();
            assert!(
                text.contains(&fault) && svg.contains(&fault),
                "{fault} is missing in\n{text}"
            );
        }
        for happened in ["TookOver", "Planned", "Running", "committed"] {
            assert!(text.contains(happened), "{happened} is missing in\n{text}");
        }
        let last = text.lines().last().unwrap();
        assert_eq!(last.contains("BROKEN"), violation.is_some(), "{last}");
        assert!(violation.is_none_or(|v| last.contains(&v.seen)));
    }
}

#[test]
fn a_timeline_changes_nothing_of_what_happens() {
    let traces = [false, true].map(|kept| {
        let mut world = World::new(7);
        if kept {
            world.keep_timeline();
        }
        world.run().unwrap();
        world.trace_hash()
    });
    assert_eq!(traces[0], traces[1]);
}
