//! The modes of a coordinator and the transitions between them. What a mode knows is in its own type.

use super::active::Active;
use super::config::CoordinatorEffect;
use super::ending::Ending;
use super::event::{Event, Outcome};
use super::persisting::{AfterWrite, GivenUp, Persisting};
use super::recovery::{Action, Collecting};
use super::shared::Shared;
use super::starting::{Settling, Starting};
use super::turn::{Next, Turn};
use crate::message::{Report, Suspicion};
use crate::record::Record;
use varuna_plan::{Generation, Unit, WorkerId};

pub(super) enum Mode {
    /// Reads the record, to write its own term into it.
    Starting(Starting),
    /// Writes its own term into the record.
    TakingOver(Persisting),
    /// Waits for the members of an inherited plan.
    Settling(Settling),
    /// A plan is being launched or runs.
    Active(Active),
    /// Workers are fenced; waits for their inventories.
    Collecting(Collecting),
    /// Waits for a write.
    Persisting(Persisting),
    /// Releases all workers.
    Ending(Ending),
    /// Finish was emitted.
    Ended,
}

impl Default for Mode {
    fn default() -> Self {
        Mode::Starting(Starting::default())
    }
}

impl Mode {
    /// Whether the coordinator is neither starting, nor waiting for a write, nor ending.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Mode::Active(_) | Mode::Collecting(_))
    }

    /// Examines the latest information and does what is due.
    pub(super) fn step(self, shared: &mut Shared, turn: &mut Turn<'_>) -> Mode {
        if let Some(divergence) = shared.diverged
            && self.is_open()
        {
            return Mode::Ending(Ending::diverged(divergence, turn));
        }
        match self {
            Mode::Starting(mut starting) => {
                starting.step(shared, turn);
                Mode::Starting(starting)
            }
            Mode::Settling(settling) if settling.is_over(shared, turn.now) => {
                let mut active = settling.active;
                active.resume_inherited(shared, turn.now);
                Mode::Active(active).step(shared, turn)
            }
            Mode::Active(mut active) => match active.step(shared, turn) {
                Next::Stay => Mode::Active(active),
                Next::Recover(because) => recover(active, because, shared, turn),
                Next::Write(_) if shared.record.delays_writes(turn.now) => Mode::Active(active),
                Next::Write(record) => persist(active, record, shared, turn),
            },
            Mode::Collecting(mut collecting) => match collecting.step(shared, turn) {
                Action::Wait => Mode::Collecting(collecting),
                Action::Write(record) => persist(collecting.into_interrupted(), record, shared, turn),
                Action::Note(record) => Mode::Persisting(Persisting::of(
                    shared.record.write(record, turn),
                    AfterWrite::Collecting(collecting),
                )),
                Action::GiveUp(_) if shared.record.delays_writes(turn.now) => Mode::Collecting(collecting),
                Action::GiveUp(units) if bug!(GiveUpUnconfirmed) => give_up(units, shared, turn),
                Action::GiveUp(units) => {
                    let write = shared.record.write(shared.record.stored.clone(), turn);
                    Mode::Persisting(Persisting {
                        write,
                        given_up: Some(GivenUp {
                            units,
                            since: turn.now,
                            revived: false,
                        }),
                        then: AfterWrite::Active(collecting.into_interrupted()),
                    })
                }
            },
            Mode::Ending(mut ending) => match ending.step(shared, turn) {
                Some(outcome) => finish(outcome, turn),
                None => Mode::Ending(ending),
            },
            mode => mode,
        }
    }

    /// Writes the record, if that is allowed in this mode.
    pub(super) fn write(self, record: Record, shared: &mut Shared, turn: &mut Turn<'_>) -> Mode {
        match self {
            Mode::Active(active) => persist(active, record, shared, turn),
            Mode::Collecting(collecting) => persist(collecting.into_interrupted(), record, shared, turn),
            mode => mode,
        }
    }

    /// The record was read from the store.
    pub(super) fn read(self, record: Record, shared: &mut Shared, turn: &mut Turn<'_>) -> Mode {
        if record.version < shared.record.stored.version && !bug!(OlderRecordCounts) {
            return self; // an old answer: the store is asked again
        }
        match self {
            Mode::Starting(_) if record.done && !shared.resumes_after(&record) => {
                // the run had already ended; its workers still have to be told
                shared.record.term = record.term;
                shared.record.stored = record;
                Mode::Ending(Ending::new(Outcome::Done, turn.now))
            }
            Mode::Starting(starting) => {
                let write = shared.record.take_over(record, turn);
                Mode::TakingOver(Persisting::of(write, AfterWrite::Active(starting.into_active())))
            }
            _ if shared.record.is_superseded(&record) => {
                turn.event(Event::Deposed { by_term: record.term });
                finish(Outcome::Deposed, turn)
            }
            Mode::TakingOver(taking) if taking.write.is_refused() => {
                if bug!(KeepUnclearTerm) && taking.write.wrote(&record) {
                    return taken_over(taking.then, record, shared, turn);
                }
                // Two take-overs with the same term look alike, so this may be another coordinator's record. A new term is needed.
                Mode::Starting(Starting::again_at(turn.now))
            }
            // A write that was refused may have happened all the same; the record in the store tells.
            Mode::Persisting(persisting) if persisting.write.is_refused() => {
                if persisting.write.wrote(&record) {
                    return persisted(persisting, record, shared, turn);
                }
                let mut then = persisting.then;
                let fenced = shared.record.stored.highest;
                shared.record.stored = record;
                shared.record.note_failed_write(turn.now, &shared.config.timing);
                then.active().write_failed(turn.now, &shared.config.timing);
                match then {
                    // An earlier write took effect late, and put a plan into the record that this recovery's fence does not cover. Unless
                    // it is fenced, it could run while the outcome of the next write is still unclear.
                    AfterWrite::Collecting(collecting) if shared.record.stored.highest > fenced => {
                        let because = "a write of the record has happened late".to_owned();
                        recover(collecting.into_interrupted(), because, shared, turn)
                    }
                    then => go_back(then),
                }
            }
            mode => mode,
        }
    }

    /// Reads the record again if a write was refused and no read since has been answered.
    pub(super) fn read_again(&mut self, shared: &Shared, turn: &mut Turn<'_>) {
        if let Mode::TakingOver(persisting) | Mode::Persisting(persisting) = self {
            persisting.write.read_again(&shared.config.timing, turn);
        }
    }

    /// The answer to a write.
    pub(super) fn written(
        mut self,
        ok: bool,
        record: Record,
        shared: &mut Shared,
        turn: &mut Turn<'_>,
    ) -> Mode {
        let (Mode::TakingOver(Persisting { write, .. }) | Mode::Persisting(Persisting { write, .. })) =
            &mut self
        else {
            if let Mode::Ending(ending) = &mut self {
                ending.written(ok, &record);
            }
            shared.record.note_late_write(ok, record);
            return self;
        };
        if !write.wrote(&record) && !bug!(AnyAnswerIsOfThisWrite) {
            shared.record.note_late_write(ok, record);
            return self;
        }
        if !ok && !bug!(FailedWriteCounts) {
            let version = record.version;
            shared.report_problem(Event::WriteFailed { version }, turn);
            write.refuse(&shared.config.timing, turn);
            return self;
        }
        match self {
            Mode::TakingOver(taking) => taken_over(taking.then, record, shared, turn),
            Mode::Persisting(persisting) => persisted(persisting, record, shared, turn),
            mode => mode,
        }
    }

    /// A worker sent a report.
    pub(super) fn report(
        mut self,
        from: WorkerId,
        report: Report,
        shared: &mut Shared,
        turn: &mut Turn<'_>,
    ) -> Mode {
        // without a Hello it can neither be planned with nor sent anything
        if !shared.note_message(from, turn) {
            return self;
        }
        match report {
            Report::Status(status) => shared.status(from, status, turn),
            Report::Inventory(mut inventory) => {
                inventory.forget_rolled_back(&shared.record.stored.trust);
                shared.inventory(from, &inventory, turn);
                let asked = bug!(CountStaleInventory) || inventory.upto == shared.record.stored.highest;
                self.note_revival();
                if let Some(collecting) = self.collecting().filter(|_| asked) {
                    collecting.take_answer(from, inventory);
                }
            }
            Report::Suspect {
                generation,
                about,
                why,
            } => return self.suspicion(from, generation, (about, why), shared, turn),
            Report::Committed { decision } => shared.committed(decision, turn),
            Report::Commits { after, decisions } => {
                let alone = self.collecting().is_none();
                shared.commits((after, decisions), alone, turn);
            }
            Report::Digests(digests) => return self.compare(from, &digests, shared, turn),
        }
        self
    }

    /// A worker came back or answered. If the run is about to be given up, that was decided without this worker.
    pub(super) fn note_revival(&mut self) {
        if let Mode::Persisting(persisting) = self
            && let Some(given_up) = &mut persisting.given_up
        {
            given_up.revived = true;
        }
    }

    /// The recovery under way, also while its waiting time is being written.
    pub(super) fn collecting(&mut self) -> Option<&mut Collecting> {
        match self {
            Mode::Collecting(collecting)
            | Mode::Persisting(Persisting {
                then: AfterWrite::Collecting(collecting),
                ..
            }) => Some(collecting),
            _ => None,
        }
    }

    /// A worker suspects another worker, or the link to it.
    fn suspicion(
        self,
        from: WorkerId,
        generation: Generation,
        (about, why): (WorkerId, Suspicion),
        shared: &mut Shared,
        turn: &mut Turn<'_>,
    ) -> Mode {
        // This counts also if the step is already being stopped: what another worker reported first does not show who can read.
        match why {
            Suspicion::NoData if about == from => shared.note_data_error(from, generation),
            Suspicion::NoMemory(_) if about == from => shared.note_exhausted(from, generation),
            _ => {}
        }
        let here = shared.record.plans().any(|p| p.generation == generation);
        let settling = matches!(self, Mode::Settling(_)) && !bug!(ForgetSuspicionWhileSettling);
        if !here || !(settling || matches!(self, Mode::Active(_) | Mode::Persisting(_))) {
            return self;
        }
        let next = shared.record.stored.next.as_ref();
        let of_change = next.is_some_and(|n| n.generation == generation);
        let because = shared.note_suspicion(from, about, why, turn.now);
        match self {
            Mode::Active(mut active) if of_change && active.may_cancel(generation) => {
                active.cancel_because = Some((generation, because));
                Mode::Active(active)
            }
            Mode::Active(active) => recover(active, because, shared, turn),
            Mode::Persisting(mut persisting) => {
                persisting.then.active().suspicion = Some((generation, because)); // looked at once the write is done
                Mode::Persisting(persisting)
            }
            Mode::Settling(mut settling) => {
                settling.active.suspicion = Some((generation, because));
                Mode::Settling(settling)
            }
            mode => mode,
        }
    }
}

fn recover(active: Active, because: String, shared: &mut Shared, turn: &mut Turn<'_>) -> Mode {
    Mode::Collecting(Collecting::begin(active, because, shared, turn))
}

pub(super) fn persist(active: Active, record: Record, shared: &mut Shared, turn: &mut Turn<'_>) -> Mode {
    if bug!(SendBeforePersist)
        && let Some(plan) = record.next.as_ref().or(record.plan.as_ref())
    {
        for to in shared.roster.connected() {
            turn.send(to, crate::message::Order::Prepare(plan.clone()));
        }
    }
    let write = shared.record.write(record, turn);
    Mode::Persisting(Persisting::of(write, AfterWrite::Active(active)))
}

/// The record now has this coordinator's term.
fn taken_over(then: AfterWrite, record: Record, shared: &mut Shared, turn: &mut Turn<'_>) -> Mode {
    shared.record.taken_over(record);
    shared.mark_recorded_corrupt(turn.now);
    shared.progress.at = turn.now;
    turn.event(Event::TookOver {
        term: shared.record.term,
    });
    if !shared.record.stored.may_train() {
        return continue_after_write(then, shared, turn);
    }
    let AfterWrite::Active(active) = then else {
        return go_back(then);
    };
    Mode::Settling(Settling::new(active, shared, turn.now))
}

/// Returns to the mode before the write.
fn go_back(then: AfterWrite) -> Mode {
    match then {
        AfterWrite::Active(active) => Mode::Active(active),
        AfterWrite::Collecting(collecting) => Mode::Collecting(collecting),
    }
}

/// The record is written.
fn persisted(persisting: Persisting, record: Record, shared: &mut Shared, turn: &mut Turn<'_>) -> Mode {
    let Persisting {
        mut then, given_up, ..
    } = persisting;
    if record.highest != shared.record.stored.highest {
        then.active().planned_at = turn.now;
    }
    let before = std::mem::replace(&mut shared.record.stored, record);
    shared.record.note_write();
    match given_up {
        Some(given_up) if given_up.needs_recheck(turn.now, &shared.config.timing) => {
            let because = "what is left may have changed before the run was given up".to_owned();
            let AfterWrite::Active(active) = then else {
                return go_back(then);
            };
            return recover(active, because, shared, turn);
        }
        Some(given_up) => return give_up(given_up.units, shared, turn),
        None => {}
    }
    if shared.record.is_recovery_from(&before) || bug!(EveryWriteIsProgress) {
        shared.progress.at = turn.now; // a planned change must never postpone the detection of a death
    }
    shared.emit_write(&before, turn);
    continue_after_write(then, shared, turn)
}

fn continue_after_write(then: AfterWrite, shared: &mut Shared, turn: &mut Turn<'_>) -> Mode {
    if shared.record.stored.done {
        turn.event(Event::Done {
            step: shared.last_step(),
        });
        return Mode::Ending(Ending::new(Outcome::Done, turn.now));
    }
    go_back(then).step(shared, turn)
}

/// The state of these units is lost.
fn give_up(units: Vec<Unit>, shared: &mut Shared, turn: &mut Turn<'_>) -> Mode {
    turn.event(Event::Lost { units: units.clone() });
    shared.release_all(turn);
    finish(Outcome::StateLost { units }, turn)
}

fn finish(outcome: Outcome, turn: &mut Turn<'_>) -> Mode {
    turn.push(CoordinatorEffect::Finish(outcome));
    Mode::Ended
}
