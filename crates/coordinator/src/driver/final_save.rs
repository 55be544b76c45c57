//! The last checkpoint of a run that is asked to stop: training goes on until it is complete, and then the run ends.

use super::Driver;
use std::time::{Duration, Instant};
use varuna_plan::Step;
use varuna_protocol::RunMode;
use varuna_protocol::coordinator::CoordinatorInput;

/// How long the run waits while nothing more of its last checkpoint comes to the store, at least. A store shows a shard only once all of it is
/// there, and the first shard of a large model is some gigabytes. Whoever ends the process by force sooner, as `docker stop` does after 10 s,
/// should be told to wait for longer: a run that is killed is continued from the checkpoint before.
const QUIET_MIN: Duration = Duration::from_secs(120);
/// How long the run waits for its last checkpoint in all, however slowly it comes.
const FINAL_SAVE_MAX: Duration = Duration::from_secs(30 * 60);
/// How long the run waits while the store answers with errors: a single one may be chance, and the last one may be from before the request.
const FAILING_STORE_MAX: Duration = Duration::from_secs(10);

/// The last checkpoint, from the request until it is complete or given up. What was requested is the machine's to know: a recovery meanwhile
/// may go back, and then the checkpoint is one of an earlier step.
#[derive(Debug)]
pub(super) struct FinalSave {
    requested: Instant,
    /// Steps done at the request.
    after: Step,
    /// Whether a step has ended since, so that workers have something to save.
    has_begun: bool,
    /// When it last made progress: the request, the end of that step, or more bytes in the store.
    progress: Instant,
    /// Bytes of unfinished checkpoints that the store showed last.
    bytes: u64,
    /// Since when the store answers with errors.
    failing: Option<Instant>,
}

/// What is known of the run and its store.
#[derive(Clone, Copy)]
struct Known {
    mode: RunMode,
    /// Some worker may hold a state that it has trained.
    may_hold_state: bool,
    /// Steps done.
    step: Step,
    /// Time of a step; zero if it is not known.
    step_time: Duration,
    /// Bytes of unfinished checkpoints in the store.
    bytes: u64,
    /// The requested checkpoint is complete.
    is_saved: bool,
    /// The store's last answer was an error.
    store_fails: bool,
}

impl FinalSave {
    fn begin(now: Instant, after: Step, bytes: u64) -> FinalSave {
        FinalSave {
            requested: now,
            after,
            has_begun: false,
            progress: now,
            bytes,
            failing: None,
        }
    }

    /// Takes what is known now.
    fn note(&mut self, now: Instant, known: Known) {
        let begins = !self.has_begun && known.step > self.after;
        if begins || known.bytes > self.bytes {
            self.progress = now;
        }
        self.has_begun |= begins;
        self.bytes = known.bytes;
        self.failing = self.failing.or(Some(now)).filter(|_| known.store_fails);
    }

    /// Whether there is nothing to wait for any more: it is complete, or it will not come, or it takes too long.
    fn is_over(&self, now: Instant, known: Known) -> bool {
        // In all other modes a step follows shortly, unless workers are lost.
        let no_step_follows = matches!(
            known.mode,
            RunMode::Starting | RunMode::Waiting | RunMode::Done | RunMode::Stopped | RunMode::Ended
        );
        let waits_for_workers = matches!(known.mode, RunMode::Settling | RunMode::Recovering);
        let nothing_to_save = waits_for_workers && !known.may_hold_state;
        let since = |at: Instant| now.duration_since(at);
        // The step that was being run at the request ends first, and the order may come too late for the next one.
        let steps = if self.has_begun {
            Duration::ZERO
        } else {
            known.step_time * 2
        };
        // The largest shard may take as long as all that came before it.
        let quiet_max = QUIET_MIN.max(self.progress.duration_since(self.requested)) + steps;
        let is_late = since(self.progress) >= quiet_max || since(self.requested) >= FINAL_SAVE_MAX;
        let store_fails = self.failing.is_some_and(|at| since(at) >= FAILING_STORE_MAX);
        known.is_saved || no_step_follows || nothing_to_save || is_late || store_fails
    }
}

impl Driver {
    /// Orders a checkpoint of the next step. Returns the number of steps done, or why there will be none.
    pub(super) fn save(&mut self) -> Result<u64, String> {
        if self.checkpoints.watcher().is_none() {
            return Err("the job names no location for checkpoints (spec.checkpoint)".into());
        }
        if self.is_over() {
            return Err("the run is ending: no step follows after which a checkpoint could be saved".into());
        }
        self.feed(CoordinatorInput::Save);
        Ok(self.machine.run().step.0)
    }

    /// Ends the run after one more checkpoint, if the job has a place for it.
    pub(super) fn save_and_stop(&mut self) {
        if self.final_save.is_some() {
            return;
        }
        match self.save() {
            Ok(step) => {
                let bytes = self.checkpoints.unfinished_bytes();
                self.final_save = Some(FinalSave::begin(Instant::now(), Step(step), bytes));
            }
            Err(_) => self.stop(),
        }
    }

    /// Ends the run as soon as its last checkpoint need not be waited for any more.
    pub(super) fn continue_final_save(&mut self) {
        if self.final_save.is_none() {
            return;
        }
        let (now, known) = (Instant::now(), self.known_of_save());
        let Some(saving) = &mut self.final_save else {
            return;
        };
        saving.note(now, known);
        if saving.is_over(now, known) {
            self.final_save = None;
            self.stop();
        }
    }

    /// Whether a worker may hold a state that it has trained. Workers that others have started may still come back with one. Those that an earlier
    /// process has started ended with it, so that where this process starts them, only attached ones count.
    fn may_hold_state(&self) -> bool {
        let workers = self.machine.snapshot().workers;
        self.started_workers.is_none() || workers.iter().any(|w| w.up && w.step > Step(0))
    }

    fn known_of_save(&self) -> Known {
        let run = self.machine.run();
        let step_time = run.observed_ms.map(|ms| Duration::try_from_secs_f64(ms / 1e3));
        Known {
            mode: run.mode,
            may_hold_state: self.may_hold_state(),
            step: run.step,
            step_time: step_time.and_then(Result::ok).unwrap_or_default(),
            bytes: self.checkpoints.unfinished_bytes(),
            is_saved: !self.machine.wants_checkpoint(),
            store_fails: self.checkpoints.store_fails(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const TRAINING: Known = Known {
        mode: RunMode::Training,
        may_hold_state: true,
        step: Step(7),
        step_time: Duration::ZERO,
        bytes: 0,
        is_saved: false,
        store_fails: false,
    };

    /// A save that was requested in the seventh step, and the time of the request.
    fn requested() -> (FinalSave, Instant) {
        let now = Instant::now();
        (FinalSave::begin(now, Step(7), 0), now)
    }

    fn is_over(after: Duration, known: Known) -> bool {
        let (mut saving, now) = requested();
        saving.note(now + after, known);
        saving.is_over(now + after, known)
    }

    #[test]
    fn it_is_waited_for_until_it_is_complete_or_takes_too_long() {
        assert!(!is_over(QUIET_MIN - SECOND, TRAINING));
        assert!(is_over(QUIET_MIN, TRAINING));
        let saved = Known {
            is_saved: true,
            ..TRAINING
        };
        assert!(is_over(Duration::ZERO, saved));
        let over = |mode| is_over(SECOND, Known { mode, ..TRAINING });
        assert!(!over(RunMode::Recovering) && !over(RunMode::Launching) && !over(RunMode::Changing));
        assert!(over(RunMode::Waiting) && over(RunMode::Stopped) && over(RunMode::Done));
    }

    #[test]
    fn a_run_that_waits_for_an_earlier_one_stops_at_once() {
        let waiting = |mode| Known {
            mode,
            may_hold_state: false,
            ..TRAINING
        };
        for mode in [RunMode::Settling, RunMode::Recovering] {
            assert!(is_over(Duration::ZERO, waiting(mode)), "{mode}");
            assert!(!is_over(Duration::ZERO, Known { mode, ..TRAINING }), "{mode}");
        }
        let launching = waiting(RunMode::Launching);
        assert!(!is_over(Duration::ZERO, launching), "it is about to train");
    }

    #[test]
    fn a_last_save_that_makes_progress_is_waited_for() {
        let (mut saving, requested) = requested();
        let mut known = TRAINING;
        // Four shards in ten minutes, the last one after a pause as long as the three before took.
        for (after, bytes) in [(100, 1), (200, 2), (300, 3), (599, 4)] {
            let now = requested + SECOND * after;
            saving.note(now, known);
            assert!(!saving.is_over(now, known), "{after}");
            known.bytes = bytes;
            saving.note(now, known);
        }
        let quiet = SECOND * 599 * 2;
        saving.note(requested + quiet, known);
        assert!(saving.is_over(requested + quiet, known), "nothing more comes");
    }

    #[test]
    fn a_last_save_that_never_ends_is_given_up() {
        let (mut saving, requested) = requested();
        let mut known = TRAINING;
        for minute in 1..30 {
            known.bytes += 1;
            saving.note(requested + SECOND * 60 * minute, known);
        }
        assert!(!saving.is_over(requested + FINAL_SAVE_MAX - SECOND, known));
        assert!(saving.is_over(requested + FINAL_SAVE_MAX, known));
    }

    #[test]
    fn time_of_the_running_step_does_not_count() {
        let long = Known {
            step_time: QUIET_MIN,
            ..TRAINING
        };
        assert!(!is_over(QUIET_MIN * 2, long));
        assert!(is_over(QUIET_MIN * 3, long));
        let (mut saving, requested) = requested();
        let ended = Known {
            step: Step(8),
            ..TRAINING
        };
        let now = requested + QUIET_MIN - SECOND;
        saving.note(now, ended);
        // Later steps are no progress of the checkpoint.
        let later = Known {
            step: Step(9),
            ..TRAINING
        };
        saving.note(now + QUIET_MIN, later);
        assert!(!saving.is_over(now + QUIET_MIN - SECOND, later));
        assert!(saving.is_over(now + QUIET_MIN, later));
    }

    #[test]
    fn a_store_that_fails_is_given_a_few_seconds() {
        let failing = Known {
            store_fails: true,
            ..TRAINING
        };
        let (mut saving, requested) = requested();
        // Long after the request one answer is an error.
        let now = requested + QUIET_MIN / 2;
        saving.note(now, failing);
        assert!(!saving.is_over(now + FAILING_STORE_MAX - SECOND, failing));
        assert!(saving.is_over(now + FAILING_STORE_MAX, failing));
        saving.note(now + SECOND, TRAINING);
        saving.note(now + FAILING_STORE_MAX, failing);
        assert!(
            !saving.is_over(now + FAILING_STORE_MAX, failing),
            "it answered meanwhile"
        );
    }
}
