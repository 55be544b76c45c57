//! How the driver reads and writes its record: directly if the store is a file, through a thread if the store may be slow.
//!
//! A store that does not answer must not keep the driver from its workers, so answers of a slow store come through the inbox.

use crate::inbox::Inbound;
use crate::store::RecordStore;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
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
    Direct(Box<dyn RecordStore>),
    /// Sends requests to a thread that asks the store.
    Thread(SyncSender<Request>),
}

impl RecordClient {
    /// Starts a thread around a slow store. It ends with the driver.
    pub(crate) fn start_thread(mut store: Box<dyn RecordStore>, inbound: Sender<Inbound>) -> RecordClient {
        let (requests, queue) = sync_channel::<Request>(REQUESTS_MAX);
        std::thread::spawn(move || {
            while let Ok(request) = queue.recv() {
                if let Some(answer) = ask(store.as_mut(), request)
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
            RecordClient::Direct(store) => ask(store.as_mut(), request),
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

fn ask(store: &mut dyn RecordStore, request: Request) -> Option<CoordinatorInput> {
    match request {
        Request::Read => match store.read() {
            Ok(record) => Some(CoordinatorInput::Record(record)),
            Err(error) => {
                // No answer is given: the machine asks again.
                tracing::error!(%error, "the record cannot be read");
                None
            }
        },
        Request::Write { expect, record } => {
            let ok = store.compare_and_swap(expect, &record).unwrap_or_else(|error| {
                tracing::error!(%error, "the record cannot be written; training goes on under the present plan");
                false
            });
            Some(CoordinatorInput::Written { ok, record })
        }
    }
}
