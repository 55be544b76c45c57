//! The coordinator's side of the protocol: membership, generations, recovery, planned change.
//!
//! A [`Coordinator`] consists of a mode and of what outlives all modes (`shared::Shared`). Each mode is a type that owns what has a meaning
//! only in that mode; a step consumes it and returns the next one. The coordinator acts on the *latest* Status of each worker, never on a
//! change of it, so that a lost or repeated message does no harm. It persists every plan before it tells anyone. It drops no worker because
//! of an accusation: all are fenced, and those that answer are alive.

mod active;
mod adaptive_checkpoints;
mod all_of;
mod bad_links;
mod catching_up;
mod change;
mod checkpoints;
mod churn;
mod comparison;
mod config;
mod considered;
mod corruption;
mod data_errors;
mod data_readers;
mod departures;
mod ending;
mod event;
mod exhausted;
mod final_checkpoint;
mod idle_workers;
mod last_step;
mod launching;
mod left_out;
mod losses;
mod memory_limits;
mod mode;
mod observed_costs;
mod outbox;
mod parameters_first;
mod persisting;
mod planning;
mod prepared_plans;
mod progress;
mod quarantine;
mod record;
mod recovery;
mod reports;
mod resume;
mod roster;
mod run_mode;
mod shared;
mod slow_worker_trials;
mod spare_copies;
mod spare_copies_view;
mod speeds;
mod starting;
mod step_times;
mod tables;
#[cfg(test)]
mod tests;
mod turn;
mod view;

pub use config::{
    CoordinatorConfig, CoordinatorEffect, CoordinatorInput, Hello, Listing, TREE_FAN_OUT, Timing,
};
pub use event::{Divergence, Event, Outcome, RunView, Snapshot, WorkerView};
pub use left_out::{LeftOut, LeftOutReason};
pub use run_mode::RunMode;
pub use spare_copies_view::{SpareCopiesVerdict, SpareCopiesView};
pub use speeds::Observed;
pub use tables::CoordinatorTables;

use crate::message::Time;
use crate::record::Record;
use ending::Ending;
use mode::Mode;
use shared::Shared;
use turn::{Scope, Turn};
use varuna_plan::{Planner, WorkerId};

/// The coordinator's state machine.
pub struct Coordinator {
    mode: Mode,
    shared: Shared,
}

impl Coordinator {
    /// A coordinator that knows nothing yet; its first Tick asks for the record.
    #[must_use]
    pub fn new(config: CoordinatorConfig, planner: Box<dyn Planner + Send>) -> Self {
        Coordinator {
            mode: Mode::default(),
            shared: Shared::new(config, planner),
        }
    }

    /// Allows a recovery to give up all committed steps and begin again from the seed, if no other state is left. Without this such a run
    /// ends with [`Outcome::StateLost`]: hours of training are not thrown away without the user's consent.
    #[must_use]
    pub fn may_begin_anew(mut self) -> Self {
        self.shared.may_begin_anew = true;
        self
    }

    /// The record as last read or written.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.shared.record.stored
    }
    /// This coordinator's term; 0 before it has read the record.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.shared.record.term
    }
    /// Whether it has emitted Finish and takes no further input.
    #[must_use]
    pub fn ended(&self) -> bool {
        matches!(self.mode, Mode::Ended)
    }

    /// Handles one input at the time `now`, and appends what the driver must do to `effects`.
    pub fn handle(&mut self, now: Time, input: CoordinatorInput, effects: &mut Vec<CoordinatorEffect>) {
        let mode = std::mem::replace(&mut self.mode, Mode::Ended);
        let scope = Scope::of(&input);
        let mut turn = Turn { now, scope, effects };
        self.mode = match mode {
            Mode::Ended => Mode::Ended,
            mode => self.take(mode, input, &mut turn),
        };
    }

    fn take(&mut self, mut mode: Mode, input: CoordinatorInput, turn: &mut Turn<'_>) -> Mode {
        let shared = &mut self.shared;
        if input == CoordinatorInput::Tick || !bug!(TicksAloneShowPause) {
            shared.notice_own_pause(turn.now);
        }
        match input {
            CoordinatorInput::Tick => {
                shared.listen(turn);
                let lead = shared.config.timing.following;
                shared.roster.mark_leaving(turn.now, lead);
                if !matches!(mode, Mode::Starting(_)) {
                    shared.record.watch(turn, &shared.config.timing);
                }
                mode.read_again(shared, turn);
            }
            CoordinatorInput::Record(record) => return mode.read(record, shared, turn),
            CoordinatorInput::Written { ok, record } => return mode.written(ok, record, shared, turn),
            CoordinatorInput::Checkpoints(mut listing) => {
                shared.checkpoints.note_generation(listing.newest_generation);
                listing.leave_out_given_up(&shared.record.stored.trust);
                let list = &listing.complete;
                let last_step = shared.last_step();
                let last = |c: &varuna_plan::StateId| c.step >= last_step;
                if mode.is_open() && !bug!(IgnoreFinalCheckpoint) && list.iter().any(last) {
                    return mode.write(shared.record.with_done(), shared, turn);
                }
                shared.checkpoints.listed(turn.now, list, &shared.config);
                let end = (last_step, &shared.record.stored);
                shared.checkpoints.last.listed(&listing, end, turn);
                if let Some(collecting) = mode.collecting() {
                    collecting.take_listing(turn.now, listing);
                }
            }
            CoordinatorInput::StreamUp { from, hello } => {
                shared.stream_up(from, hello, turn);
                mode.note_revival();
                return mode;
            }
            CoordinatorInput::StreamDown { from } => stream_down(&mut mode, from, shared, turn),
            CoordinatorInput::Report { from, report } => mode = mode.report(from, report, shared, turn),
            CoordinatorInput::Observed { from, observed } => {
                shared.observe(from, &observed);
                return mode;
            }
            CoordinatorInput::ProcessEnded { worker } => {
                stream_down(&mut mode, worker, shared, turn);
                shared.speeds.forget(worker);
                shared.roster.process_ended(worker);
            }
            CoordinatorInput::Notice { worker, leaves_in } => shared.notice(worker, leaves_in, turn),
            CoordinatorInput::TimeSkipped(time) => {
                shared.roster.skip(time);
                shared.checkpoints.skip(time);
                return mode;
            }
            CoordinatorInput::Save => shared.want_checkpoint(),
            CoordinatorInput::MaxWorkers(most) => shared.max_workers = most,
            CoordinatorInput::MayBeginAnew(may) => shared.may_begin_anew = may,
            CoordinatorInput::Domains(domains) => {
                // The next plan uses them; no plan is made only because of them.
                shared.roster.domains = domains;
                return mode;
            }
            CoordinatorInput::LastStep(step) => shared.order_last_step(step, turn.now),
            CoordinatorInput::Stop => mode = stop(mode, shared, turn),
        }
        mode.step(shared, turn)
    }
}

/// The user ends the run. An end that has begun keeps its outcome, and a run that has diverged while something was being written has not
/// been stopped.
fn stop(mode: Mode, shared: &Shared, turn: &mut Turn<'_>) -> Mode {
    match (mode, shared.diverged) {
        (Mode::Ending(ending), _) => Mode::Ending(ending),
        (_, Some(divergence)) => Mode::Ending(Ending::diverged(divergence, turn)),
        (_, None) => Mode::Ending(Ending::new(Outcome::Stopped, turn.now)),
    }
}

fn stream_down(mode: &mut Mode, from: WorkerId, shared: &mut Shared, turn: &mut Turn<'_>) {
    if let Some(collecting) = mode.collecting()
        && !bug!(CountAnswerOfClosedStream)
    {
        collecting.forget_answer(from);
    }
    shared.lose_stream(from, turn);
}
