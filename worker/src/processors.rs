//! Processors that this process may use, and those that training leaves idle.

use std::num::NonZero;

/// Processors that this process may use; one if the system does not say.
pub(crate) fn available() -> NonZero<usize> {
    std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN)
}

/// Processors that a training of this many threads leaves idle; one if there are none. More threads in the background would run on the processors
/// of training: even with a low priority they take a part of these.
pub(crate) fn idle_beside(training_threads: u32) -> NonZero<usize> {
    idle_of(available(), training_threads)
}

fn idle_of(all: NonZero<usize>, training_threads: u32) -> NonZero<usize> {
    let training = usize::try_from(training_threads).unwrap_or(usize::MAX);
    NonZero::new(all.get().saturating_sub(training)).unwrap_or(NonZero::<usize>::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_processor_is_used_where_training_leaves_none() {
        let idle = |all, training| idle_of(NonZero::new(all).unwrap(), training).get();
        assert_eq!([idle(16, 1), idle(16, 12), idle(2, 1)], [15, 4, 1]);
        assert_eq!([idle(2, 2), idle(2, 8)], [1, 1]);
    }
}
