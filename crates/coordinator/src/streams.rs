//! The attached workers: their streams and what they reported about themselves.

use crate::inbox::{DownSender, Process, StreamNumber};
use crate::step_figures::{MemberFacts, MemberFigures};
use std::collections::BTreeMap;
use varuna_plan::WorkerId;
use varuna_wire::{Hello, StepMetrics, v1};

/// Maximum number of processes that are remembered. Beyond it, only those of attached workers are.
const PROCESSES_MAX: usize = 8192;

/// A worker's newest stream.
pub(crate) struct Stream {
    number: StreamNumber,
    down: DownSender,
    pub(crate) hello: Hello,
    /// Where the time of its newest reported step went.
    pub(crate) timings: Option<StepMetrics>,
}

impl Stream {
    /// The facts from which figures of steps follow.
    fn facts(&self) -> MemberFacts<'_> {
        MemberFacts {
            hardware: self.hello.hardware.as_ref(),
            workers_on_gpu: self.hello.workers_on_gpu,
            peak_memory_bytes: self.timings.as_ref().and_then(|t| t.peak_memory_bytes),
        }
    }
}

/// All streams, one for each worker.
#[derive(Default)]
pub(crate) struct Streams {
    by_worker: BTreeMap<WorkerId, Stream>,
    /// Workers by their processes, including workers whose streams have ended.
    by_process: BTreeMap<Process, WorkerId>,
}

impl Streams {
    /// Replaces the worker's older stream with a new one. False if this is itself the older one.
    pub(crate) fn attach(&mut self, number: StreamNumber, hello: Hello, down: DownSender) -> bool {
        let worker = hello.worker;
        if self.by_worker.get(&worker).is_some_and(|s| s.number > number) {
            return false;
        }
        let process = Process {
            host: hello.host.clone(),
            id: hello.pid,
        };
        self.by_process.insert(process, worker);
        if self.by_process.len() > PROCESSES_MAX {
            let streams = &self.by_worker;
            self.by_process
                .retain(|_, known| *known == worker || streams.contains_key(known));
        }
        let stream = Stream {
            number,
            down,
            hello,
            timings: None,
        };
        self.by_worker.insert(worker, stream);
        true
    }

    pub(crate) fn get(&self, worker: WorkerId) -> Option<&Stream> {
        self.by_worker.get(&worker)
    }

    /// Totals over these workers.
    pub(crate) fn figures(&self, workers: impl Iterator<Item = WorkerId>) -> MemberFigures {
        MemberFigures::of(workers.map(|worker| self.get(worker).map(Stream::facts).unwrap_or_default()))
    }

    /// The stream, if it is still the worker's newest.
    pub(crate) fn current(&mut self, worker: WorkerId, number: StreamNumber) -> Option<&mut Stream> {
        self.by_worker.get_mut(&worker).filter(|s| s.number == number)
    }

    /// Forgets a stream. False where it was not the worker's newest.
    pub(crate) fn detach(&mut self, worker: WorkerId, number: StreamNumber) -> bool {
        let current = self.current(worker, number).is_some();
        if current {
            self.by_worker.remove(&worker);
        }
        current
    }

    /// Forgets the worker of a process that has ended, and returns it.
    pub(crate) fn process_ended(&mut self, process: &Process) -> Option<WorkerId> {
        let worker = self.by_process.remove(process)?;
        self.by_worker.remove(&worker);
        Some(worker)
    }

    /// Sends to a worker, if it is attached. False if it does not read what it is sent: its stream ends, and it attaches again if it is
    /// alive.
    pub(crate) fn send(&mut self, to: WorkerId, message: v1::Down) -> bool {
        let Some(stream) = self.by_worker.get(&to) else {
            return true;
        };
        let sent = stream.down.try_send(Ok(message)).is_ok();
        if !sent {
            tracing::warn!(worker = %to, "the worker does not read its messages; its stream is closed");
            self.by_worker.remove(&to);
        }
        sent
    }
}
