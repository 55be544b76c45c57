//! Worker to coordinator: the hello (`hello.rs`), the protocol's reports, and metrics.

use crate::error::{WireError, need};
use crate::hello::{Hello, hello_to_wire, read_hello};
use crate::metrics::{self, StepMetrics};
use crate::state::{
    decision_to_wire, id_to_wire, progress_to_wire, read_decision, read_id, read_progress, read_run,
};
use crate::v1;
use std::collections::{BTreeMap, BTreeSet};
use v1::up::Message as Wire;
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, Generation, StateId, Step, Unit, WorkerId};
use varuna_protocol::message::TOLD_AT_ONCE;
use varuna_protocol::{
    Digests, Following, Inventory, Keeping, MemoryShortage, Phase, Prepared, Ran, Report, Status, Suspicion,
};

/// Longest text about failing uploads, bytes. Errors of stores have addresses, paths and the store's own words; it is sent every second.
pub const UPLOADS_FAIL_BYTES_MAX: usize = 400;
/// Constraint on lists of units.
const ONCE: &str = "each unit at most once";

/// A message from a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum Upward {
    /// First on every stream.
    Hello(Hello),
    /// A report of the worker's `Member`.
    Report(Report),
    /// Its status while its uploads of checkpoints fail.
    UploadsFail {
        /// The status.
        status: Status,
        /// The last error, for people. The end of one that is longer than [`UPLOADS_FAIL_BYTES_MAX`] is left out.
        why: String,
    },
    /// A step's figures from the worker's engine.
    Metrics(StepMetrics),
}

impl Upward {
    /// The wire form.
    #[must_use]
    pub fn to_wire(&self) -> v1::Up {
        let message = match self {
            Upward::Hello(hello) => Wire::Hello(hello_to_wire(hello)),
            Upward::Report(report) => report_to_wire(report),
            Upward::UploadsFail { status, why } => Wire::Status(v1::WorkerStatus {
                uploads_fail: Some(shortened(why.clone())),
                ..status_to_wire(status)
            }),
            Upward::Metrics(metrics) => Wire::Metrics(metrics::to_wire(metrics)),
        };
        v1::Up {
            message: Some(message),
        }
    }

    /// Reads a message from the wire and checks it.
    ///
    /// # Errors
    /// Another version, a missing field, or a value that is not allowed.
    pub fn from_wire(up: v1::Up) -> Result<Upward, WireError> {
        Ok(match need(up.message, "Up", "message")? {
            Wire::Hello(hello) => Upward::Hello(read_hello(hello)?),
            Wire::Status(mut wire) => {
                let why = wire.uploads_fail.take().map(shortened);
                let status = read_status(&wire)?;
                match why {
                    Some(why) => Upward::UploadsFail { status, why },
                    None => Upward::Report(Report::Status(status)),
                }
            }
            Wire::Suspect(s) => Upward::Report(Report::Suspect {
                generation: Generation(s.generation),
                about: WorkerId(s.about),
                why: read_suspicion(&s)?,
            }),
            Wire::Inventory(inventory) => Upward::Report(Report::Inventory(read_inventory(inventory)?)),
            Wire::Committed(c) => Upward::Report(Report::Committed {
                decision: read_decision(need(c.decision, "Committed", "decision")?)?,
            }),
            Wire::Commits(c) => Upward::Report(read_commits(c)?),
            Wire::Digests(d) => Upward::Report(Report::Digests(read_digests(d)?)),
            Wire::Metrics(metrics) => Upward::Metrics(metrics::read(&metrics)),
        })
    }
}

fn report_to_wire(report: &Report) -> Wire {
    match report {
        Report::Status(status) => Wire::Status(status_to_wire(status)),
        Report::Suspect {
            generation,
            about,
            why,
        } => Wire::Suspect(v1::Suspect {
            generation: generation.0,
            about: about.0,
            why: match why {
                // These suspicions have separate fields, because an older coordinator refuses a suspicion that it does not know.
                Suspicion::Gone | Suspicion::NoData | Suspicion::NoMemory(_) => v1::Suspicion::Gone,
                Suspicion::Unreachable => v1::Suspicion::Unreachable,
                Suspicion::Damaged => v1::Suspicion::Damaged,
            }
            .into(),
            no_data: *why == Suspicion::NoData,
            no_memory: match why {
                Suspicion::NoMemory(shortage) => Some(v1::NoMemory {
                    needed_bytes: shortage.needed_bytes,
                    free_bytes: shortage.free_bytes,
                }),
                Suspicion::Gone | Suspicion::Unreachable | Suspicion::Damaged | Suspicion::NoData => None,
            },
        }),
        Report::Inventory(inventory) => Wire::Inventory(inventory_to_wire(inventory)),
        Report::Committed { decision } => Wire::Committed(v1::Committed {
            decision: Some(decision_to_wire(decision)),
        }),
        Report::Commits { after, decisions } => Wire::Commits(v1::Commits {
            after: after.0,
            decisions: decisions.iter().map(decision_to_wire).collect(),
        }),
        Report::Digests(digests) => Wire::Digests(digests_to_wire(digests)),
    }
}

fn read_suspicion(suspect: &v1::Suspect) -> Result<Suspicion, WireError> {
    match v1::Suspicion::try_from(suspect.why) {
        Ok(v1::Suspicion::Gone) if suspect.no_data => Ok(Suspicion::NoData),
        Ok(v1::Suspicion::Gone) => Ok(match &suspect.no_memory {
            Some(shortage) => Suspicion::NoMemory(MemoryShortage {
                needed_bytes: shortage.needed_bytes,
                free_bytes: shortage.free_bytes,
            }),
            None => Suspicion::Gone,
        }),
        Ok(v1::Suspicion::Unreachable) => Ok(Suspicion::Unreachable),
        Ok(v1::Suspicion::Damaged) => Ok(Suspicion::Damaged),
        Err(_) => Err(WireError::value("Suspect", "why", suspect.why, SUSPICIONS)),
    }
}

fn digests_to_wire(digests: &Digests) -> v1::Digests {
    let unit = |(unit, digest): &(Unit, u64)| v1::UnitDigest {
        unit: unit.0,
        digest: *digest,
    };
    v1::Digests {
        id: Some(id_to_wire(digests.id)),
        saved: digests.saved,
        units: digests.units.iter().map(unit).collect(),
    }
}

fn read_digests(digests: v1::Digests) -> Result<Digests, WireError> {
    const M: &str = "Digests";
    let mut seen = BTreeSet::new();
    if let Some(again) = digests.units.iter().find(|d| !seen.insert(d.unit)) {
        let found = format!("unit {} twice", again.unit);
        return Err(WireError::value(M, "units", found, ONCE));
    }
    Ok(Digests {
        id: read_id(need(digests.id, M, "id")?)?,
        saved: digests.saved,
        units: digests.units.iter().map(|d| (Unit(d.unit), d.digest)).collect(),
    })
}

fn read_commits(commits: v1::Commits) -> Result<Report, WireError> {
    if commits.decisions.len() > TOLD_AT_ONCE {
        let found = format!("{} decisions", commits.decisions.len());
        return Err(WireError::value("Commits", "decisions", found, "256 at most"));
    }
    let decisions: Result<Vec<Decision>, WireError> =
        commits.decisions.into_iter().map(read_decision).collect();
    Ok(Report::Commits {
        after: Step(commits.after),
        decisions: decisions?,
    })
}

fn status_to_wire(status: &Status) -> v1::WorkerStatus {
    v1::WorkerStatus {
        generation: status.generation.0,
        fenced: status.fenced.0,
        phase: phase_to_wire(status.phase).into(),
        based: status.based,
        connected: status.connected,
        next: status.next.0,
        next_connected: status.next_connected,
        at: Some(id_to_wire(status.at)),
        draining: status.draining,
        last_step: status.last_step.0,
        following: following_to_wire(status.following).into(),
        parameters_first: status.parameters_first,
        keeping: keeping_to_wire(status.keeping).into(),
        uploads_fail: None,
        copied_step: match status.following {
            Following::Copied(step) => Some(step.0),
            _ => None,
        },
    }
}

/// A text of at most [`UPLOADS_FAIL_BYTES_MAX`] bytes.
fn shortened(mut text: String) -> String {
    const CUT: &str = "...";
    if text.len() > UPLOADS_FAIL_BYTES_MAX {
        text.truncate(text.floor_char_boundary(UPLOADS_FAIL_BYTES_MAX - CUT.len()));
        text.push_str(CUT);
    }
    text
}

fn keeping_to_wire(keeping: Keeping) -> v1::Keeping {
    match keeping {
        Keeping::Unable => v1::Keeping::Unable,
        Keeping::Able => v1::Keeping::Able,
        Keeping::InStep => v1::Keeping::InStep,
    }
}

fn following_to_wire(following: Following) -> v1::Following {
    match following {
        Following::Unable => v1::Following::Unable,
        // The step is a field of its own, which older coordinators ignore.
        Following::Able | Following::Copied(_) => v1::Following::Able,
        Following::CaughtUp => v1::Following::CaughtUp,
    }
}

fn read_status(status: &v1::WorkerStatus) -> Result<Status, WireError> {
    const M: &str = "WorkerStatus";
    let phase =
        read_phase(status.phase, M)?.ok_or_else(|| WireError::value(M, "phase", status.phase, PHASES))?;
    Ok(Status {
        generation: Generation(status.generation),
        fenced: Generation(status.fenced),
        phase,
        based: status.based,
        connected: status.connected,
        next: Generation(status.next),
        next_connected: status.next_connected,
        at: read_id(need(status.at, M, "at")?)?,
        draining: status.draining,
        last_step: Step(status.last_step),
        following: match v1::Following::try_from(status.following) {
            Ok(v1::Following::Unable) => Following::Unable,
            Ok(v1::Following::Able) => {
                let copied = |step| Following::Copied(Step(step));
                status.copied_step.map_or(Following::Able, copied)
            }
            Ok(v1::Following::CaughtUp) => Following::CaughtUp,
            Err(_) => return Err(WireError::value(M, "following", status.following, FOLLOWING)),
        },
        keeping: match v1::Keeping::try_from(status.keeping) {
            Ok(v1::Keeping::Unable) => Keeping::Unable,
            Ok(v1::Keeping::Able) => Keeping::Able,
            Ok(v1::Keeping::InStep) => Keeping::InStep,
            Err(_) => return Err(WireError::value(M, "keeping", status.keeping, KEEPING)),
        },
        parameters_first: status.parameters_first,
    })
}

/// The numbers of phases.
const PHASES: &str = "1 to 5";
/// The values of `WorkerStatus.following`.
const FOLLOWING: &str = "0 (unable), 1 (able) or 2 (caught up)";
/// The values of `WorkerStatus.keeping`.
const KEEPING: &str = "0 (unable), 1 (able) or 2 (in step)";
/// The values of `Suspect.why`.
const SUSPICIONS: &str = "0 (gone), 1 (unreachable) or 2 (damaged)";

pub(crate) fn phase_to_wire(phase: Phase) -> v1::Phase {
    match phase {
        Phase::Idle => v1::Phase::Idle,
        Phase::Source => v1::Phase::Source,
        Phase::Loading => v1::Phase::Loading,
        Phase::Ready => v1::Phase::Ready,
        Phase::Running => v1::Phase::Running,
    }
}

/// The phase; none if it is unspecified.
pub(crate) fn read_phase(phase: i32, message: &'static str) -> Result<Option<Phase>, WireError> {
    Ok(match v1::Phase::try_from(phase) {
        Ok(v1::Phase::Unspecified) => None,
        Ok(v1::Phase::Idle) => Some(Phase::Idle),
        Ok(v1::Phase::Source) => Some(Phase::Source),
        Ok(v1::Phase::Loading) => Some(Phase::Loading),
        Ok(v1::Phase::Ready) => Some(Phase::Ready),
        Ok(v1::Phase::Running) => Some(Phase::Running),
        Err(_) => return Err(WireError::value(message, "phase", phase, PHASES)),
    })
}

fn inventory_to_wire(inventory: &Inventory) -> v1::Inventory {
    let held = |(unit, id): (&Unit, &StateId)| v1::HeldUnit {
        unit: unit.0,
        id: Some(id_to_wire(*id)),
    };
    let prepared = |(unit, p): (&Unit, &Prepared)| v1::PreparedUnit {
        unit: unit.0,
        run_gen: p.run_gen.0,
        step: p.step.0,
        norm: Some(v1::UnitNorm {
            norm2: Some(p.norm.norm2),
            overflow: p.norm.overflow,
            loss: Some(p.norm.loss),
            eval_loss: p.norm.eval_loss,
            before: Some(progress_to_wire(p.norm.before)),
        }),
    };
    v1::Inventory {
        upto: inventory.upto.0,
        units: inventory.units.iter().map(held).collect(),
        prepared: inventory.prepared.iter().map(prepared).collect(),
        ran: inventory.ran.map(|r| v1::Ran {
            generation: r.generation.0,
            step: r.step.0,
            norm_put_in: r.norm_put_in,
        }),
        decision: inventory.decision.as_ref().map(decision_to_wire),
    }
}

fn read_inventory(inventory: v1::Inventory) -> Result<Inventory, WireError> {
    const M: &str = "Inventory";
    let mut units = BTreeMap::new();
    for held in inventory.units {
        let id = read_id(need(held.id, "HeldUnit", "id")?)?;
        if units.insert(Unit(held.unit), id).is_some() {
            return Err(WireError::value(
                M,
                "units",
                format!("unit {} twice", held.unit),
                ONCE,
            ));
        }
    }
    let mut prepared = BTreeMap::new();
    for p in inventory.prepared {
        let norm = need(p.norm, "PreparedUnit", "norm")?;
        let (run_gen, step) = read_run(p.run_gen, p.step)?;
        let entry = Prepared {
            run_gen,
            step,
            norm: UnitNorm {
                norm2: need(norm.norm2, "UnitNorm", "norm2")?,
                overflow: norm.overflow,
                before: read_progress(need(norm.before, "UnitNorm", "before")?)?,
                loss: need(norm.loss, "UnitNorm", "loss")?,
                eval_loss: norm.eval_loss,
            },
        };
        if prepared.insert(Unit(p.unit), entry).is_some() {
            return Err(WireError::value(
                M,
                "prepared",
                format!("unit {} twice", p.unit),
                ONCE,
            ));
        }
    }
    Ok(Inventory {
        upto: Generation(inventory.upto),
        units,
        prepared,
        ran: inventory.ran.map(read_ran).transpose()?,
        decision: inventory.decision.map(read_decision).transpose()?,
    })
}

fn read_ran(ran: v1::Ran) -> Result<Ran, WireError> {
    let (generation, step) = read_run(ran.generation, ran.step)?;
    Ok(Ran {
        generation,
        step,
        norm_put_in: ran.norm_put_in,
    })
}
