//! The engine's own thread: takes commands in order, answers with events.
//!
//! The thread owns the device and all libtorch objects. It never talks to the coordinator and decides nothing. A fence reaches it through
//! `Link::abort`, which ends every wait of the running step, and the [`Command::Quiesce`] that follows; its answer proves that the engine
//! itself has stopped, not only its control task.

mod failed_step;

use crate::engine::{Compute, EngineError, SegmentTiming, StepTimings, Timeline, panic_message};
use crate::state::{UnitSnapshot, UnitState};
use crate::stopwatch::{Took, timed};
use crate::transport::Link;
pub use failed_step::FailedStep;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, Generation, Plan, StateId, Step, Unit, WorkerId};
use varuna_protocol::Prepared;

/// Commands that may wait for the engine; the agent keeps what is more.
const QUEUE: usize = 1024;

/// Who receives data of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recipient {
    /// Generation of the connection.
    pub generation: Generation,
    /// The peer.
    pub to: WorkerId,
    /// The unit.
    pub unit: Unit,
}

/// The step whose gradient is given to a peer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum GradientOf {
    /// The step is decided, and about to be applied: for followers of the unit.
    Decided(Decision),
    /// The step was run: for the keeper of the unit's spare copy.
    Prepared(Prepared),
}

impl GradientOf {
    /// The step changes no parameter: its gradient is not looked at.
    fn is_skipped(&self) -> bool {
        match self {
            GradientOf::Decided(decision) => decision.overflow,
            GradientOf::Prepared(prepared) => prepared.norm.overflow,
        }
    }
}

/// Who reads a state that is sent to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// The connection, part by part: no state changes meanwhile. The first step may be computed.
    Connection,
    /// A copy is made at once and sent from: the next optimizer step must not wait for the network.
    Copy,
}

/// Commands to the engine, carried out one after the other.
#[expect(missing_docs, reason = "the fields are named by their types")]
pub enum Command {
    /// Make the initial state of a unit from the job's seed. Answer: [`Event::Loaded`].
    Initialise { unit: Unit },
    /// Take over a unit's state that came from a peer or a checkpoint. Answer: [`Event::Loaded`].
    Adopt {
        unit: Unit,
        id: StateId,
        state: UnitState,
    },
    /// Run a step until its gradients are reduced. Answer: [`Event::Prepared`] or [`Event::StepFailed`].
    Run {
        plan: Arc<Plan>,
        step: Step,
        deadline: Duration,
        link: Arc<dyn Link>,
    },
    /// Confirm that nothing runs any more. Answer: [`Event::Stopped`].
    Quiesce,
    /// Apply a decision to units whose gradients are reduced. Answer: [`Event::Applied`].
    Apply { decision: Decision, units: Vec<Unit> },
    /// Copy a unit's reduced gradient, if its step is not known to be skipped, for a peer that follows the unit or keeps its spare copy.
    /// Answer: [`Event::Gradient`].
    Gradient { recipient: Recipient, of: GradientOf },
    /// Apply a decision to a unit that is followed or kept, with the gradient that its holder has sent, beside the next step where that can be. Answer:
    /// [`Event::Loaded`].
    ApplyForwarded {
        unit: Unit,
        decision: Decision,
        gradient: Vec<f32>,
    },
    /// Free the state of all units that are not in `keep`. `copies`: those that are only spare copies from now on, here or still to come.
    Free { keep: Vec<Unit>, copies: Vec<Unit> },
    /// Give read access to a unit's state as it is now, which is `id`. Answer: [`Event::Snapshot`].
    Snapshot { unit: Unit, id: StateId },
    /// Give read access to these units' state as it is now, which is `id`, to compare it. Answer: [`Event::Compared`].
    Compare {
        id: StateId,
        saved: bool,
        units: Vec<Unit>,
    },
    /// Give read access to a unit's state for a peer. Answer: [`Event::Exported`].
    Export {
        recipient: Recipient,
        id: StateId,
        decision: Option<Decision>,
        reader: Reader,
    },
}

impl Command {
    /// The units that must be here for it. Those of a step, and those that stay, the engine knows itself.
    fn units(&self) -> Vec<Unit> {
        match self {
            Command::Initialise { unit } | Command::Adopt { unit, .. } | Command::Snapshot { unit, .. } => {
                vec![*unit]
            }
            Command::Gradient { recipient, .. } | Command::Export { recipient, .. } => vec![recipient.unit],
            Command::Apply { units, .. } | Command::Compare { units, .. } => units.clone(),
            Command::Run { .. }
            | Command::Quiesce
            | Command::ApplyForwarded { .. }
            | Command::Free { .. } => Vec::new(),
        }
    }
}

/// A result of the engine.
#[expect(missing_docs, reason = "the fields are named by their types")]
pub enum Event {
    /// A unit is at `id` now.
    Loaded { unit: Unit, id: StateId },
    /// All units of this worker are reduced for the step.
    Prepared {
        generation: Generation,
        step: Step,
        units: Vec<(Unit, UnitNorm)>,
        timings: StepTimings,
        segment_timings: Vec<SegmentTiming>,
        timeline: Option<Timeline>,
    },
    /// The step failed, or was stopped by a fence.
    StepFailed(FailedStep),
    /// Nothing runs any more. `prepared`: the units of the last step whose gradients are completely reduced.
    Stopped { prepared: Vec<(Unit, UnitNorm)> },
    /// The decision is applied.
    Applied { decision: Decision, took: Took },
    /// A copy of a state for a checkpoint.
    Snapshot {
        unit: Unit,
        id: StateId,
        snapshot: UnitSnapshot,
    },
    /// For a comparison with the other holders.
    Compared {
        id: StateId,
        saved: bool,
        snapshots: Vec<(Unit, UnitSnapshot)>,
    },
    /// A state for a peer.
    Exported {
        recipient: Recipient,
        id: StateId,
        decision: Option<Decision>,
        reader: Reader,
        snapshot: UnitSnapshot,
    },
    /// For a peer that follows the unit or keeps its spare copy.
    Gradient {
        recipient: Recipient,
        of: GradientOf,
        gradient: Vec<f32>,
    },
    /// The engine cannot go on. The process must end, since its state cannot be trusted.
    Fatal(EngineError),
}

/// Starts the thread, which computes with `threads` of libtorch's and calls `emit` for each event. `emit` may block, but only briefly.
pub fn start<E: Compute>(
    engine: E,
    threads: u32,
    emit: impl Fn(Event) + Send + Sync + 'static,
) -> std::io::Result<SyncSender<Command>> {
    let (commands, inbox) = sync_channel(QUEUE);
    let emit = Arc::new(emit);
    std::thread::Builder::new().name("engine".into()).spawn(move || {
        tch::set_num_threads(i32::try_from(threads).unwrap_or(1));
        let mut thread = Thread {
            engine,
            prepared: Vec::new(),
            without_memory: 0,
            emit: Arc::clone(&emit),
        };
        // The process must end: a worker whose engine is gone would never answer a fence.
        let served = catch_unwind(AssertUnwindSafe(|| thread.serve(&inbox)));
        if let Err(panic) = served {
            emit(Event::Fatal(EngineError::Panicked(panic_message(&*panic))));
        }
    })?;
    Ok(commands)
}

struct Thread<E, T> {
    engine: E,
    /// Units of the last step whose gradients are completely reduced and not applied.
    prepared: Vec<(Unit, UnitNorm)>,
    /// Steps in a row for which the device had no memory.
    without_memory: u32,
    emit: Arc<T>,
}

impl<E: Compute, T: Fn(Event) + Send + Sync + 'static> Thread<E, T> {
    fn serve(&mut self, inbox: &Receiver<Command>) {
        while let Ok(command) = inbox.recv() {
            if let Err(error) = self.carry_out(command) {
                (self.emit)(Event::Fatal(error));
                return;
            }
        }
    }

    fn carry_out(&mut self, command: Command) -> Result<(), EngineError> {
        self.take_adopted(&command)?;
        self.engine.recall(&command.units())?;
        let event = match command {
            Command::Initialise { unit } => {
                self.engine.initialise(unit)?;
                Event::Loaded {
                    unit,
                    id: StateId::INITIAL,
                }
            }
            Command::Adopt { unit, id, state } => {
                if !self.engine.adopt(unit, id, &state)? {
                    self.prepared.retain(|(u, _)| *u != unit);
                }
                Event::Loaded { unit, id }
            }
            Command::Run {
                plan,
                step,
                deadline,
                link,
            } => self.run(&plan, step, Instant::now() + deadline, &link)?,
            Command::Quiesce => Event::Stopped {
                prepared: self.prepared.clone(),
            },
            Command::Apply { decision, units } => {
                let took = timed(|| self.engine.apply(&decision, &units))?;
                self.prepared.retain(|(u, _)| !units.contains(u));
                Event::Applied { decision, took }
            }
            Command::Gradient { recipient, of } => self.gradient(recipient, of)?,
            Command::ApplyForwarded {
                unit,
                decision,
                gradient,
            } => return self.apply_forwarded(unit, &decision, gradient),
            Command::Free { keep, copies } => {
                let freed = self.engine.free(&keep);
                freed.and_then(|()| self.engine.keep_copies(&copies))?;
                self.prepared.retain(|(u, _)| keep.contains(u));
                return Ok(());
            }
            Command::Snapshot { unit, id } => Event::Snapshot {
                unit,
                id,
                snapshot: self.engine.snapshot(unit)?,
            },
            Command::Compare { id, saved, units } => self.compare(id, saved, units)?,
            Command::Export {
                recipient,
                id,
                decision,
                reader,
            } => Event::Exported {
                recipient,
                id,
                decision,
                reader,
                snapshot: match reader {
                    // Copies on the device would stay there until they are sent, beside the units that this worker loads meanwhile.
                    Reader::Connection => self.engine.share(recipient.unit)?,
                    Reader::Copy => self.engine.snapshot(recipient.unit)?,
                },
            },
        };
        (self.emit)(event);
        Ok(())
    }

    /// Takes over what was adopted beside a step. A step that computes without some state does not wait for it.
    fn take_adopted(&mut self, before: &Command) -> Result<(), EngineError> {
        let needs_none = matches!(before, Command::Run { plan, step, .. } if plan.sends_parameters_in(*step));
        for (unit, has_gradient) in self.engine.take_adopted(!needs_none)? {
            if !has_gradient {
                self.prepared.retain(|(u, _)| *u != unit);
            }
        }
        Ok(())
    }

    /// The answer may come while a step runs.
    fn apply_forwarded(
        &mut self,
        unit: Unit,
        decision: &Decision,
        gradient: Vec<f32>,
    ) -> Result<(), EngineError> {
        self.prepared.retain(|(u, _)| *u != unit);
        let (emit, id) = (Arc::clone(&self.emit), decision.id);
        let done = move |applied| {
            emit(match applied {
                Ok(()) => Event::Loaded { unit, id },
                Err(error) => Event::Fatal(error),
            });
        };
        self.engine
            .apply_in_background(decision, unit, gradient, Box::new(done))
    }

    /// For a skipped step there is no gradient to apply: only its decision is sent.
    fn gradient(&self, recipient: Recipient, of: GradientOf) -> Result<Event, EngineError> {
        let gradient = match of.is_skipped() {
            true => Vec::new(),
            false => self.engine.gradient(recipient.unit)?,
        };
        Ok(Event::Gradient {
            recipient,
            of,
            gradient,
        })
    }

    fn compare(&self, id: StateId, saved: bool, units: Vec<Unit>) -> Result<Event, EngineError> {
        let share = |unit: Unit| Ok((unit, self.engine.snapshot(unit)?));
        let snapshots: Result<Vec<_>, EngineError> = units.into_iter().map(share).collect();
        let snapshots = snapshots?;
        Ok(Event::Compared { id, saved, snapshots })
    }

    fn run(
        &mut self,
        plan: &Plan,
        step: Step,
        deadline: Instant,
        link: &Arc<dyn Link>,
    ) -> Result<Event, EngineError> {
        self.prepared.clear();
        match self.engine.run_step(plan, step, link, deadline) {
            Ok(report) => {
                self.without_memory = 0;
                self.prepared.clone_from(&report.prepared);
                Ok(Event::Prepared {
                    generation: plan.generation,
                    step,
                    units: report.prepared,
                    timings: report.timings,
                    segment_timings: report.segment_timings,
                    timeline: report.timeline,
                })
            }
            Err(failure) => self.failed(plan.generation, failure).map(Event::StepFailed),
        }
    }
}
