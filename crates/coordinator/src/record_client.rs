//! How the driver reads and writes its record: directly if the store is a file, through a thread if the store may be slow.
//!
//! A store that does not answer must not keep the driver from its workers, so answers of a slow store come through the inbox.

use crate::failure_log::FailureLog;
use crate::inbox::Inbound;
use crate::store::RecordStore;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::Instant;
use tokio::sync::mpsc::Sender;
use varuna_protocol::Record;
use varuna_protocol::coordinator::CoordinatorInput;

/// How many requests may wait for a slow store.
const REQUESTS_MAX: usize = 16;

pub(crate) enum Request {
    Read,
    Write { expect: u64, record: Record },
}

pub(crate) enum RecordClient {
    /// Asks the store directly.
    Direct(AskedStore),
    /// Sends requests to a thread that asks the store.
    Thread(SyncSender<Request>),
}

impl RecordClient {
    /// Asks a store that answers at once, as a file does.
    pub(crate) fn direct(store: Box<dyn RecordStore>) -> RecordClient {
        RecordClient::Direct(AskedStore::new(store))
    }

    /// Starts a thread around a slow store. It ends with the driver.
    pub(crate) fn start_thread(store: Box<dyn RecordStore>, inbound: Sender<Inbound>) -> RecordClient {
        let (requests, queue) = sync_channel::<Request>(REQUESTS_MAX);
        let mut store = AskedStore::new(store);
        std::thread::spawn(move || {
            while let Ok(request) = queue.recv() {
                if let Some(answer) = store.ask(request)
                    && inbound.blocking_send(Inbound::Record(answer)).is_err()
                {
                    return;
                }
            }
        });
        RecordClient::Thread(requests)
    }

    /// Reads the record. Returns the answer, if there is one already.
    pub(crate) fn read(&mut self) -> Option<CoordinatorInput> {
        self.request(Request::Read)
    }

    /// Replaces version `expect` of the record. Returns the answer, if there is one already.
    pub(crate) fn write(&mut self, expect: u64, record: Record) -> Option<CoordinatorInput> {
        self.request(Request::Write { expect, record })
    }

    fn request(&mut self, request: Request) -> Option<CoordinatorInput> {
        match self {
            RecordClient::Direct(store) => store.ask(request),
            RecordClient::Thread(thread) => match thread.try_send(request) {
                Ok(()) => None,
                // The store hangs. The machine repeats requests that cannot be made now.
                Err(TrySendError::Full(request) | TrySendError::Disconnected(request)) => match request {
                    Request::Read => None,
                    Request::Write { record, .. } => Some(CoordinatorInput::Written { ok: false, record }),
                },
            },
        }
    }
}

/// A store, and what is logged of its failures. The machine repeats a request several times a second, and a full disk lasts for hours.
pub(crate) struct AskedStore {
    store: Box<dyn RecordStore>,
    reads: FailureLog,
    writes: FailureLog,
}

impl AskedStore {
    fn new(store: Box<dyn RecordStore>) -> AskedStore {
        AskedStore {
            store,
            reads: FailureLog::default(),
            writes: FailureLog::default(),
        }
    }

    fn ask(&mut self, request: Request) -> Option<CoordinatorInput> {
        match request {
            Request::Read => match self.store.read() {
                Ok(record) => {
                    if let Some(lasted) = self.reads.succeeded(Instant::now()) {
                        tracing::info!(seconds = lasted.as_secs(), "the record can be read again");
                    }
                    Some(CoordinatorInput::Record(record))
                }
                Err(error) => {
                    if self.reads.failed(Instant::now()) {
                        tracing::error!(%error, "the record cannot be read");
                    }
                    // No answer is given: the machine asks again.
                    None
                }
            },
            Request::Write { expect, record } => {
                let ok = self.write(expect, &record);
                Some(CoordinatorInput::Written { ok, record })
            }
        }
    }

    /// Replaces version `expect` of the record; false if it has another version, or cannot be written.
    fn write(&mut self, expect: u64, record: &Record) -> bool {
        match self.store.compare_and_swap(expect, record) {
            Ok(ok) => {
                if let Some(lasted) = self.writes.succeeded(Instant::now()) {
                    tracing::info!(seconds = lasted.as_secs(), "the record can be written again");
                }
                ok
            }
            Err(error) => {
                if self.writes.failed(Instant::now()) {
                    tracing::error!(%error, "the record cannot be written; training goes on under the present plan");
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreError;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    /// A store on a disk that is full as often as this says.
    struct Full(u32);

    impl RecordStore for Full {
        fn read(&mut self) -> Result<Record, StoreError> {
            Ok(Record::default())
        }

        fn compare_and_swap(&mut self, _: u64, _: &Record) -> Result<bool, StoreError> {
            if self.0 == 0 {
                return Ok(true);
            }
            self.0 -= 1;
            Err(StoreError::Io {
                action: "write",
                path: "record".into(),
                source: std::io::ErrorKind::StorageFull.into(),
            })
        }
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_record_on_a_full_disk_does_not_fill_the_log() {
        let lines = Lines::default();
        let to = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || to.clone()).finish();
        let answers: Vec<bool> = tracing::subscriber::with_default(subscriber, || {
            let mut client = RecordClient::direct(Box::new(Full(100)));
            let answers = (0..102).map(|_| client.write(0, Record::default()));
            answers
                .map(|answer| matches!(answer, Some(CoordinatorInput::Written { ok: true, .. })))
                .collect()
        });
        assert_eq!(answers.iter().filter(|ok| !**ok).count(), 100, "each is answered");
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.matches("cannot be written").count(), 1, "{text}");
        assert_eq!(text.matches("can be written again").count(), 1, "{text}");
    }
}
