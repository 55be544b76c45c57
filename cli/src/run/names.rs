//! What the messages about a run call it.

use crate::failure::Failure;
use crate::restarts::WITHOUT_WORKERS_MAX;

/// What the user calls the run.
pub(super) struct Names {
    pub(super) job: String,
    pub(super) folder: String,
}

impl Names {
    /// The message when the last worker has ended and the run waits for others.
    pub(super) fn waits(&self) -> String {
        format!(
            "no worker is left: training waits for new ones. Start some with varuna scale {} N, or end the run with Ctrl-C; it ends by itself in \
             {} minutes",
            self.folder,
            WITHOUT_WORKERS_MAX.as_secs() / 60
        )
    }

    /// Why the run has ended that had no worker for too long.
    pub(super) fn abandoned(&self) -> Failure {
        Failure::Internal(format!(
            "there was no worker for {} minutes; the run goes on from its newest checkpoint with varuna run {} --run-dir {}",
            WITHOUT_WORKERS_MAX.as_secs() / 60,
            self.job,
            self.folder
        ))
    }
}
