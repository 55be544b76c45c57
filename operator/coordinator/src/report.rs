//! What is reported of a run, and which of its changes cannot wait. Pure.

use crate::metrics::Over;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use std::time::SystemTime;
use varuna_api::crd::{
    MESSAGES_MAX, RECOVERIES_MAX, Recovery, RunCheckpoints, RunEnd, RunMessage, RunStatus,
};
use varuna_coordinator::{CheckpointHealth, CoordinatorError, Outcome, RunMode, View};
use varuna_plan::{Generation, Layout};

/// A recovery that waits for the certain end of a worker, which the operator can tell, is reported after this time: most need nobody's, and have a plan
/// by then. So is a plan without somebody who had a place: then the next one may be evicted.
const MISSED: Duration = Duration::from_millis(500);
/// What is only shown is reported this long after the first change: the plan without a worker, and often the one with its replacement.
const SHOWN: Duration = Duration::from_secs(3);
/// While the job trains, a worker without a place that has come or gone, and a sentence alone, wait for the plan with it, or for the next report of
/// steps: nobody acts on them, and a pod that replaces another would cost a report when the one has gone, one when the other has come, and one
/// with the plan.
const WITH_STEPS: Duration = Duration::from_secs(15);
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
    /// Those of the coordinator with this number, which has said nothing yet.
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
    pub fn recovered(&mut self, at: SystemTime, over: &Over) {
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
        recoveries: messages.recoveries.iter().cloned().collect(),
        end,
    }
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

/// What is acted on, or shown, beside steps, which go by all the time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReportedPart {
    /// Acted on by the operator: who reports, where, how it ended, and the checkpoint that a suspension waits for.
    acted_on: (i64, Option<String>, Option<RunEnd>, Option<u64>),
    /// Detached workers that have a place in the plan in force.
    missed: BTreeSet<String>,
    /// All that have one.
    placed: BTreeSet<String>,
    run: Option<(RunMode, Generation, usize)>,
    /// The store does not answer, or the newest checkpoint is old.
    checkpoints_fail: (bool, bool),
    /// Those that have said that they will go: the operator tells of others that should.
    draining: BTreeSet<String>,
    /// Names of all workers, and whether they are attached.
    workers: Vec<(String, bool)>,
    newest_message: Option<i64>,
}

impl ReportedPart {
    /// That of a report.
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

    /// How long what has changed since `before` was reported may wait for what follows from it; none where nothing has.
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
        // One that was to go and is not there any more has gone as it said.
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
mod tests {
    use super::*;
    use varuna_plan::{SegmentRange, Step, WorkerId};
    use varuna_protocol::coordinator::{RunView, Snapshot, WorkerView};

    fn by(number: i64) -> Reporter {
        Reporter {
            number,
            address: Some("10.0.0.1:7070".into()),
            health_address: "10.0.0.1:8081".into(),
        }
    }

    fn view(step: u64) -> View {
        let run = RunView {
            mode: RunMode::Training,
            term: 1,
            generation: Generation(2),
            next: None,
            step: Step(step),
            last_step: Step(100),
            plan: None,
            predicted_ms: None,
            observed_ms: None,
            compute_factor: None,
            members: 1,
            min_workers: 1,
            max_workers: None,
            spare_copies: None,
        };
        let worker = WorkerView {
            id: WorkerId(1),
            name: "j-w1".into(),
            node: "n".into(),
            up: true,
            phase: None,
            generation: Generation(2),
            step: Step(step),
            draining: false,
            speed: 1.0,
            segments: vec![SegmentRange { start: 0, end: 2 }],
            pipeline: Some(0),
        };
        View {
            snapshot: Some(Snapshot {
                run,
                workers: vec![worker],
            }),
            checkpoints: Some(CheckpointHealth {
                newest: Some(Step(5)),
                ..CheckpointHealth::default()
            }),
            ..View::default()
        }
    }

    #[test]
    fn messages_keep_their_order_and_their_numbers_and_are_bounded() {
        let mut messages = Messages::new(2);
        let mut log: VecDeque<(u64, String)> = VecDeque::new();
        for number in 1..=100 {
            log.push_back((number, format!("entry {number}")));
            // A view shows the newest few, again and again.
            if log.len() > 10 {
                log.pop_front();
            }
            messages.take(&log);
            if number == 99 {
                messages.resumed("training goes on".into());
            }
        }
        let status = report(&by(2), &view(1), &messages, None);
        assert_eq!(status.messages.len(), MESSAGES_MAX);
        let numbers: Vec<i64> = status.messages.iter().map(|m| m.number).collect();
        assert!(numbers.windows(2).all(|two| two[1] == two[0] + 1), "{numbers:?}");
        let last: Vec<(&str, bool)> = status
            .messages
            .iter()
            .rev()
            .take(3)
            .map(|m| (m.text.as_str(), m.resumed))
            .collect();
        assert_eq!(
            last,
            [
                ("entry 100", false),
                ("training goes on", true),
                ("entry 99", false)
            ]
        );
        let mut next = Messages::new(3);
        next.resumed("first".into());
        let first = report(&by(3), &view(1), &next, None).messages[0].number;
        assert!(
            first > *numbers.last().unwrap(),
            "a later coordinator's are greater"
        );
    }

    #[test]
    fn a_report_reads_back_as_it_was_written() {
        let status = report(
            &by(1),
            &view(7),
            &Messages::new(1),
            Some(RunEnd::StateLost("segments 2..4".into())),
        );
        let text = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<RunStatus>(&text).unwrap(), status);
        assert_eq!(status.checkpoints.unwrap().newest_step, Some(5));
        let unread = View {
            snapshot: None,
            ..view(7)
        };
        let early = report(&by(1), &unread, &Messages::new(1), None);
        assert_eq!(early.checkpoints, None, "it may not know them all yet");
    }

    #[test]
    fn steps_may_wait_and_what_is_acted_on_may_not() {
        let messages = Messages::new(1);
        let part =
            |view: &View, messages: &Messages, end| ReportedPart::of(&report(&by(1), view, messages, end));
        let before = part(&view(7), &messages, None);
        let waits = |after: ReportedPart| after.may_wait(&before);
        assert_eq!(waits(part(&view(8), &messages, None)), None, "steps");
        let mut saved = view(7);
        saved.checkpoints.as_mut().unwrap().newest = Some(Step(7));
        assert_eq!(waits(part(&saved, &messages, None)), Some(Duration::ZERO));
        let end = Some(RunEnd::Done);
        assert_eq!(waits(part(&view(7), &messages, end)), Some(Duration::ZERO));
        let mut missed = view(7);
        let worker = &mut missed.snapshot.as_mut().unwrap().workers[0];
        (worker.up, worker.pipeline) = (false, Some(0));
        assert_eq!(waits(part(&missed, &messages, None)), Some(MISSED));
        let mut without = view(7);
        without.snapshot.as_mut().unwrap().workers[0].pipeline = None;
        let without = part(&without, &messages, None);
        assert_eq!(without.may_wait(&before), Some(MISSED), "its place is gone");
        assert_eq!(before.may_wait(&without), Some(SHOWN), "it has got one");
        let mut recovering = view(7);
        recovering.snapshot.as_mut().unwrap().run.mode = RunMode::Recovering;
        let mut draining = view(7);
        draining.snapshot.as_mut().unwrap().workers[0].draining = true;
        for shown in [recovering, draining] {
            assert_eq!(waits(part(&shown, &messages, None)), Some(SHOWN));
        }
        let mut failing = view(7);
        failing.checkpoints.as_mut().unwrap().failing = Some("403".into());
        assert_eq!(waits(part(&failing, &messages, None)), Some(SHOWN));
    }

    #[test]
    fn while_a_job_trains_workers_without_a_place_and_sentences_wait_for_a_plan_or_steps() {
        let messages = Messages::new(1);
        let mut said = messages.clone();
        said.resumed("worker j-w2 joined".into());
        let mut joined = view(7);
        let mut worker = joined.snapshot.as_ref().unwrap().workers[0].clone();
        (worker.name, worker.pipeline) = ("j-w2".into(), None);
        joined.snapshot.as_mut().unwrap().workers.push(worker);
        let part = |view: &View, messages: &Messages| ReportedPart::of(&report(&by(1), view, messages, None));
        let (alone, both) = (part(&view(7), &messages), part(&joined, &said));
        assert_eq!(both.may_wait(&alone), Some(WITH_STEPS), "it has come");
        assert_eq!(alone.may_wait(&both), Some(WITH_STEPS), "it has gone");
        let mut planned = joined.clone();
        let state = planned.snapshot.as_mut().unwrap();
        (state.workers[1].pipeline, state.run.generation, state.run.members) = (Some(1), Generation(3), 2);
        assert_eq!(part(&planned, &said).may_wait(&both), Some(SHOWN));
        // Whoever waits for workers wants to see them come.
        let waiting = |mut view: View| {
            view.snapshot.as_mut().unwrap().run.mode = RunMode::Waiting;
            view
        };
        let (alone, both) = (part(&waiting(view(7)), &messages), part(&waiting(joined), &said));
        assert_eq!(both.may_wait(&alone), Some(SHOWN));
    }

    #[test]
    fn a_coordinator_that_was_deposed_says_nothing_of_the_end() {
        let model = varuna_api::parse_job(JOB).unwrap().model;
        let end = |outcome| run_end(Ok(outcome), &model.layout());
        assert_eq!(end(Outcome::Deposed), None);
        assert_eq!(end(Outcome::Done), Some(RunEnd::Done));
        let units = vec![varuna_plan::Unit(0)];
        assert!(
            matches!(end(Outcome::StateLost { units }), Some(RunEnd::StateLost(what)) if !what.is_empty())
        );
        let taken = CoordinatorError::CheckpointsTaken { run: "other".into() };
        let end = run_end(Err(taken), &model.layout());
        assert_eq!(end, Some(RunEnd::CheckpointsTaken("other".into())));
    }

    const JOB: &str = "apiVersion: varuna.dev/v1alpha1\nkind: VarunaJob\nmetadata: {name: j}\nspec:\n  model: {preset: gpt2-tiny}\n  data: {path: d}\n  training: {globalBatchSize: 8, steps: 10, optimizer: {learningRate: 1e-3}}\n";
}
