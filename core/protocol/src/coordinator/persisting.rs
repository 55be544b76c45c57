//! A write of the record under way: what goes on once it is done, or has failed.

use super::active::Active;
use super::config::Timing;
use super::mode::{Mode, give_up, go_on, recover};
use super::record::WriteAttempt;
use super::recovery::Collecting;
use super::shared::Shared;
use super::turn::Turn;
use crate::message::Time;
use crate::record::Record;
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

    pub(super) fn go_on(self) -> Mode {
        match self {
            Then::Active(active) => Mode::Active(active),
            Then::Collecting(collecting) => Mode::Collecting(collecting),
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
    fn is_to_be_looked_at_again(&self, now: Time, timing: &Timing) -> bool {
        let late = now > self.since.after(timing.restore) && !bug!(GiveUpLate);
        late || (self.revived && !bug!(GiveUpOnRevived))
    }
}

/// The record is written.
pub(super) fn persisted(
    persisting: Persisting,
    record: Record,
    shared: &mut Shared,
    turn: &mut Turn<'_>,
) -> Mode {
    let Persisting {
        mut then, given_up, ..
    } = persisting;
    if record.highest != shared.record.stored.highest {
        then.active().planned_at = turn.now;
    }
    let before = std::mem::replace(&mut shared.record.stored, record);
    shared.record.note_write();
    match given_up {
        Some(given_up) if given_up.is_to_be_looked_at_again(turn.now, &shared.config.timing) => {
            let because = "what is left may have changed before the run was given up".to_owned();
            let Then::Active(active) = then else {
                return then.go_on();
            };
            return recover(active, because, shared, turn);
        }
        Some(given_up) => return give_up(given_up.units, shared, turn),
        None => {}
    }
    if shared.record.is_recovery_from(&before) || bug!(EveryWriteIsProgress) {
        shared.progress.at = turn.now; // a planned change must never postpone the detection of a death
    }
    shared.tell_of_write(&before, turn);
    go_on(then, shared, turn)
}
