//! What is reported of a run, and which of its changes cannot wait. Pure.

use std::collections::VecDeque;
use varuna_api::crd::{MESSAGES_MAX, RunCheckpoints, RunEnd, RunMessage, RunStatus};
use varuna_coordinator::{CheckpointHealth, CoordinatorError, Outcome, RunMode, View};
use varuna_plan::{Generation, Layout};

/// Messages of one coordinator; those of the next one have greater numbers.
const MESSAGES_OF_ONE: i64 = 1 << 32;

/// The newest messages of a coordinator, oldest first: its log, and sentences about recoveries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Messages {
    newest: VecDeque<RunMessage>,
    next: i64,
    /// Number of the last entry of the log that was taken.
    taken: u64,
}

impl Messages {
    /// Those of the coordinator with this number, which has said nothing yet.
    #[must_use]
    pub fn new(coordinator: i64) -> Messages {
        Messages {
            newest: VecDeque::new(),
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

    fn add(&mut self, resumed: bool, text: String) {
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
    /// Its number.
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
        loss: metric.map(|m| m.loss).filter(|loss| loss.is_finite()),
        skipped_steps: metric.map(|m| m.skipped_steps),
        loss_scale: metric.and_then(|m| m.loss_scale),
        // Before it has read its record it may not know them all.
        checkpoints: view
            .snapshot
            .as_ref()
            .and(view.checkpoints.as_ref())
            .map(checkpoints),
        messages: messages.newest.iter().cloned().collect(),
        end,
    }
}

fn checkpoints(health: &CheckpointHealth) -> RunCheckpoints {
    RunCheckpoints {
        newest_step: health.newest.map(|step| step.0),
        failing: health.failing.clone(),
        stale: health.stale,
    }
}

/// What is reported at once when it changes. Everything else may wait: steps go by all the time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UrgentPart {
    by: i64,
    address: Option<String>,
    end: Option<RunEnd>,
    run: Option<(RunMode, Generation, usize)>,
    /// Names, and whether they are attached.
    workers: Vec<(String, bool)>,
    /// A suspension waits for it.
    newest_checkpoint: Option<u64>,
    newest_message: Option<i64>,
}

impl UrgentPart {
    /// That of a report.
    #[must_use]
    pub fn of(status: &RunStatus) -> UrgentPart {
        let state = status.state.as_ref();
        let workers = state.into_iter().flat_map(|s| &s.workers);
        UrgentPart {
            by: status.coordinator,
            address: status.address.clone(),
            end: status.end.clone(),
            run: state.map(|s| (s.run.mode, s.run.generation, s.run.members)),
            workers: workers.map(|w| (w.name.clone(), w.up)).collect(),
            newest_checkpoint: status.checkpoints.as_ref().and_then(|c| c.newest_step),
            newest_message: status.messages.last().map(|m| m.number),
        }
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
