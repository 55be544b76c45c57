//! Which mutants the unit tests of a crate catch: its test binary runs itself once for each.

use crate::{CaughtBy, NOTHING, environment};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Whether some unit test fails with the mutant.
fn caught(mutant: Option<&str>) -> bool {
    let this = std::env::current_exe().expect("the path of this test binary");
    let status = Command::new(this)
        .args(["--skip", "mutant::", "--test-threads", "1"])
        .envs(environment(mutant))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("this test binary runs");
    !status.success()
}

/// What is wrong with a table of mutants, name by name. To be called by a test in a module `mutant`, which the runs leave out.
///
/// # Panics
/// The unit tests fail without a mutant, or cannot be run.
#[must_use]
pub fn compare_with_unit_tests(table: &[(&'static str, CaughtBy)]) -> Vec<String> {
    assert!(!caught(None), "the unit tests fail without a mutant");
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut wrong = Vec::new();
        while let Some((name, by)) = table.get(next.fetch_add(1, Ordering::Relaxed)) {
            let caught = caught(Some(name));
            if caught != by.unit_tests {
                wrong.push(format!("{name}: expected {}, is {caught}", by.unit_tests));
            }
            if *by == NOTHING {
                wrong.push(format!("{name}: a test is missing"));
            }
        }
        wrong
    };
    std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(worker));
        let wrong = threads.into_iter().flat_map(|t| t.join().expect("no panic"));
        wrong.collect()
    })
}
