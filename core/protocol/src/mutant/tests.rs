//! Which mutants the unit tests catch: this test binary runs itself once for each.

use super::{CaughtBy, Mutant};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Names the mutant that a run of the test binary has in all its tests.
const VARIABLE: &str = "VARUNA_MUTANT";

/// No mutant may survive: one that cannot be told from the sound code is a guard that can go.
const NOTHING: CaughtBy = CaughtBy {
    unit_tests: false,
    seeds: None,
};

static SELECTED: LazyLock<Option<Mutant>> =
    LazyLock::new(|| std::env::var(VARIABLE).ok().and_then(|name| Mutant::named(&name)));

pub(super) fn is_on(mutant: Mutant) -> bool {
    *SELECTED == Some(mutant)
}

/// Whether some unit test fails with the mutant.
fn caught(mutant: Option<Mutant>) -> bool {
    let this = std::env::current_exe().expect("the path of this test binary");
    let name = mutant.map_or_else(String::new, |m| format!("{m:?}"));
    let status = Command::new(this)
        .args(["--skip", "mutant::", "--test-threads", "1"])
        .env(VARIABLE, name)
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("this test binary runs");
    !status.success()
}

#[test]
fn the_unit_tests_catch_the_mutants_that_the_table_says_and_no_others() {
    assert!(!caught(None), "the unit tests fail without a mutant");
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut wrong = Vec::new();
        while let Some(mutant) = Mutant::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (expected, caught) = (mutant.caught_by().unit_tests, caught(Some(*mutant)));
            if caught != expected {
                wrong.push(format!("{mutant:?}: expected {expected}, is {caught}"));
            }
            if mutant.caught_by() == NOTHING {
                wrong.push(format!("{mutant:?}: a test is missing"));
            }
        }
        wrong
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(worker));
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    assert!(
        wrong.is_empty(),
        "caught by unit tests; correct the table in mutant.rs, where it got better:\n{}",
        wrong.join("\n")
    );
}
