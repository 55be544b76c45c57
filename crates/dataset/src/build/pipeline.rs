//! One thread reads, several tokenize, and the caller's thread writes, in the order of the documents. Queues are bounded, and nothing waits
//! for a thread that has ended: a channel reports when its other end is gone.

use super::batches::Stop;
use super::encode::{Encoding, Outcome};
use super::input::{Batch, Input};
use super::read::{Reading, read};
use crate::error::DataError;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// A batch, and the channel for its outcome.
struct Task {
    batch: Batch,
    to: SyncSender<Outcome>,
}

/// A future outcome, and the file that it belongs to.
struct Promise {
    path: Arc<Path>,
    from: Receiver<Outcome>,
}

/// Reads, tokenizes with `threads` threads, and writes. If there are several errors, the one of the earliest document is returned, so that
/// it is the same for every number of threads.
pub(super) fn run(
    inputs: &[Input],
    encoding: &Encoding,
    threads: usize,
    mut write: impl FnMut(Outcome) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let reading = Reading {
        field: encoding.field,
        whole_documents: encoding.encoder.takes_whole_documents(),
    };
    // One batch in progress and one waiting for each thread.
    let (tasks, next_task) = sync_channel::<Task>(threads);
    let (promises, next_promise) = sync_channel::<Promise>(2 * threads);
    let next_task = Mutex::new(next_task);
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            read(inputs, reading, &mut |batch| {
                let (to, from) = sync_channel(1);
                let path = batch.path.clone();
                tasks.send(Task { batch, to }).is_ok() && promises.send(Promise { path, from }).is_ok()
            })
        });
        let workers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| work(&next_task, encoding)))
            .collect();
        let written = next_promise.iter().try_for_each(|promise| {
            // The thread that has the batch answers, or ends and drops its sender.
            let outcome = promise.from.recv();
            write(outcome.map_err(|_| DataError::Tokenizer(promise.path.to_path_buf()))?)
        });
        // Now the reader ends, and with it the workers.
        drop(next_promise);
        let read = reader.join();
        // A worker that failed has left its batch without an outcome, or had no batch.
        workers.into_iter().for_each(|worker| drop(worker.join()));
        written?;
        match read {
            Ok(Ok(()) | Err(Stop::NotWanted)) => Ok(()),
            Ok(Err(Stop::Failed(error))) => Err(error),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn work(next_task: &Mutex<Receiver<Task>>, encoding: &Encoding) {
    loop {
        // The lock is held while waiting: the others wait for it instead.
        let task = next_task.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Task { batch, to }) = task else { return };
        // If the writer is gone, nothing more is wanted, and the reader ends too.
        let _ = to.send(encoding.encode(&batch));
    }
}
