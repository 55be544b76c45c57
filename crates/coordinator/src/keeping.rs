//! How the driver reaches the record's store: at once where it is a file, by a thread of its own where it may be slow.
//!
//! A store that does not answer must not keep the driver from hearing its workers: the machine takes the answers whenever they
//! come.

use crate::driver::Inbound;
use crate::store::RecordStore;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use tokio::sync::mpsc::Sender;
use varuna_protocol::Record;
use varuna_protocol::coordinator::CoordinatorInput;

/// So many asks may wait for a store that is slow.
const ASKS: usize = 16;

/// What a store is asked for.
enum Ask {
    Read,
    Write { expect: u64, record: Record },
}

/// The store, near or far.
pub(crate) enum Keeping {
    /// Asked in place.
    Near(Box<dyn RecordStore>),
    /// Asked by a thread, which tells the driver.
    Far(SyncSender<Asked>),
}

pub(crate) struct Asked(Ask);

impl Keeping {
    /// A thread around a slow store; it ends with the driver.
    pub(crate) fn far(mut store: Box<dyn RecordStore>, inbound: Sender<Inbound>) -> Keeping {
        let (ask, asked) = sync_channel::<Asked>(ASKS);
        std::thread::spawn(move || {
            while let Ok(Asked(ask)) = asked.recv() {
                let answer = carry_out(store.as_mut(), ask);
                if let Some(answer) = answer
                    && inbound.blocking_send(Inbound::Stored(answer)).is_err()
                {
                    return;
                }
            }
        });
        Keeping::Far(ask)
    }

    pub(crate) fn read(&mut self) -> Option<CoordinatorInput> {
        self.ask(Ask::Read)
    }

    pub(crate) fn write(&mut self, expect: u64, record: Record) -> Option<CoordinatorInput> {
        self.ask(Ask::Write { expect, record })
    }

    fn ask(&mut self, ask: Ask) -> Option<CoordinatorInput> {
        match self {
            Keeping::Near(store) => carry_out(store.as_mut(), ask),
            Keeping::Far(thread) => match thread.try_send(Asked(ask)) {
                Ok(()) => None,
                // The store hangs: what cannot be asked now is asked again by the machine.
                Err(TrySendError::Full(Asked(ask)) | TrySendError::Disconnected(Asked(ask))) => match ask {
                    Ask::Read => None,
                    Ask::Write { record, .. } => Some(CoordinatorInput::Written { ok: false, record }),
                },
            },
        }
    }
}

fn carry_out(store: &mut dyn RecordStore, ask: Ask) -> Option<CoordinatorInput> {
    match ask {
        Ask::Read => match store.read() {
            Ok(record) => Some(CoordinatorInput::Record(record)),
            Err(error) => {
                // Not answered: the machine asks again.
                tracing::error!(%error, "the record cannot be read");
                None
            }
        },
        Ask::Write { expect, record } => {
            let ok = store.compare_and_swap(expect, &record).unwrap_or_else(|error| {
                tracing::error!(%error, "the record cannot be written; training goes on under the present plan");
                false
            });
            Some(CoordinatorInput::Written { ok, record })
        }
    }
}
