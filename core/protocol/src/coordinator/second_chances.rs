//! When a worker that is left out for its speed may be planned with again. Nobody can say how fast it is meanwhile: only who trains is
//! measured. What slowed it (a neighbour on its machine, heat, a clock that was lowered) may have ended.

use crate::message::Time;
use std::collections::BTreeMap;
use std::time::Duration;
use varuna_plan::WorkerId;

/// The first time after so long. A trial of a worker that is slow still costs two changes of plan and a window of slow steps: about half
/// a minute, which is little in this time.
const FIRST: Duration = Duration::from_secs(10 * 60);
/// The time doubles so often at most with each trial in which it was slow again.
const DOUBLINGS: u32 = 4;

#[derive(Default)]
pub(super) struct SecondChances {
    left_out: BTreeMap<WorkerId, LeftOut>,
}

#[derive(Clone, Copy, Default)]
struct LeftOut {
    /// Since when it is a spare; none while it is tried.
    since: Option<Time>,
    trials: u32,
}

impl SecondChances {
    /// Those of the slow spares whose time has come. Who is no slow spare now is being tried, or gone.
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

    /// It was fast enough when it was tried, or is gone.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.left_out.remove(&worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_slow_at_each_trial_is_tried_ever_less_often_and_one_that_is_not_as_soon_as_at_first()
    {
        let worker = WorkerId(3);
        let mut chances = SecondChances::default();
        let mut now = Time(1);
        let mut wait = |chances: &mut SecondChances| {
            let since = now;
            while chances.due(now, &[worker]).is_empty() {
                now = now.after(Duration::from_secs(60));
                assert!(now.since(since) < FIRST * 100, "never");
            }
            let waited = now.since(since).as_secs() / 60;
            // It trains, and is slow.
            assert!(chances.due(now, &[]).is_empty());
            waited
        };
        let waits: Vec<u64> = (0..6).map(|_| wait(&mut chances)).collect();
        assert_eq!(waits, [10, 20, 40, 80, 160, 160]);
        chances.forget(worker);
        assert_eq!(wait(&mut chances), 10);
    }
}
