//! Checks what must be true after a run, whatever faults it had. Pure.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use varuna_plan::{Generation, StateId, Step, WorkerId};
use varuna_protocol::{Record, coordinator::Event};
use varuna_run_folder::{EventEntry, LoggedEvent, Metric};

mod rollbacks;
#[cfg(test)]
mod tests;

/// Relative difference of losses that is allowed: plans sum the same numbers in different orders.
pub const TOLERANCE: f64 = 1e-5;

/// The life of one worker. Times are milliseconds since 1970.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Life {
    /// Name of the worker.
    pub name: String,
    /// Id of the worker, if its log has it.
    pub worker: Option<WorkerId>,
    /// Time at which it was started.
    pub started_ms: u64,
    /// Time at which it ended.
    pub ended_ms: Option<u64>,
    /// Periods in which it could not answer the coordinator because of a fault.
    pub impaired_ms: Vec<(u64, u64)>,
    /// Whether it was killed with SIGKILL.
    pub killed: bool,
    /// Whether it had a notice.
    pub noticed: bool,
    /// Whether it could not allocate memory for a while.
    pub starved: bool,
}

impl Life {
    /// The life of a worker that is started now.
    #[must_use]
    pub fn begun(name: String, now_ms: u64) -> Life {
        Life {
            name,
            started_ms: now_ms,
            ..Life::default()
        }
    }
}

/// A commit, according to a worker's log.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Commit {
    /// Time of the commit, in milliseconds since 1970.
    pub time_ms: u64,
    /// Number of steps done.
    pub step: Step,
    /// Mean training loss of the step.
    pub loss: f64,
}

/// The files and observations that a run has left.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Number of steps of the job.
    pub steps: u64,
    /// The coordinator's exit code at the end of the job; none if it did not end.
    pub exit: Option<i32>,
    /// The published steps, in the order of their lines.
    pub published: Vec<Metric>,
    /// The event log.
    pub events: Vec<EventEntry>,
    /// For each plan, the holders of each unit.
    pub holders: BTreeMap<Generation, Vec<Vec<WorkerId>>>,
    /// The record at the end.
    pub record: Option<Record>,
    /// All workers.
    pub lives: Vec<Life>,
    /// The commits in the logs of workers, in the order of time.
    pub commits: Vec<Commit>,
    /// Problems that were observed during the run.
    pub problems: Vec<Problem>,
}

/// A violation.
#[derive(Clone, PartialEq, Debug, Serialize, thiserror::Error)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "problem")]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Problem {
    #[error("worker {name} ended by itself: {status}")]
    WorkerEnded { name: String, status: String },
    #[error("the coordinator ended by itself: {status}")]
    CoordinatorEnded { status: String },
    #[error("no step was published in the {seconds} s after the end of the last fault")]
    Stuck { seconds: u64 },
    #[error("the job did not end: the coordinator's exit code is {exit:?}")]
    NotComplete { exit: Option<i32> },
    #[error("a file is damaged: {why}")]
    Damaged { why: String },
    #[error("checkpoints that claim to be complete are not valid: {why}")]
    Checkpoints { why: String },
    #[error("after step {after} the next published step is {then}")]
    Order { after: u64, then: u64 },
    #[error("step {step} is published again, although no recovery went back before it")]
    Again { step: u64 },
    #[error("step {step}: the loss is {loss}, undisturbed {undisturbed}")]
    Loss { step: u64, loss: f64, undisturbed: f64 },
    #[error("the state after step {step} does not follow the one before it")]
    State { step: u64 },
    #[error(
        "the holders of units {units:?} had different bits after step {step}, although no fault changed any"
    )]
    StatesDiffer { step: u64, units: Vec<u32> },
    #[error("step {step} was run by generation {generation}, which has no plan")]
    NoPlan { step: u64, generation: u64 },
    #[error("the {what} {number} comes after {before}")]
    Numbers {
        what: &'static str,
        before: u64,
        number: u64,
    },
    #[error("the record does not belong to a job that has ended: {why}")]
    Record { why: String },
    #[error(
        "{lost} committed steps were lost at step {reached} although holders of every unit were alive: generation {generation} resumed from step {base}"
    )]
    StepsLost {
        lost: u64,
        reached: u64,
        base: u64,
        generation: u64,
    },
}

/// What the judge measured.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    /// Greatest difference of a loss from the undisturbed one, as a share of it.
    pub loss_difference: f64,
    /// Number of persisted plans.
    pub plans: usize,
    /// Number of recoveries, which are plans from which the run resumed.
    pub recoveries: usize,
    /// Number of coordinators that took over.
    pub terms: usize,
    /// Number of committed steps that were lost although holders of every unit were alive.
    pub steps_lost: u64,
    /// Number of committed steps that were run again because all holders of some unit were lost.
    pub steps_again: u64,
    /// Number of steps in the state of a checkpoint that nobody could report any more.
    pub unpublished: u64,
    /// Number of recoveries that went back to a checkpoint, or to the seed.
    pub restores: usize,
    /// Times from each kill of a worker to the next published step, ascending, in milliseconds.
    pub pauses_ms: Vec<u64>,
    /// Longest time between two published steps, in milliseconds.
    pub longest_ms: u64,
}

/// The result of the judge.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Verdict {
    /// Violations; empty if the run was correct.
    pub problems: Vec<Problem>,
    /// The measured figures.
    pub figures: Figures,
}

/// Checks a run by the evidence that it has left, and by the losses of an undisturbed run.
#[must_use]
pub fn judge(evidence: &Evidence, undisturbed: &[Metric]) -> Verdict {
    let mut verdict = Verdict {
        problems: evidence.problems.clone(),
        figures: Figures::default(),
    };
    if evidence.exit != Some(0) {
        verdict
            .problems
            .push(Problem::NotComplete { exit: evidence.exit });
    }
    numbers(evidence, &mut verdict);
    order(evidence, &mut verdict);
    losses(evidence, undisturbed, &mut verdict);
    states(evidence, &mut verdict);
    rollbacks::judge(evidence, &mut verdict);
    pauses(evidence, &mut verdict.figures);
    verdict
}

/// The events of the protocol with their times.
fn protocol(evidence: &Evidence) -> impl Iterator<Item = (u64, &Event)> {
    evidence.events.iter().filter_map(|entry| match &entry.event {
        LoggedEvent::Protocol(event) => Some((entry.time_ms, event)),
        LoggedEvent::Checkpoint(_) => None,
    })
}

/// Every step is published in order, and published again only if a recovery went back before it. Steps that were committed while there was
/// no coordinator may remain unpublished, if all workers that ran them have ended and a later state comes from a checkpoint.
fn order(evidence: &Evidence, verdict: &mut Verdict) {
    let bases = |only_restored: bool| -> BTreeSet<u64> {
        let base = |event: &Event| match event {
            Event::Resumed { base, restored, .. } if *restored || !only_restored => Some(base.step.0),
            _ => None,
        };
        protocol(evidence).filter_map(|(_, event)| base(event)).collect()
    };
    let (bases, restored) = (bases(false), bases(true));
    let mut last = 0;
    for step in evidence.published.iter().map(|m| m.step.0) {
        if step > last + 1 && verdict.figures.terms > 1 && restored.contains(&(step - 1)) {
            verdict.figures.unpublished += step - last - 1;
        } else if step > last + 1 {
            verdict.problems.push(Problem::Order {
                after: last,
                then: step,
            });
        } else if step <= last && !bases.contains(&(step - 1)) {
            verdict.problems.push(Problem::Again { step });
        }
        last = step;
    }
    if evidence.exit == Some(0) && last != evidence.steps {
        let then = evidence.steps + 1;
        verdict.problems.push(Problem::Order { after: last, then });
    }
}

/// A step has the loss of the undisturbed run every time that it is run, both as published and in the logs of workers.
fn losses(evidence: &Evidence, undisturbed: &[Metric], verdict: &mut Verdict) {
    let expected: BTreeMap<Step, &Metric> = undisturbed.iter().map(|m| (m.step, m)).collect();
    let published = evidence.published.iter().map(|m| (m.step, m.loss, m.eval_loss));
    let committed = evidence.commits.iter().map(|c| (c.step, c.loss, None));
    for (step, loss, eval) in published.chain(committed) {
        let Some(metric) = expected.get(&step) else {
            verdict.problems.push(Problem::Loss {
                step: step.0,
                loss,
                undisturbed: f64::NAN,
            });
            continue;
        };
        let pairs = [Some((loss, metric.loss)), eval.zip(metric.eval_loss)];
        for (loss, undisturbed) in pairs.into_iter().flatten() {
            let off = (loss - undisturbed).abs() / undisturbed.abs();
            let largest = &mut verdict.figures.loss_difference;
            *largest = largest.max(off);
            // A NaN is not within the tolerance either.
            if off.is_nan() || off > TOLERANCE {
                verdict.problems.push(Problem::Loss {
                    step: step.0,
                    loss,
                    undisturbed,
                });
            }
        }
    }
}

/// Each state follows from the one before, and was computed under a persisted plan.
fn states(evidence: &Evidence, verdict: &mut Verdict) {
    let mut last: Option<StateId> = None;
    for metric in &evidence.published {
        if last.is_some_and(|last| metric.state <= last) || metric.state.step != metric.step {
            verdict.problems.push(Problem::State { step: metric.step.0 });
        }
        last = Some(metric.state);
        if !evidence.holders.contains_key(&metric.generation) {
            verdict.problems.push(Problem::NoPlan {
                step: metric.step.0,
                generation: metric.generation.0,
            });
        }
    }
}

/// Numbers of plans and terms only grow, the record contains the greatest, and comparisons found no difference.
fn numbers(evidence: &Evidence, verdict: &mut Verdict) {
    let (mut plan, mut term) = (0, 0);
    let mut grows = |what, last: &mut u64, number: u64| {
        if number <= *last {
            let before = *last;
            verdict.problems.push(Problem::Numbers { what, before, number });
        }
        *last = number;
    };
    for (_, event) in protocol(evidence) {
        match event {
            Event::Planned { generation, .. } => {
                grows("plan", &mut plan, generation.0);
                verdict.figures.plans += 1;
            }
            Event::TookOver { term: number } => {
                grows("term", &mut term, *number);
                verdict.figures.terms += 1;
            }
            Event::Resumed { .. } => verdict.figures.recoveries += 1,
            _ => {}
        }
    }
    let differ = protocol(evidence).filter_map(|(_, event)| match event {
        Event::StatesDiffer { step, units, .. } => Some(Problem::StatesDiffer {
            step: step.0,
            units: units.iter().map(|unit| unit.0).collect(),
        }),
        _ => None,
    });
    verdict.problems.extend(differ);
    let Some(record) = &evidence.record else { return };
    let why = if evidence.exit == Some(0) && !record.done {
        "it is not done".to_owned()
    } else if record.highest.0 < plan {
        format!(
            "its highest generation is {}, and plan {plan} was made",
            record.highest
        )
    } else if record.term < term {
        format!("its term is {}, and {term} took over", record.term)
    } else {
        return;
    };
    verdict.problems.push(Problem::Record { why });
}

fn pauses(evidence: &Evidence, figures: &mut Figures) {
    let times: Vec<u64> = evidence.published.iter().map(|m| m.time_ms).collect();
    let gaps = times.windows(2).map(|w| w[1].saturating_sub(w[0]));
    figures.longest_ms = gaps.max().unwrap_or(0);
    let killed = evidence.lives.iter().filter(|l| l.killed);
    let pause = |killed: u64| {
        let next = times.iter().find(|t| **t >= killed)?;
        Some(next - killed)
    };
    figures.pauses_ms = killed.filter_map(|l| pause(l.ended_ms?)).collect();
    figures.pauses_ms.sort_unstable();
}
