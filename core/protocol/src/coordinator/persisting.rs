//! A write of the record under way: what goes on once it is done, or has failed.

use super::active::Active;
use super::config::Timing;
use super::record::WriteAttempt;
use super::recovery::Collecting;
use crate::message::Time;
use varuna_plan::Unit;

/// Waits for a write.
pub(super) struct Persisting {
    pub(super) write: WriteAttempt,
    /// The run is given up once the write is done, for want of the state of these units: the write shows that no other
    /// coordinator has taken over.
    pub(super) given_up: Option<GivenUp>,
    /// What goes on once the write is done, or has failed.
    pub(super) then: Then,
}

impl Persisting {
    /// Nothing is given up by this write.
    pub(super) fn of(write: WriteAttempt, then: Then) -> Self {
        Self {
            write,
            given_up: None,
            then,
        }
    }

    /// It is noted how long a recovery has waited, which goes on meanwhile.
    pub(super) fn is_of_wait(&self) -> bool {
        matches!(self.then, Then::Collecting(_))
    }
}

/// What a write leaves as it is.
pub(super) enum Then {
    /// The plan in force.
    Active(Active),
    /// A recovery that waits.
    Collecting(Collecting),
}

impl Then {
    pub(super) fn active(&mut self) -> &mut Active {
        match self {
            Then::Active(active) => active,
            Then::Collecting(collecting) => collecting.interrupted(),
        }
    }
}

/// A run that is about to be given up.
pub(super) struct GivenUp {
    pub(super) units: Vec<Unit>,
    pub(super) since: Time,
    /// A worker has come back or has answered meanwhile: what is left is looked at once more.
    pub(super) revived: bool,
}

impl GivenUp {
    /// A worker came back, or the write took so long that a checkpoint may have been completed meanwhile.
    pub(super) fn is_to_be_looked_at_again(&self, now: Time, timing: &Timing) -> bool {
        let late = now > self.since.after(timing.restore) && !bug!(GiveUpLate);
        late || (self.revived && !bug!(GiveUpOnRevived))
    }
}
