//! The last checkpoint of a run that is asked to stop: training goes on until it is complete, and then the run ends.

use super::Driver;
use std::time::{Duration, Instant};
use varuna_plan::Step;
use varuna_protocol::RunMode;

/// How long the run waits for its last checkpoint. Service managers end a process by force after 10 to 90 seconds.
const FINAL_SAVE_MAX: Duration = Duration::from_secs(60);
/// How often the store is listed meanwhile.
const LIST_EVERY: Duration = Duration::from_millis(500);

/// The last checkpoint, from the request until it is complete or given up.
#[derive(Debug)]
pub(super) struct FinalSave {
    /// The number of steps that were done when it was asked for. The checkpoint is of a later step.
    after: Step,
    since: Instant,
    listed: Instant,
}

/// What is known of the run and its store.
#[derive(Clone, Copy)]
struct Known {
    mode: RunMode,
    last_step: Step,
    /// The step of the newest complete checkpoint.
    newest: Option<Step>,
    /// The store's last answer was an error.
    store_fails: bool,
}

impl FinalSave {
    fn new(after: Step, now: Instant) -> FinalSave {
        FinalSave {
            after,
            since: now,
            listed: now,
        }
    }

    /// Whether there is nothing to wait for any more: it is complete, or it will not come, or it takes too long.
    fn is_over(&self, now: Instant, known: Known) -> bool {
        let saved = known
            .newest
            .is_some_and(|step| step > self.after || step >= known.last_step);
        // In all other modes a step follows shortly, unless workers are lost.
        let no_step_follows = matches!(
            known.mode,
            RunMode::Starting | RunMode::Waiting | RunMode::Done | RunMode::Stopped | RunMode::Ended
        );
        saved || no_step_follows || known.store_fails || now.duration_since(self.since) >= FINAL_SAVE_MAX
    }
}

impl Driver {
    /// Ends the run after one more checkpoint, if the job has a place for it.
    pub(super) fn save_and_stop(&mut self) {
        if self.final_save.is_some() {
            return;
        }
        match self.save() {
            Ok(after) => self.final_save = Some(FinalSave::new(Step(after), Instant::now())),
            Err(_) => self.stop(),
        }
    }

    /// Ends the run as soon as its last checkpoint need not be waited for any more.
    pub(super) fn continue_final_save(&mut self) {
        if self.final_save.is_none() {
            return;
        }
        let run = self.machine.run();
        let health = self.checkpoints.health();
        let known = Known {
            mode: run.mode,
            last_step: run.last_step,
            newest: health.as_ref().and_then(|h| h.newest),
            store_fails: health.is_none_or(|h| h.failing.is_some()),
        };
        let Some(saving) = &mut self.final_save else {
            return;
        };
        let now = Instant::now();
        if saving.is_over(now, known) {
            self.final_save = None;
            self.stop();
        } else if now.duration_since(saving.listed) >= LIST_EVERY {
            saving.listed = now;
            if let Some(watcher) = self.checkpoints.watcher() {
                watcher.list_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAINING: Known = Known {
        mode: RunMode::Training,
        last_step: Step(100),
        newest: Some(Step(40)),
        store_fails: false,
    };

    fn is_over(after: Duration, known: Known) -> bool {
        let since = Instant::now();
        FinalSave::new(Step(50), since).is_over(since + after, known)
    }

    #[test]
    fn the_checkpoint_is_one_of_a_later_step_or_of_the_last() {
        let newest = |step| Known {
            newest: Some(Step(step)),
            ..TRAINING
        };
        assert!(!is_over(Duration::ZERO, TRAINING));
        assert!(!is_over(Duration::ZERO, newest(50)), "it was there before");
        assert!(is_over(Duration::ZERO, newest(51)));
        let last = Known {
            last_step: Step(50),
            ..newest(50)
        };
        assert!(is_over(Duration::ZERO, last), "no later step exists");
        let none = Known {
            newest: None,
            ..TRAINING
        };
        assert!(!is_over(Duration::ZERO, none));
    }

    #[test]
    fn it_is_given_up_if_it_cannot_come_or_takes_too_long() {
        let second = Duration::from_secs(1);
        assert!(!is_over(FINAL_SAVE_MAX - second, TRAINING));
        assert!(is_over(FINAL_SAVE_MAX, TRAINING));
        let failing = Known {
            store_fails: true,
            ..TRAINING
        };
        assert!(is_over(second, failing));
        let over = |mode| is_over(second, Known { mode, ..TRAINING });
        assert!(!over(RunMode::Recovering) && !over(RunMode::Launching) && !over(RunMode::Changing));
        assert!(over(RunMode::Waiting) && over(RunMode::Stopped) && over(RunMode::Done));
    }
}
