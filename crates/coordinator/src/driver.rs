//! The task that owns the protocol's state machine. It takes messages from the inbox, feeds the machine, and carries out its effects.

use crate::checkpoints::Checkpoints;
use crate::error::CoordinatorError;
use crate::event_upload::EventUpload;
use crate::inbox::{DownSender, Inbound, StreamNumber, WorkerNotice};
use crate::measured_steps::MeasuredSteps;
use crate::options::{Options, ScaleRequest};
use crate::publisher::{CommitReport, Publisher};
use crate::record_client::RecordClient;
use crate::started_workers::StartedWorkers;
use crate::status::{observed, run_status};
use crate::step_figures::{MemberFigures, is_new_commit};
use crate::streams::Streams;
use crate::view::View;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::sync::watch;
use varuna_api::Job;
use varuna_plan::measured_step::MeasuredWork;
use varuna_plan::{Generation, Plan, StateId, Step, WorkerId};
use varuna_protocol::coordinator::{CoordinatorEffect, CoordinatorInput, Outcome};
use varuna_protocol::{Coordinator, Event, Listing, Order, Report, Time};
use varuna_run_folder::{CheckpointEvent, RunFolder, RunStatus};
use varuna_wire::{Downward, EncodedPlans, Hello, Upward, Welcome};

mod final_save;
mod listing;
mod scale;
mod start;
#[cfg(test)]
mod tests;

use final_save::FinalSave;
use start::{event_upload, machine, planner, protocol_config, report, started_workers};

/// How often the state machine gets the time.
const TICK: Duration = Duration::from_millis(20);
/// How long streams stay open after the end, so that workers read their last message.
const LAST_MESSAGES: Duration = Duration::from_millis(300);

pub(crate) struct Driver {
    machine: Coordinator,
    /// Zero of the machine's clock.
    start: Instant,
    job: Job,
    /// The first message to a worker that attaches.
    welcome: Downward,
    /// Starts and stops workers, if there is a component that can.
    scale: Option<Sender<ScaleRequest>>,
    record: RecordClient,
    streams: Streams,
    /// If this process starts workers.
    started_workers: Option<StartedWorkers>,
    plans: EncodedPlans,
    checkpoints: Checkpoints,
    /// The version of the record from which the needs of the run were last sent to the store watcher.
    needs_told: u64,
    /// They are sent for the last time: the run has ended.
    is_last_told: bool,
    measured_steps: MeasuredSteps,
    publisher: Publisher,
    event_upload: Option<EventUpload>,
    /// The steps that were ordered at the start.
    steps: Step,
    /// The checkpoint after which the run ends, if it was asked to stop.
    final_save: Option<FinalSave>,
    outcome: Option<Outcome>,
}

impl Driver {
    pub(crate) fn new(
        options: Options,
        folder: RunFolder,
        record: RecordClient,
        watchers: watch::Sender<View>,
        inbound: &Sender<Inbound>,
    ) -> Driver {
        let config = protocol_config(&options, &folder);
        let event_upload = event_upload(&options, &folder);
        let Options { job, costs, .. } = options;
        let planner = planner(&job, costs);
        let welcome = Downward::Welcome(Welcome {
            job: options.job_text,
            run: options.run,
            data_fingerprint: options.data_fingerprint,
        });
        Driver {
            machine: machine(config, planner, options.allow_state_loss),
            start: Instant::now(),
            welcome,
            scale: options.scale,
            steps: Step(options.steps),
            record,
            streams: Streams::default(),
            started_workers: started_workers(options.host, &folder, inbound),
            plans: EncodedPlans::default(),
            checkpoints: Checkpoints::start(job.checkpoint.clone(), options.checkpoints, inbound),
            needs_told: 0,
            is_last_told: false,
            event_upload,
            measured_steps: MeasuredSteps::default(),
            publisher: Publisher::new(folder, &job, watchers),
            job,
            final_save: None,
            outcome: None,
        }
    }

    pub(crate) async fn run(&mut self, mut inbox: Receiver<Inbound>) -> Result<Outcome, CoordinatorError> {
        // This comes before the record is read: a run that has ended continues only if it is known that more steps are to be trained.
        self.feed(CoordinatorInput::LastStep(self.steps));
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(inbound) = inbox.recv() => self.take(inbound),
                _ = ticks.tick() => self.feed(CoordinatorInput::Tick),
            }
            self.continue_final_save();
            let ended = self.outcome.is_some();
            if self.publisher.view_due() || ended {
                self.publish(ended);
            }
            if let Some(outcome) = self.outcome.take() {
                self.send_last_needs(&outcome);
                tokio::time::sleep(LAST_MESSAGES).await;
                if let Some(upload) = self.event_upload.take() {
                    upload.end().await;
                }
                return match self.checkpoints.end().await {
                    Some(run) => Err(CoordinatorError::CheckpointsTaken { run }),
                    None => Ok(outcome),
                };
            }
        }
    }

    /// Handles one message of the inbox. An answer that is no longer awaited is dropped.
    fn take(&mut self, inbound: Inbound) {
        match inbound {
            Inbound::Attached { number, hello, down } => self.attach(number, hello, down),
            Inbound::Message {
                worker,
                number,
                message,
            } => self.handle_message(worker, number, message),
            Inbound::Detached { worker, number } => {
                if self.streams.detach(worker, number) {
                    self.feed(CoordinatorInput::StreamDown { from: worker });
                }
            }
            Inbound::Status(answer) => drop(answer.send(self.status())),
            Inbound::Scale(workers, answer) => self.scale(workers, answer),
            Inbound::Save(answer) => {
                let saved = self.save();
                if let Some(answer) = answer {
                    drop(answer.send(saved));
                }
            }
            Inbound::LastStep(step) => self.feed(CoordinatorInput::LastStep(step)),
            Inbound::Domains(domains) => self.feed(CoordinatorInput::Domains(domains)),
            Inbound::AllowStateLoss(allow) => self.feed(CoordinatorInput::MayBeginAnew(allow)),
            Inbound::SaveAndStop => self.save_and_stop(),
            Inbound::Stop => self.stop(),
            Inbound::Abandon => self.outcome = Some(Outcome::Stopped),
            Inbound::Record(answer) => self.feed(answer),
            Inbound::Checkpoints(listing) => self.take_listing(listing),
            Inbound::CheckpointEvent(event) => self.log_checkpoint(event),
            Inbound::LocationTaken(run) => {
                if let Some(event) = self.checkpoints.taken(run) {
                    self.log_checkpoint(event);
                    self.stop();
                }
            }
            Inbound::ProcessEnded(process) => {
                if let Some(worker) = self.streams.process_ended(&process) {
                    self.feed(CoordinatorInput::ProcessEnded { worker });
                }
            }
            Inbound::WorkerEnded(worker) => self.feed(CoordinatorInput::ProcessEnded { worker }),
            Inbound::Notice(notice) => self.take_notice(&notice),
        }
    }

    fn attach(&mut self, number: StreamNumber, hello: Hello, down: DownSender) {
        let from = hello.worker;
        let report = report(&hello);
        if let Some(started) = &mut self.started_workers {
            started.note(&hello);
        }
        if !self.streams.attach(number, hello, down) {
            return;
        }
        match self.send(from, &self.welcome.clone()) {
            true => self.feed(CoordinatorInput::StreamUp { from, hello: report }),
            // It has replaced an older stream, whose end no longer matters.
            false => self.feed(CoordinatorInput::StreamDown { from }),
        }
    }

    /// Handles a worker's message, if it came on its newest stream.
    fn handle_message(&mut self, worker: WorkerId, number: StreamNumber, message: Upward) {
        let Some(stream) = self.streams.current(worker, number) else {
            return;
        };
        match message {
            Upward::Report(report) => self.take_report(worker, report, None),
            Upward::UploadsFail { status, why } => {
                self.take_report(worker, Report::Status(status), Some(&why));
            }
            Upward::Metrics(mut timings) => {
                let (observed, of) = (observed(&timings), (timings.generation, timings.step));
                let measured = timings.measured.take();
                stream.timings = Some(timings);
                self.publisher.status_changed();
                if let Some(work) = measured {
                    self.take_measured(of, worker, work);
                }
                self.feed(CoordinatorInput::Observed {
                    from: worker,
                    observed,
                });
            }
            // Once it has the job, a worker knows what it computes on.
            Upward::Hello(hello) if hello.worker == worker => {
                let report = report(&hello);
                stream.hello = hello;
                self.publisher.status_changed();
                self.feed(CoordinatorInput::StreamUp {
                    from: worker,
                    hello: report,
                });
            }
            Upward::Hello(_) => tracing::warn!(%worker, "the hello of another worker is left out"),
        }
    }

    /// Takes a worker's measurement of a step of the plan in force.
    fn take_measured(&mut self, of: (Generation, Step), worker: WorkerId, work: MeasuredWork) {
        let Some(plan) = &self.machine.record().plan else {
            return;
        };
        if let Some(step) = self.measured_steps.take(plan, of, worker, work) {
            self.publisher.measured_step(&step);
        }
    }

    /// Ends the run.
    fn stop(&mut self) {
        self.publisher.note_stop();
        self.feed(CoordinatorInput::Stop);
    }

    /// Whether the run is ending, or has ended.
    fn is_ending(&self) -> bool {
        self.final_save.is_some() || self.is_over()
    }

    /// Whether no step follows any more.
    fn is_over(&self) -> bool {
        self.machine.run().mode.is_over()
    }

    fn take_notice(&mut self, notice: &WorkerNotice) {
        for (worker, is_up) in self.machine.workers_of_name(notice.name()) {
            if let Some(input) = notice.meaning(worker, is_up) {
                self.feed(input);
            }
        }
    }

    /// Feeds one input to the machine, and carries out its effects in order and what those cause at once.
    fn feed(&mut self, input: CoordinatorInput) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let is_new = is_new_commit(&input);
            let mut effects = Vec::new();
            self.machine.handle(Time(now), input, &mut effects);
            let commits = effects.iter().filter(|effect| is_commit(effect)).count();
            let reported_late = !is_new || commits > 1;
            for effect in effects {
                match effect {
                    CoordinatorEffect::Event(event) => {
                        self.log(Duration::from_nanos(now), event, reported_late)
                    }
                    effect => inputs.extend(self.carry_out(effect)),
                }
            }
        }
        if self.machine.record().version != self.needs_told {
            self.send_needs();
        }
    }

    fn log(&mut self, at: Duration, event: Event, reported_late: bool) {
        let run = self.machine.run();
        let Event::Committed { generation, .. } = event else {
            return self.publisher.event(at, event, &run);
        };
        let members = self.members(generation);
        let report = CommitReport {
            reported_late,
            members,
        };
        self.publisher.committed(at, event, &run, report);
    }

    /// The figures of the members of a generation; empty if another plan is in force by now.
    fn members(&self, generation: Generation) -> MemberFigures {
        let plan = self.machine.record().plan.as_ref();
        let members = plan.filter(|p| p.generation == generation).map(|p| p.members());
        self.streams.figures(members.into_iter().flatten().copied())
    }

    fn carry_out(&mut self, effect: CoordinatorEffect) -> Option<CoordinatorInput> {
        match effect {
            CoordinatorEffect::Send { to, order } => {
                let sent = match &order {
                    Order::Prepare(plan) => self.send_plan(to, plan),
                    _ => self.send(to, &Downward::Order(order)),
                };
                return (!sent).then_some(CoordinatorInput::StreamDown { from: to });
            }
            CoordinatorEffect::Write { expect, record } => return self.record.write(expect, record),
            CoordinatorEffect::ReadRecord => return self.record.read(),
            CoordinatorEffect::ListCheckpoints => match self.checkpoints.watcher() {
                Some(watcher) => watcher.list_now(),
                // Without a store, the only checkpoint is the state that every worker can make from the seed.
                None => {
                    return Some(CoordinatorInput::Checkpoints(Listing::fresh(vec![
                        StateId::INITIAL,
                    ])));
                }
            },
            CoordinatorEffect::DiscardCheckpoint { id } => {
                if let Some(watcher) = self.checkpoints.watcher() {
                    watcher.discard(id);
                }
            }
            CoordinatorEffect::Event(event) => self.log(self.start.elapsed(), event, false),
            CoordinatorEffect::Finish(outcome) => self.outcome = Some(outcome),
        }
        None
    }

    /// Sends to a worker. False if the worker does not read what it is sent.
    fn send(&mut self, to: WorkerId, message: &Downward) -> bool {
        self.streams.send(to, message.to_wire(self.machine.term()))
    }

    /// Like [`Driver::send`]; the first time, the plan is also written to the run folder for people.
    fn send_plan(&mut self, to: WorkerId, plan: &Arc<Plan>) -> bool {
        let (message, is_new) = self.plans.prepare(plan, self.machine.term());
        if is_new {
            self.publisher.plan(plan);
        }
        self.streams.send(to, message)
    }

    fn log_checkpoint(&mut self, event: CheckpointEvent) {
        self.publisher.checkpoint_event(event, &self.machine.run());
    }

    fn publish(&mut self, ended: bool) {
        let began = Instant::now();
        let (snapshot, health) = (self.machine.snapshot(), self.checkpoints.health());
        self.publisher.send_view(snapshot, health);
        self.publisher.view_sent(began);
        if self.publisher.take_status_due(ended) {
            let began = Instant::now();
            let status = self.status();
            self.publisher.write_status(&status, began);
        }
    }

    fn status(&self) -> RunStatus {
        let snapshot = self.machine.snapshot();
        let checkpoint = self.checkpoints.status(snapshot.run.step);
        let metric = self.publisher.last_metric();
        run_status(&self.job.name, snapshot, &self.streams, metric, checkpoint)
    }
}

fn is_commit(effect: &CoordinatorEffect) -> bool {
    matches!(effect, CoordinatorEffect::Event(Event::Committed { .. }))
}
