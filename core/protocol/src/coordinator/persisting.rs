//! A write of the record under way, and what follows once it is done or has failed.

use super::active::Active;
use super::config::Timing;
use super::record::WriteAttempt;
use super::recovery::Collecting;
use crate::message::Time;
use varuna_plan::Unit;

/// Waits for a write.
pub(super) struct Persisting {
    pub(super) write: WriteAttempt,
    /// The run is given up once the write is done, because the state of these units is lost. The write proves that no other coordinator has
    /// taken over.
    pub(super) given_up: Option<GivenUp>,
    /// The mode that follows once the write is done or has failed.
    pub(super) then: AfterWrite,
}

impl Persisting {
    /// A write after which the run is not given up.
    pub(super) fn of(write: WriteAttempt, then: AfterWrite) -> Self {
        Self {
            write,
            given_up: None,
            then,
        }
    }

    /// Whether the write only notes the waiting time of a recovery, which continues meanwhile.
    pub(super) fn is_of_wait(&self) -> bool {
        matches!(self.then, AfterWrite::Collecting(_))
    }
}

/// The mode that continues after a write.
pub(super) enum AfterWrite {
    /// The plan in force.
    Active(Active),
    /// A recovery that waits.
    Collecting(Collecting),
}

impl AfterWrite {
    pub(super) fn active(&mut self) -> &mut Active {
        match self {
            AfterWrite::Active(active) => active,
            AfterWrite::Collecting(collecting) => collecting.interrupted(),
        }
    }
}

/// A run that is about to be given up.
pub(super) struct GivenUp {
    pub(super) units: Vec<Unit>,
    pub(super) since: Time,
    /// Whether a worker has come back or answered meanwhile, so that the loss has to be checked once more.
    pub(super) revived: bool,
}

impl GivenUp {
    /// Whether the loss has to be checked again: a worker came back, or the write took so long that a checkpoint may have been completed
    /// meanwhile.
    pub(super) fn needs_recheck(&self, now: Time, timing: &Timing) -> bool {
        let late = now > self.since.after(timing.restore) && !bug!(GiveUpLate);
        late || (self.revived && !bug!(GiveUpOnRevived))
    }
}
