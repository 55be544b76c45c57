//! Switches a mutant on at run time.

use super::Mutant;
use std::cell::Cell;

thread_local! {
    static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Runs something with a mutant switched on, or none, in this thread.
pub fn with_mutant<T>(mutant: Option<Mutant>, run: impl FnOnce() -> T) -> T {
    let before = ON.replace(mutant);
    let result = run();
    ON.set(before);
    result
}

pub(crate) fn is_on(mutant: Mutant) -> bool {
    #[cfg(test)]
    if super::tests::is_on(mutant) {
        return true;
    }
    ON.get() == Some(mutant)
}
