//! The attached workers: their streams and what they said of themselves.

use crate::inbox::{DownSender, StreamNumber};
use std::collections::BTreeMap;
use varuna_plan::WorkerId;
use varuna_wire::{Hello, StepMetrics, v1};

/// A worker's newest stream.
pub(crate) struct Stream {
    number: StreamNumber,
    down: DownSender,
    pub(crate) hello: Hello,
    /// Where the time of its newest reported step went.
    pub(crate) timings: Option<StepMetrics>,
}

/// All streams, one for each worker.
#[derive(Default)]
pub(crate) struct Streams {
    by_worker: BTreeMap<WorkerId, Stream>,
    /// The name of this host, where ends of processes on it are reported.
    host: Option<String>,
    /// Workers of this host, by process id.
    by_process: BTreeMap<u32, WorkerId>,
}

impl Streams {
    pub(crate) fn new(host: Option<String>) -> Streams {
        Streams {
            host,
            ..Streams::default()
        }
    }

    /// Takes a new stream in the place of the worker's older one. False where it is itself the older one.
    pub(crate) fn attach(&mut self, number: StreamNumber, hello: Hello, down: DownSender) -> bool {
        let worker = hello.worker;
        if self.by_worker.get(&worker).is_some_and(|s| s.number > number) {
            return false;
        }
        if self.host.as_deref() == Some(hello.host.as_str()) {
            self.by_process.insert(hello.pid, worker);
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

    /// Forgets the worker of a process of this host that has ended; returns it.
    pub(crate) fn process_ended(&mut self, process: u32) -> Option<WorkerId> {
        let worker = self.by_process.remove(&process)?;
        self.by_worker.remove(&worker);
        Some(worker)
    }

    /// Sends to a worker, if it is attached. False where it does not read what it is sent: its stream ends here, and it attaches
    /// again if it lives.
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
