//! A run on this machine until its end: progress, workers that end, signals, and requests for another number of workers.

use super::names::Names;
use crate::children::{Children, Ended};
use crate::exports::RunningExports;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::restarts::{End, Restarts, WithoutWorkers};
use crate::signals::{Interrupts, StopRequest};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Receiver;
use varuna_coordinator::{Control, Outcome, RunMode, ScaleRequest};

/// How long workers may take to end after the run.
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// A run and what it was told to do.
pub(super) struct Run {
    control: Control,
    children: Children,
    progress: Progress,
    /// The zero of the times that are passed to `restarts` and `alone`.
    began: Instant,
    restarts: Restarts,
    alone: WithoutWorkers,
    /// Name of the worker that has ended last.
    last_ended: String,
    /// The coordinator was told to stop.
    ending: bool,
    /// Because there was no worker for too long.
    given_up: bool,
    names: Names,
}

impl Run {
    pub(super) fn new(
        control: Control,
        children: Children,
        progress: Progress,
        restarts: Restarts,
        names: Names,
    ) -> Run {
        Run {
            control,
            children,
            progress,
            began: Instant::now(),
            restarts,
            alone: WithoutWorkers::default(),
            last_ended: String::new(),
            ending: false,
            given_up: false,
            names,
        }
    }

    pub(super) async fn supervise(
        mut self,
        workers: usize,
        mut requests: Receiver<ScaleRequest>,
        exports: RunningExports,
    ) -> Result<Outcome, Failure> {
        let mut signals = Interrupts::listen()?;
        for _ in 0..workers {
            self.children.start()?;
        }
        let mut at_once = false;
        let outcome = loop {
            let due = self.due();
            tokio::select! {
                outcome = &mut self.control.outcome => {
                    break outcome.map_err(|e| Failure::Internal(e.to_string()))?.map_err(Failure::from);
                }
                Ok(()) = self.control.view.changed() => {
                    let view = self.control.view.borrow_and_update().clone();
                    self.progress.show(&view);
                }
                ended = self.children.ended() => self.ended(ended).await,
                Some(request) = requests.recv() => {
                    let answer = self.scale(request.workers as usize);
                    // An error means that nobody waits for the answer.
                    drop(request.answer.send(answer));
                }
                () = until(due) => self.start_due(),
                asked = signals.next() => {
                    at_once = asked == StopRequest::Immediate;
                    if at_once {
                        break Ok(Outcome::Stopped);
                    }
                    self.stop_asked().await;
                }
            }
            if let Some(failure) = self.without_workers().await {
                break Err(failure);
            }
        };
        let view = self.control.view.borrow().clone();
        self.progress.show(&view);
        self.progress.end();
        if outcome.is_ok() && !at_once {
            let leave = async {
                while self.children.count() > 0 {
                    let _ = self.children.ended().await;
                }
            };
            // Those that have not ended by then are killed below.
            let _ = tokio::time::timeout(END_TIMEOUT, leave).await;
        }
        self.children.kill_all().await;
        if !at_once {
            exports.end(&mut signals).await;
        }
        match outcome {
            Ok(Outcome::Stopped) if self.given_up => Err(self.names.abandoned()),
            outcome => outcome,
        }
    }

    /// When something is to be done without anything else happening.
    fn due(&self) -> Option<Instant> {
        let times = [self.restarts.next(), self.alone.until()];
        times.into_iter().flatten().min().map(|at| self.began + at)
    }

    /// Somebody asks for the end. Once is enough: the coordinator takes it once.
    async fn stop_asked(&mut self) {
        if !self.ending {
            self.progress.print(
                "stopping, after a checkpoint if the job has a place for it; Ctrl-C again to end at once",
            );
            self.ending = true;
            self.restarts.cancel();
            // An error means that the coordinator has ended.
            let _ = self.control.save_and_stop.send(()).await;
        }
    }

    /// Ends the run in order. No step can follow, so there is nothing to save.
    async fn stop(&mut self) {
        self.ending = true;
        self.restarts.cancel();
        // An error means that the coordinator has ended.
        let _ = self.control.stop.send(()).await;
    }

    async fn ended(&mut self, ended: Ended) {
        // An error means that the coordinator has ended.
        let _ = self.control.process_ended.send(ended.process).await;
        let end = End {
            ran: ended.ran,
            told: ended.told,
            well: ended.status.as_ref().is_ok_and(std::process::ExitStatus::success),
        };
        let how = ended.status.map_or_else(|e| e.to_string(), |s| s.to_string());
        let again = self.started_again(end);
        // Of a worker that was released, the coordinator tells the end; at the end of the run all workers are, and nobody tells it.
        if !end.well {
            self.progress
                .print(&format!("worker {} has ended: {how}{again}", ended.name));
        }
        self.last_ended = ended.name;
    }

    /// The message about the replacement of a worker that has ended; nothing if there is none.
    fn started_again(&mut self, end: End) -> String {
        if self.is_ending() {
            return String::new();
        }
        let delay = self.restarts.ended(self.began.elapsed(), end);
        delay.map_or(String::new(), |delay| {
            format!("; another one is started in {} s", delay.as_secs())
        })
    }

    fn start_due(&mut self) {
        if self.is_ending() {
            return self.restarts.cancel();
        }
        for _ in 0..self.restarts.take_due(self.began.elapsed()) {
            let Err(error) = self.children.start() else {
                continue;
            };
            let failed = End {
                ran: Duration::ZERO,
                told: false,
                well: false,
            };
            let again = self.started_again(failed);
            self.progress.print(&format!("{error}{again}"));
        }
    }

    /// What follows if no worker is left and nobody asked for the end. Before the first step there is nothing to wait for: the run ends
    /// with this failure. Later somebody may start new workers for a while.
    async fn without_workers(&mut self) -> Option<Failure> {
        let alone = self.is_alone();
        if alone && self.control.view.borrow().metric.is_none() {
            return Some(Failure::Internal(format!(
                "all workers ended before the first step; the last log line of {}: {}",
                self.last_ended,
                self.children.last_log_line(&self.last_ended)
            )));
        }
        let now = self.began.elapsed();
        if self.alone.note(now, alone) {
            self.progress.print(&self.names.waits());
        }
        if self.alone.is_over(now) {
            self.given_up = true;
            self.stop().await;
        }
        None
    }

    /// No worker is left, here or elsewhere, and none is to be started.
    fn is_alone(&self) -> bool {
        if self.children.count() > 0 || self.restarts.next().is_some() || self.is_ending() {
            return false;
        }
        let view = self.control.view.borrow();
        let attached = view.snapshot.as_ref().map(|s| s.workers.iter().any(|w| w.up));
        !attached.unwrap_or(false)
    }

    /// The run's end was asked for, or has come.
    fn is_ending(&self) -> bool {
        let view = self.control.view.borrow();
        let mode = view.snapshot.as_ref().map(|s| s.run.mode);
        self.ending || mode.is_some_and(RunMode::is_over)
    }

    fn scale(&mut self, wanted: usize) -> Result<String, String> {
        if wanted == 0 {
            return Err("0 workers cannot train; stop the run with Ctrl-C".into());
        }
        if self.is_ending() {
            return Err("the run is ending: no more workers are started or told to end".into());
        }
        // Those that were to be started again are among the wanted ones.
        self.restarts.cancel();
        let staying = self.children.staying();
        for _ in staying..wanted {
            self.children.start().map_err(|e| e.to_string())?;
        }
        for _ in wanted..staying {
            if !self.children.drain_newest() {
                return Err("a worker could not be told to end".into());
            }
        }
        Ok(format!("from {staying} to {wanted} workers"))
    }
}

/// Waits until then; for ever where that is never.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::children::Credentials;
    use crate::coordinator::runtime;
    use std::path::Path;
    use tokio::sync::mpsc::channel;
    use tokio::sync::watch;
    use varuna_api::WorkerDevice;
    use varuna_coordinator::View;
    use varuna_machine::{Gpus, Machine};

    /// A run without workers, whose coordinator neither reads nor says anything.
    fn idle_run(logs: &Path) -> Run {
        let control = Control {
            address: ([127, 0, 0, 1], 1).into(),
            view: watch::channel(View::default()).1,
            save_and_stop: channel(1).0,
            stop: channel(1).0,
            abandon: channel(1).0,
            save: channel(1).0,
            steps: channel(1).0,
            domains: channel(1).0,
            allow_state_loss: channel(1).0,
            process_ended: channel(1).0,
            notices: channel(1).0,
            outcome: tokio::spawn(std::future::pending()),
        };
        let credentials = Credentials {
            coordinator: control.address.to_string(),
            token: String::new(),
            certificate: String::new(),
        };
        let machine = Machine::at_start(Gpus::of_machine(WorkerDevice::Cpu), 1);
        let children = Children::new("worker".into(), credentials, logs.to_owned(), machine).unwrap();
        let names = Names {
            job: "job.yaml".into(),
            folder: "runs/a".into(),
        };
        Run::new(control, children, Progress::new(1), Restarts::new(0), names)
    }

    #[test]
    fn a_run_that_was_asked_to_end_starts_no_workers() {
        let logs = tempfile::tempdir().unwrap();
        runtime().unwrap().block_on(async {
            let mut run = idle_run(logs.path());
            run.stop_asked().await;
            let why = run.scale(2).unwrap_err();
            assert!(why.contains("the run is ending"), "{why}");
            assert_eq!(run.children.count(), 0);
        });
    }

    #[test]
    fn a_run_without_workers_says_how_it_goes_on() {
        let names = Names {
            job: "job.yaml".into(),
            folder: "runs/a".into(),
        };
        let said = names.waits();
        assert!(
            said.contains("varuna scale runs/a N") && said.contains("Ctrl-C"),
            "{said}"
        );
        let why = names.abandoned().to_string();
        assert!(
            why.contains("5 minutes") && why.contains("varuna run job.yaml --run-dir runs/a"),
            "{why}"
        );
    }
}
