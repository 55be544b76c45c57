//! Decides when a worker that is left out because it was slow may be planned with again. Its speed is unknown meanwhile, since only workers
//! that train are measured. The cause (another process on its machine, heat, a lowered clock) may have ended.

use crate::message::Time;
use std::collections::BTreeMap;
use std::time::Duration;
use varuna_plan::WorkerId;

/// Time until the first trial. A trial of a worker that is still slow costs two changes of plan and a window of slow steps: about half a
/// minute, which is little compared with this time.
const FIRST: Duration = Duration::from_secs(10 * 60);
/// Maximum number of times that the time is doubled, once for each trial in which the worker was slow again.
const DOUBLINGS: u32 = 4;

#[derive(Default)]
pub(super) struct SlowWorkerTrials {
    left_out: BTreeMap<WorkerId, LeftOut>,
}

#[derive(Clone, Copy, Default)]
struct LeftOut {
    /// Since when it has been a spare; none while it is being tried.
    since: Option<Time>,
    trials: u32,
}

impl SlowWorkerTrials {
    /// The slow spares that are due for a trial. A worker that is no longer a slow spare is being tried, or is gone.
    pub(super) fn due(&mut self, now: Time, slow_spares: &[WorkerId]) -> Vec<WorkerId> {
        if bug!(NoSecondChance) {
            return Vec::new();
        }
        for (worker, left_out) in &mut self.left_out {
            left_out.since = left_out.since.filter(|_| slow_spares.contains(worker));
        }
        let mut due = Vec::new();
        for worker in slow_spares {
            let left_out = self.left_out.entry(*worker).or_default();
            let since = *left_out.since.get_or_insert(now);
            let pause = FIRST * (1 << left_out.trials.min(DOUBLINGS));
            if now >= since.after(pause) {
                left_out.since = None;
                left_out.trials = left_out.trials.saturating_add(1);
                due.push(*worker);
            }
        }
        due
    }

    /// Forgets a worker that was fast enough when it was tried, or is gone.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.left_out.remove(&worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_of_slow_workers_become_rarer() {
        let worker = WorkerId(3);
        let mut trials = SlowWorkerTrials::default();
        let mut now = Time(1);
        let mut wait = |trials: &mut SlowWorkerTrials| {
            let since = now;
            while trials.due(now, &[worker]).is_empty() {
                now = now.after(Duration::from_secs(60));
                assert!(now.since(since) < FIRST * 100, "never");
            }
            let waited = now.since(since).as_secs() / 60;
            // The worker trains, and is slow.
            assert!(trials.due(now, &[]).is_empty());
            waited
        };
        let waits: Vec<u64> = (0..6).map(|_| wait(&mut trials)).collect();
        assert_eq!(waits, [10, 20, 40, 80, 160, 160]);
        trials.forget(worker);
        assert_eq!(wait(&mut trials), 10);
    }
}
