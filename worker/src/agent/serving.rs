//! Which states that the engine has read are still to be sent to peers that load.
//!
//! A state that the member orders to be sent first waits in the engine's queue. Meanwhile the generation may have begun to train: then
//! nobody needs the state any more, and the optimizer would wait until all of it is sent.

use varuna_plan::Generation;

/// Up to which generation none is sent.
#[derive(Default)]
pub(super) struct Serving {
    stopped: Generation,
}

impl Serving {
    /// No more is sent in this generation, nor in those before it.
    pub(super) fn stop(&mut self, generation: Generation) {
        self.stopped = self.stopped.max(generation);
    }

    /// Whether a state for a peer that loads in this generation comes too late.
    pub(super) fn is_over(&self, generation: Generation) -> bool {
        generation <= self.stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_after_the_start_of_training_is_not_sent() {
        let mut serving = Serving::default();
        assert!(!serving.is_over(Generation(1)));
        serving.stop(Generation(3));
        let over = [2, 3, 4].map(|generation| serving.is_over(Generation(generation)));
        assert_eq!(over, [true, true, false]);
        serving.stop(Generation(2));
        assert!(serving.is_over(Generation(3)), "what was stopped stays so");
    }
}
