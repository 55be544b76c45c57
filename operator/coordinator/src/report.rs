//! What is reported about a run, and which of its changes cannot wait. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use std::time::SystemTime;
use varuna_api::crd::{
    MESSAGES_MAX, NOTICES_BYTES_MAX, RECOVERIES_MAX, RUN_BYTES_MAX, Recovery, RunCheckpoints, RunEnd,
    RunMessage, RunSpec, RunStatus, entry_bytes,
};
use varuna_coordinator::recoveries::CompletedRecovery;
use varuna_coordinator::{CheckpointHealth, CoordinatorError, Outcome, RunMode, View};
use varuna_plan::{Generation, Layout};
use varuna_protocol::coordinator::WorkerView;

/// A recovery that waits to hear from the operator that a worker has certainly ended is reported after this time. Most recoveries do not
/// need that, and have a plan by then. A plan without a worker that had a place is also reported after this time: then the next pod may be
/// evicted.
const MISSED: Duration = Duration::from_millis(500);
/// Changes that are only shown are reported this long after the first one. One report then has the plan without a worker, and often also
/// the plan with its replacement.
const SHOWN: Duration = Duration::from_secs(3);
/// While the job trains, a worker without a place that comes or goes, and a mere sentence, wait for the next plan or the next report of
/// steps. Nobody acts on them. Otherwise a replaced pod would cost three reports: when the old one has gone, when the new one has come, and
/// with the plan.
const WITH_STEPS: Duration = Duration::from_secs(15);
/// Bytes of a message: one may name all workers, and an Event, which it becomes, has 1,000.
const MESSAGE_BYTES_MAX: usize = 1000;
/// With more workers than these, their details are left out of what is written: people read the coordinator's page, and the operator does not read them.
const DETAILED_MAX: usize = 512;
/// Bytes of the object that are neither a report, nor locations of nodes, nor notices: its metadata, and nodes that come before the next report.
const OTHER_BYTES: usize = 64 << 10;
/// Messages of one coordinator; those of the next one have greater numbers.
const MESSAGES_OF_ONE: i64 = 1 << 32;

/// The newest messages of a coordinator, oldest first: its log, and sentences about recoveries; and its newest recoveries.
#[derive(Clone, PartialEq, Debug)]
pub struct Messages {
    newest: VecDeque<RunMessage>,
    recoveries: VecDeque<Recovery>,
    next: i64,
    /// Number of the last entry of the log that was taken.
    taken: u64,
}

impl Messages {
    /// The messages of the coordinator with this number, which has reported none yet.
    #[must_use]
    pub fn new(coordinator: i64) -> Messages {
        Messages {
            newest: VecDeque::new(),
            recoveries: VecDeque::new(),
            next: coordinator.saturating_mul(MESSAGES_OF_ONE) + 1,
            taken: 0,
        }
    }

    /// Takes what is new in the log.
    pub fn take(&mut self, log: &VecDeque<(u64, String)>) {
        let taken = self.taken;
        for (number, text) in log.iter().filter(|(number, _)| *number > taken) {
            self.taken = *number;
            self.add(false, text.clone());
        }
    }

    /// Adds a sentence about a recovery or a change of plan that is over.
    pub fn resumed(&mut self, text: String) {
        self.add(true, text);
    }

    /// Takes a recovery or a change of plan that is over at this time.
    pub fn recovered(&mut self, at: SystemTime, over: &CompletedRecovery) {
        let Some(at) = time(at) else { return };
        let number = |n: u128| i64::try_from(n).unwrap_or(i64::MAX);
        self.recoveries.push_back(Recovery {
            at,
            cause: over.cause.label().to_owned(),
            workers_lost: number(over.workers as u128),
            pause_ms: number(over.pause.as_millis()),
            steps_lost: number(over.lost.into()),
        });
        if self.recoveries.len() > RECOVERIES_MAX {
            self.recoveries.pop_front();
        }
    }

    fn add(&mut self, resumed: bool, mut text: String) {
        let end = (0..=MESSAGE_BYTES_MAX.min(text.len()))
            .rev()
            .find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        let number = self.next;
        self.next += 1;
        self.newest.push_back(RunMessage {
            number,
            resumed,
            text,
        });
        if self.newest.len() > MESSAGES_MAX {
            self.newest.pop_front();
        }
    }
}

/// The coordinator that reports: its number, where it listens, where it answers probes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reporter {
    /// Number of the coordinator.
    pub number: i64,
    /// Where workers reach it, `ip:port`; none before it listens.
    pub address: Option<String>,
    /// Where it answers probes and scrapes, `ip:port`.
    pub health_address: String,
}

/// The report of a view.
#[must_use]
pub fn report(by: &Reporter, view: &View, messages: &Messages, end: Option<RunEnd>) -> RunStatus {
    let metric = view.metric.as_ref();
    RunStatus {
        coordinator: by.number,
        address: by.address.clone(),
        health_address: Some(by.health_address.clone()),
        state: view.snapshot.clone(),
        loss: metric.and_then(|m| m.mean_loss()).filter(|loss| loss.is_finite()),
        skipped_steps: metric.map(|m| m.skipped_steps),
        loss_scale: metric.and_then(|m| m.loss_scale),
        // Before it has read its record it may not know them all.
        checkpoints: view
            .snapshot
            .as_ref()
            .and(view.checkpoints.as_ref())
            .map(checkpoints),
        messages: messages.newest.iter().cloned().collect(),
        recoveries: messages.recoveries.iter().cloned().collect(),
        end,
    }
}

/// The room that orders leave for a report, in bytes: the whole object is written at once. Notices have their room even if there are none now,
/// because thousands may come between two reports.
#[must_use]
pub fn room_beside(orders: Option<&RunSpec>) -> usize {
    let domains = orders.into_iter().flat_map(|orders| &orders.domains);
    let domains: usize = domains
        .map(|(node, domain)| entry_bytes(node, domain.len()))
        .sum();
    RUN_BYTES_MAX.saturating_sub(NOTICES_BYTES_MAX + OTHER_BYTES + domains)
}

/// Shortens a report before it is written to what there is room for, so that an API server accepts it, however many workers there are. Details
/// of workers go first, then workers without a place in the plan, then the others. An operator of the previous release cannot read a worker
/// without all of its fields, so all of them are written, shortened.
#[must_use]
pub fn bounded(report: &RunStatus, room: usize) -> Cow<'_, RunStatus> {
    let workers = report.state.as_ref().map_or(0, |state| state.workers.len());
    if workers <= DETAILED_MAX {
        return Cow::Borrowed(report);
    }
    let mut report = report.clone();
    let state = report.state.as_mut();
    let mut workers = state.map_or_else(Vec::new, |state| std::mem::take(&mut state.workers));
    workers.iter_mut().for_each(leave_out_details);
    let others = serde_json::to_string(&report).map_or(0, |text| text.len());
    leave_out_workers(&mut workers, room.saturating_sub(others));
    if let Some(state) = &mut report.state {
        state.workers = workers;
    }
    Cow::Owned(report)
}

/// Fields that the operator does not read, and that take most of the room.
fn leave_out_details(worker: &mut WorkerView) {
    worker.node.clear();
    worker.phase = None;
    worker.speed = (worker.speed * 100.0).round() / 100.0;
}

/// Leaves out workers for which there is no room. Those with a place in the plan come first, since the operator acts on them.
fn leave_out_workers(workers: &mut Vec<WorkerView>, room: usize) {
    let bytes = |worker: &WorkerView| serde_json::to_string(worker).map_or(0, |text| text.len() + 1);
    let mut left = room;
    let mut stays = vec![false; workers.len()];
    for placed in [true, false] {
        for (worker, stays) in workers.iter().zip(&mut stays) {
            if worker.pipeline.is_some() == placed {
                let bytes = bytes(worker);
                *stays = bytes <= left;
                left = left.saturating_sub(bytes);
            }
        }
    }
    let mut stays = stays.into_iter();
    workers.retain(|_| stays.next() == Some(true));
}

/// As Kubernetes writes times, in whole seconds; none of a clock that is far off.
fn time(at: SystemTime) -> Option<Time> {
    let seconds = at.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    Some(Time(Timestamp::from_second(i64::try_from(seconds).ok()?).ok()?))
}

fn checkpoints(health: &CheckpointHealth) -> RunCheckpoints {
    RunCheckpoints {
        newest_step: health.newest.map(|step| step.0),
        newest_at: health.newest_at.and_then(time),
        failing: health.failing.clone(),
        stale: health.stale,
    }
}

/// What is acted on, or shown, besides steps, which change all the time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReportedPart {
    /// Acted on by the operator: who reports, where, how it ended, and the checkpoint that a suspension waits for.
    acted_on: (i64, Option<String>, Option<RunEnd>, Option<u64>),
    /// Detached workers that have a place in the plan in force.
    missed: BTreeSet<String>,
    /// Names of all workers with a place in the plan.
    placed: BTreeSet<String>,
    run: Option<(RunMode, Generation, usize)>,
    /// The store does not answer, or the newest checkpoint is old.
    checkpoints_fail: (bool, bool),
    /// Workers that have said that they will go. The operator reports others that should go.
    draining: BTreeSet<String>,
    /// Names of all workers, and whether they are attached.
    workers: Vec<(String, bool)>,
    newest_message: Option<i64>,
}

impl ReportedPart {
    /// The part of a report.
    #[must_use]
    pub fn of(status: &RunStatus) -> ReportedPart {
        let state = status.state.as_ref();
        let workers = || state.into_iter().flat_map(|s| &s.workers);
        let missed = workers().filter(|w| !w.up && w.pipeline.is_some());
        let placed = workers().filter(|w| w.pipeline.is_some());
        let draining = workers().filter(|w| w.draining);
        let checkpoints = status.checkpoints.as_ref();
        let newest_checkpoint = checkpoints.and_then(|c| c.newest_step);
        ReportedPart {
            acted_on: (
                status.coordinator,
                status.address.clone(),
                status.end.clone(),
                newest_checkpoint,
            ),
            missed: missed.map(|w| w.name.clone()).collect(),
            placed: placed.map(|w| w.name.clone()).collect(),
            run: state.map(|s| (s.run.mode, s.run.generation, s.run.members)),
            checkpoints_fail: checkpoints.map_or((false, false), |c| (c.failing.is_some(), c.stale)),
            draining: draining.map(|w| w.name.clone()).collect(),
            workers: workers().map(|w| (w.name.clone(), w.up)).collect(),
            newest_message: status.messages.last().map(|m| m.number),
        }
    }

    /// How long the changes since `before` was reported may wait for further changes; none if nothing has changed.
    #[must_use]
    pub fn may_wait(&self, before: &ReportedPart) -> Option<Duration> {
        if self.acted_on != before.acted_on {
            Some(Duration::ZERO)
        } else if !self.missed.is_subset(&before.missed) || !before.placed.is_subset(&self.placed) {
            Some(MISSED)
        } else if self == before {
            None
        } else if self.trains_as(before) {
            Some(WITH_STEPS)
        } else {
            Some(SHOWN)
        }
    }

    /// Whether the job trains, and nothing is new but workers without a place, and sentences.
    fn trains_as(&self, before: &ReportedPart) -> bool {
        let same_places = self.missed == before.missed && self.placed == before.placed;
        let same_run = self.run == before.run && self.checkpoints_fail == before.checkpoints_fail;
        // A worker that had said that it would go, and is no longer there, has gone as announced.
        let nobody_goes = self.draining.is_subset(&before.draining);
        let trains = self.run.is_some_and(|(mode, ..)| mode.is_training());
        trains && same_places && same_run && nobody_goes
    }
}

/// How a coordinator ended; none where another one has taken over, which reports.
#[must_use]
pub fn run_end(result: Result<Outcome, CoordinatorError>, layout: &Layout) -> Option<RunEnd> {
    Some(match result {
        Err(CoordinatorError::CheckpointsTaken { run }) => RunEnd::CheckpointsTaken(run),
        Err(error) => RunEnd::Failed(error.to_string()),
        Ok(Outcome::Done) => RunEnd::Done,
        Ok(Outcome::Stopped) => RunEnd::Stopped,
        Ok(Outcome::StateLost { units }) => RunEnd::StateLost(layout.name(&units)),
        Ok(Outcome::Diverged(divergence)) => RunEnd::Diverged(divergence.to_string()),
        Ok(Outcome::Deposed) => return None,
    })
}

#[cfg(test)]
mod tests;
