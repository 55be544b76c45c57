//! Publishes what people and tools see of a run: the run folder, the log, and the view for the surrounding process.

use crate::event_text::EventText;
use crate::step_figures::{JobFigures, MemberFigures, StepClock, StepDone};
use crate::view::{CheckpointHealth, View};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use varuna_api::Job;
use varuna_plan::measured_step::MeasuredStep;
use varuna_plan::{Plan, StateId, Step};
use varuna_protocol::coordinator::{Event, RunView, Snapshot};
use varuna_run_folder::{CheckpointEvent, LoggedEvent, Metric, RunFolder, RunStatus, now_ms};

/// Minimum time between two views.
const VIEW_INTERVAL: Duration = Duration::from_millis(50);
/// Minimum time between two versions of `status.json`.
const STATUS_INTERVAL: Duration = Duration::from_millis(250);
/// Minimum time between two views, or two versions of `status.json`, as a multiple of the time that the last one took: with thousands of
/// workers they may take at most a hundredth of the time.
const PAUSE: u32 = 100;
/// That pause is never longer than this: one write that a busy disk delays must not hide the run for minutes.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How many messages and events a view holds.
const VIEW_ENTRIES_MAX: usize = 64;

/// The position in the view's logs when it was last sent: numbers of the last message and event, and the last step's state.
type Marks = (u64, Option<u64>, Option<StateId>);

/// How a commit was reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommitReport {
    /// Whether it was reported some time after it was made, as one of several or because it was asked for: its own time is then unknown.
    pub(crate) reported_late: bool,
    /// The figures of its workers.
    pub(crate) members: MemberFigures,
}

pub(crate) struct Publisher {
    folder: RunFolder,
    job: JobFigures,
    clock: StepClock,
    scales_loss: bool,
    last_commit: Instant,
    text: EventText,
    /// The run has ended, or is being stopped.
    over: bool,
    last_message: u64,
    view: View,
    watchers: watch::Sender<View>,
    sent: Marks,
    /// When the next view may be sent.
    view_due: Instant,
    /// When `status.json` may be replaced.
    status_from: Instant,
    /// Whether `status.json` is outdated.
    status_due: bool,
}

impl Publisher {
    pub(crate) fn new(folder: RunFolder, job: &Job, watchers: watch::Sender<View>) -> Publisher {
        let now = Instant::now();
        Publisher {
            job: JobFigures::of(job),
            clock: StepClock::default(),
            scales_loss: !job.training.loss_scaling.is_off(),
            last_commit: now,
            text: EventText::new(job.layout(), folder.worker_names().clone()),
            over: false,
            last_message: 0,
            view: View::default(),
            watchers,
            sent: (0, None, None),
            view_due: now + VIEW_INTERVAL,
            status_from: now + STATUS_INTERVAL,
            status_due: true,
            folder,
        }
    }

    /// The last published step.
    pub(crate) fn last_metric(&self) -> Option<&Metric> {
        self.folder.last_metric()
    }

    pub(crate) fn plan(&mut self, plan: &Plan) {
        self.folder.write_plan(plan);
    }

    /// A step that was measured task by task.
    pub(crate) fn measured_step(&mut self, step: &MeasuredStep) {
        self.folder.write_measured_step(step);
    }

    /// A committed step, reported at the time `at` since the coordinator's start: either when it was made, or late.
    pub(crate) fn committed(&mut self, at: Duration, event: Event, run: &RunView, report: CommitReport) {
        let Event::Committed {
            id,
            generation,
            step,
            loss,
            eval_loss,
            gradient_norm,
            overflow,
            progress,
        } = event
        else {
            return self.event(at, event, run);
        };
        self.add_to_view(at, &event);
        let evaluated = eval_loss.is_some();
        let done = StepDone {
            step,
            applied_before: progress.adam_steps.saturating_sub(u64::from(!overflow)),
            took: self
                .clock
                .note_commit((step, generation), at, report.reported_late, evaluated),
            nan_steps: self.folder.nan_steps_before(step)
                + u64::from(loss.is_some_and(|loss| !loss.is_finite())),
            members: report.members,
        };
        let metric = Metric {
            step,
            loss: loss.unwrap_or(f64::NAN),
            no_targets: loss.is_none(),
            eval_loss,
            gradient_norm,
            overflow,
            skipped_steps: step.0.saturating_sub(progress.adam_steps),
            loss_scale: self.scales_loss.then(|| progress.loss_scale.factor.value()),
            generation,
            workers: run.members,
            plan: run.plan.clone().unwrap_or_default(),
            tokens: self.job.tokens_of_step(),
            step_ms: self.last_commit.elapsed().as_secs_f64() * 1e3,
            time_ms: now_ms(),
            state: id,
            figures: self.job.step(&done),
        };
        self.last_commit = Instant::now();
        self.folder.append_metric(metric.clone());
        self.view.metric = Some(metric);
    }

    /// Any other event of the protocol, `at` the time since the coordinator's start.
    pub(crate) fn event(&mut self, at: Duration, event: Event, run: &RunView) {
        match event {
            // All workers end with the run: none of them is lost.
            Event::WorkerLost { .. } if self.over => return,
            Event::Done { .. } | Event::Diverged(_) => self.over = true,
            _ => {}
        }
        self.add_to_view(at, &event);
        let mut steps_lost = None;
        if let Event::Resumed {
            base, restored: true, ..
        } = &event
        {
            let reached = self.folder.last_metric().map_or(Step(0), |m| m.step);
            steps_lost = Some(reached.0.saturating_sub(base.step.0));
        }
        let text = self.text.sentence(at, &event, steps_lost.unwrap_or(0));
        self.log(LoggedEvent::Protocol(event), steps_lost, text, run);
    }

    /// A change in the checkpoint store.
    pub(crate) fn checkpoint_event(&mut self, event: CheckpointEvent, run: &RunView) {
        let text = crate::event_text::of_checkpoint(&event);
        self.log(LoggedEvent::Checkpoint(event), None, text, run);
    }

    fn add_to_view(&mut self, at: Duration, event: &Event) {
        let is_step = |e: &Event| matches!(e, Event::Committed { .. });
        let last = self.view.events.back();
        if is_step(event) && last.is_some_and(|(_, _, last)| is_step(last)) {
            return;
        }
        let number = last.map_or(0, |(number, _, _)| *number) + 1;
        push_bounded(&mut self.view.events, (number, at, event.clone()));
    }

    /// One entry for tools, and the same as a sentence for people.
    fn log(&mut self, event: LoggedEvent, steps_lost: Option<u64>, text: String, run: &RunView) {
        tracing::info!(generation = run.generation.0, step = run.step.0, "{text}");
        self.folder.append_event(event, steps_lost);
        self.last_message += 1;
        push_bounded(&mut self.view.messages, (self.last_message, text));
    }

    /// Whether the next view may be sent.
    pub(crate) fn view_due(&self) -> bool {
        Instant::now() >= self.view_due
    }

    /// The run was asked to stop. The next view may be sent now, however long the last one took: the process around the coordinator starts
    /// no workers for a run that it sees ending.
    pub(crate) fn note_stop(&mut self) {
        self.text.note_stop();
        self.over = true;
        self.view_due = Instant::now();
    }

    /// A view was sent, which was begun at `began`.
    pub(crate) fn view_sent(&mut self, began: Instant) {
        self.view_due = next_due(began, Instant::now(), VIEW_INTERVAL);
    }

    /// Sends the view to its watchers, if it has changed: a waiting run costs nothing, and a process may have thousands of runs.
    pub(crate) fn send_view(&mut self, snapshot: Snapshot, checkpoints: Option<CheckpointHealth>) {
        let snapshot = Some(snapshot);
        let marks = (
            self.last_message,
            self.view.events.back().map(|(number, _, _)| *number),
            self.view.metric.as_ref().map(|m| m.state),
        );
        if self.view.snapshot != snapshot || self.view.checkpoints != checkpoints || self.sent != marks {
            self.sent = marks;
            self.status_due = true;
            self.view.snapshot = snapshot;
            self.view.checkpoints = checkpoints;
            // An error means that nobody watches.
            let _ = self.watchers.send(self.view.clone());
        }
    }

    /// Something changed that only the status shows.
    pub(crate) fn status_changed(&mut self) {
        self.status_due = true;
    }

    /// Whether `status.json` is to be replaced now.
    pub(crate) fn take_status_due(&mut self, ended: bool) -> bool {
        let due = self.status_due && (Instant::now() >= self.status_from || ended);
        if due {
            self.status_due = false;
        }
        due
    }

    /// Replaces `status.json`; the status was begun at `began`.
    pub(crate) fn write_status(&mut self, status: &RunStatus, began: Instant) {
        self.folder.write_status(status);
        self.status_from = next_due(began, Instant::now(), STATUS_INTERVAL);
    }
}

/// When the next version is due, if the last one was made from `began` to `ended`.
fn next_due(began: Instant, ended: Instant, least: Duration) -> Instant {
    let pause = ended.duration_since(began).saturating_mul(PAUSE);
    began + least.max(pause.min(PAUSE_MAX))
}

fn push_bounded<T>(entries: &mut VecDeque<T>, entry: T) {
    entries.push_back(entry);
    if entries.len() > VIEW_ENTRIES_MAX {
        entries.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_of_many_workers_is_shown_less_often() {
        let began = Instant::now();
        let due = |took_ms| {
            let ended = began + Duration::from_millis(took_ms);
            next_due(began, ended, VIEW_INTERVAL).duration_since(began)
        };
        assert_eq!(due(0), VIEW_INTERVAL, "a few workers");
        assert_eq!(due(5), Duration::from_millis(500), "a thousand");
        assert_eq!(due(100), PAUSE_MAX, "a disk that was busy for a moment");
    }
}
