//! Whether somebody trains on from the newest state, and so what a unit of it can do that has no room.

use std::time::Duration;
use varuna_plan::StateId;

/// How long a unit waits for room while no other copy takes any.
///
/// * If no step was run from its state in this time, and none is being run, nobody trains: it is the state of the last step. The memory of a
///   step is free then, has room for one unit, and is taken.
/// * If steps were run, they need their memory, and the state is given up. Nobody else ends its wait: an optimizer that changes what is on a
///   device does not wait for readers of a copy there, so it does not ask them to stop.
pub(super) const IDLE: Duration = Duration::from_secs(120);

/// What a unit that has no room can do while no copy is there whose end would make some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Alone {
    /// It waits.
    Waits,
    /// It takes the memory of steps, which nobody runs.
    Takes,
    /// It is given up: steps need their memory.
    Ends,
}

/// What is known of training since the newest state was to be copied.
#[derive(Debug, Default)]
pub(super) struct Idle {
    /// A state that nobody trains on from.
    state: Option<StateId>,
    /// A step was run since: somebody trains on from it.
    trains: bool,
    /// A step is being run. It may take longer than [`IDLE`].
    runs_step: bool,
}

impl Idle {
    /// Another state is to be copied.
    pub(super) fn state_comes(&mut self) {
        self.trains = false;
    }

    pub(super) fn step_begins(&mut self) {
        self.runs_step = true;
    }

    pub(super) fn step_ended(&mut self, is_complete: bool) {
        self.runs_step = false;
        self.trains |= is_complete;
    }

    /// Another plan comes. A step of the one before may still be run.
    pub(super) fn begin_anew(&mut self) {
        self.trains = false;
    }

    /// What becomes of a unit of the newest state that has waited for so long: nobody can train on from it if it has waited for long, or one
    /// before it has.
    pub(super) fn alone(&mut self, newest: StateId, waited: Duration) -> Alone {
        let is_late = waited >= IDLE;
        match (self.trains, is_late) {
            (true, true) => return Alone::Ends,
            (true, false) => return Alone::Waits,
            (false, _) if self.runs_step => return Alone::Waits,
            (false, true) => self.state = Some(newest),
            (false, false) => {}
        }
        match self.state == Some(newest) {
            true => Alone::Takes,
            false => Alone::Waits,
        }
    }
}
