//! Which workers say that their uploads of checkpoints fail. The store may well answer the coordinator meanwhile: a full disk can be listed.

use std::collections::BTreeMap;
use varuna_plan::{StateId, WorkerId};

/// Workers that are remembered. Beyond this number, those whose failure is over are forgotten.
const WORKERS_MAX: usize = 8192;

/// The failures by worker. That of a worker that is gone stays until a newer checkpoint is complete: nobody says before that uploads work.
#[derive(Debug, Default)]
pub(crate) struct UploadFailures(BTreeMap<WorkerId, Failure>);

#[derive(Debug)]
struct Failure {
    why: String,
    /// The newest checkpoint when it was first said. Once there is a newer one, the failure is over, although a worker that has nothing to upload
    /// any more may still say it.
    newest: Option<StateId>,
}

impl Failure {
    fn is_over(&self, newest: Option<StateId>) -> bool {
        newest > self.newest
    }
}

impl UploadFailures {
    /// A worker's uploads fail. `newest`: the newest checkpoint.
    pub(crate) fn failed(&mut self, worker: WorkerId, why: String, newest: Option<StateId>) {
        if let Some(known) = self.0.get_mut(&worker) {
            known.why = why;
            return;
        }
        if self.0.len() >= WORKERS_MAX {
            self.0.retain(|_, failure| !failure.is_over(newest));
        }
        self.0.insert(worker, Failure { why, newest });
    }

    /// A worker does not say, or says no longer, that its uploads fail.
    pub(crate) fn work(&mut self, worker: WorkerId) {
        self.0.remove(&worker);
    }

    /// The failures in one sentence, for people; none if there is none. `newest`: the newest checkpoint.
    pub(crate) fn text(&self, newest: Option<StateId>) -> Option<String> {
        let mut failures = self.0.values().filter(|failure| !failure.is_over(newest));
        let first = failures.next()?.why.clone();
        Some(match failures.count() {
            0 => first,
            1 => format!("{first} (and another worker)"),
            others => format!("{first} (and {others} other workers)"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::state::Chain;
    use varuna_plan::{Generation, Step};

    fn checkpoint(step: u64) -> Option<StateId> {
        Some(StateId {
            run_gen: Generation(1),
            step: Step(step),
            chain: Chain(step),
        })
    }

    #[test]
    fn failures_are_over_with_a_newer_checkpoint() {
        let mut failures = UploadFailures::default();
        assert_eq!(failures.text(None), None);
        failures.failed(WorkerId(1), "w1: full".into(), checkpoint(10));
        failures.failed(WorkerId(2), "w2: full".into(), checkpoint(10));
        let text = failures.text(checkpoint(10));
        assert_eq!(text.as_deref(), Some("w1: full (and another worker)"));
        failures.work(WorkerId(1));
        assert_eq!(failures.text(checkpoint(10)).as_deref(), Some("w2: full"));
        assert_eq!(failures.text(checkpoint(20)), None);
        // It has no part in the plan any more, and goes on saying what it knows.
        failures.failed(WorkerId(2), "w2: full".into(), checkpoint(20));
        assert_eq!(failures.text(checkpoint(20)), None);
        failures.work(WorkerId(2));
        failures.failed(WorkerId(2), "w2: full".into(), checkpoint(20));
        assert_eq!(failures.text(checkpoint(20)).as_deref(), Some("w2: full"));
    }
}
