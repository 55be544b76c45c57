//! Which mutants are caught by the unit tests of a crate. The test binary runs itself once for each mutant.

use crate::{CaughtBy, NOTHING, environment};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Whether a unit test fails with the mutant. The run ends with the first failure, because for most mutants several tests would fail, and
/// running them all takes most of the time.
fn caught(mutant: Option<&str>) -> bool {
    let this = std::env::current_exe().expect("the path of this test binary");
    let mut run = Command::new(this)
        .args(["--skip", "mutant::", "--test-threads", "1"])
        .envs(environment(mutant))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("this test binary runs");
    let lines = BufReader::new(run.stdout.take().expect("it is piped")).lines();
    let failed = lines
        .map_while(Result::ok)
        .any(|line| line.ends_with("... FAILED"));
    if failed {
        // It may have ended already.
        let _ = run.kill();
    }
    let status = run.wait().expect("an end of the test binary");
    failed || !status.success()
}

/// Errors in a table of mutants, by name. Call this in a test of a module `mutant`, which these runs leave out.
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
