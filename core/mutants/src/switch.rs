//! Switches a mutant on at run time: for a while in one thread, or by a variable of the environment in the whole process.

use std::cell::Cell;
use std::sync::LazyLock;

/// Names the mutant that all threads of a process have.
const VARIABLE: &str = "VARUNA_MUTANT";

thread_local! {
    static ON: Cell<Option<&'static str>> = const { Cell::new(None) };
}

static IN_PROCESS: LazyLock<Option<String>> = LazyLock::new(|| std::env::var(VARIABLE).ok());

/// Runs something with a mutant switched on, or none, in this thread.
pub fn with_mutant<T>(name: Option<&'static str>, run: impl FnOnce() -> T) -> T {
    let before = ON.replace(name);
    let result = run();
    ON.set(before);
    result
}

/// Whether the mutant of that name is switched on.
#[must_use]
pub fn is_on(name: &'static str) -> bool {
    ON.get().or(IN_PROCESS.as_deref()) == Some(name)
}

/// What a process that runs unit tests with this mutant, or none, has in its environment. That a property fails is all that is asked for: its
/// case is neither shrunk nor kept for later runs.
#[must_use]
pub fn environment(name: Option<&str>) -> [(&'static str, String); 4] {
    [
        (VARIABLE, name.unwrap_or_default()),
        ("RUST_BACKTRACE", "0"),
        ("PROPTEST_MAX_SHRINK_ITERS", "0"),
        ("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true"),
    ]
    .map(|(variable, value)| (variable, value.to_owned()))
}
