//! The last checkpoint of a run that is asked to stop: training goes on until it is complete, and then the run ends.

use super::Driver;
use std::time::{Duration, Instant};
use varuna_protocol::RunMode;

/// How long the run waits for its last checkpoint. Whoever ends the process by force sooner, as `docker stop` does after 10 s, should be told
/// to wait for longer: a run that is killed is continued from the checkpoint before.
const FINAL_SAVE_MAX: Duration = Duration::from_secs(60);
/// How long the run waits if the store's last answer was an error, which may be from before the request.
const FAILING_STORE_MAX: Duration = Duration::from_secs(10);

/// The last checkpoint, from the request until it is complete or given up. What was requested is the machine's to know: a recovery meanwhile
/// may go back, and then the checkpoint is one of an earlier step.
#[derive(Debug)]
pub(super) struct FinalSave {
    since: Instant,
}

/// What is known of the run and its store.
#[derive(Clone, Copy)]
struct Known {
    mode: RunMode,
    /// The requested checkpoint is complete.
    is_saved: bool,
    /// The store's last answer was an error.
    store_fails: bool,
}

impl FinalSave {
    /// Whether there is nothing to wait for any more: it is complete, or it will not come, or it takes too long.
    fn is_over(&self, now: Instant, known: Known) -> bool {
        // In all other modes a step follows shortly, unless workers are lost.
        let no_step_follows = matches!(
            known.mode,
            RunMode::Starting | RunMode::Waiting | RunMode::Done | RunMode::Stopped | RunMode::Ended
        );
        let limit = match known.store_fails {
            true => FAILING_STORE_MAX,
            false => FINAL_SAVE_MAX,
        };
        known.is_saved || no_step_follows || now.duration_since(self.since) >= limit
    }
}

impl Driver {
    /// Ends the run after one more checkpoint, if the job has a place for it.
    pub(super) fn save_and_stop(&mut self) {
        if self.final_save.is_some() {
            return;
        }
        match self.save() {
            Ok(_) => {
                self.final_save = Some(FinalSave {
                    since: Instant::now(),
                });
            }
            Err(_) => self.stop(),
        }
    }

    /// Ends the run as soon as its last checkpoint need not be waited for any more.
    pub(super) fn continue_final_save(&mut self) {
        let Some(saving) = &self.final_save else {
            return;
        };
        let health = self.checkpoints.health();
        let known = Known {
            mode: self.machine.run().mode,
            is_saved: !self.machine.wants_checkpoint(),
            store_fails: health.is_none_or(|h| h.failing.is_some()),
        };
        if saving.is_over(Instant::now(), known) {
            self.final_save = None;
            self.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAINING: Known = Known {
        mode: RunMode::Training,
        is_saved: false,
        store_fails: false,
    };

    fn is_over(after: Duration, known: Known) -> bool {
        let since = Instant::now();
        FinalSave { since }.is_over(since + after, known)
    }

    #[test]
    fn it_is_waited_for_until_it_is_complete_or_takes_too_long() {
        let second = Duration::from_secs(1);
        assert!(!is_over(FINAL_SAVE_MAX - second, TRAINING));
        assert!(is_over(FINAL_SAVE_MAX, TRAINING));
        let saved = Known {
            is_saved: true,
            ..TRAINING
        };
        assert!(is_over(Duration::ZERO, saved));
        let over = |mode| is_over(second, Known { mode, ..TRAINING });
        assert!(!over(RunMode::Recovering) && !over(RunMode::Launching) && !over(RunMode::Changing));
        assert!(over(RunMode::Waiting) && over(RunMode::Stopped) && over(RunMode::Done));
    }

    #[test]
    fn a_store_that_fails_is_given_a_few_seconds() {
        let failing = Known {
            store_fails: true,
            ..TRAINING
        };
        assert!(!is_over(Duration::ZERO, failing), "the error may be an old one");
        assert!(is_over(FAILING_STORE_MAX, failing));
    }
}
