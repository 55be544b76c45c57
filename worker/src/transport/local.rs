//! Links between threads of one process: for tests of everything above the network.

use super::mailbox::{BYTES_MAX, Mailbox, PutError};
use super::{Address, Link, LinkError, Packet, Tag};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use varuna_plan::WorkerId;

/// The links of one generation between threads.
pub struct LocalMesh {
    boxes: Arc<BTreeMap<WorkerId, Mailbox>>,
}

struct LocalLink {
    me: WorkerId,
    boxes: Arc<BTreeMap<WorkerId, Mailbox>>,
}

impl LocalMesh {
    /// A mesh of these workers.
    #[must_use]
    pub fn new(workers: &[WorkerId]) -> LocalMesh {
        LocalMesh::bounded(workers, BYTES_MAX)
    }

    /// The same with a limit on the bytes that may wait from each sender, see [`Mailbox::bounded`].
    #[must_use]
    pub fn bounded(workers: &[WorkerId], bytes_max: usize) -> LocalMesh {
        let mailboxes = workers.iter().map(|w| (*w, Mailbox::bounded(bytes_max)));
        LocalMesh {
            boxes: Arc::new(mailboxes.collect()),
        }
    }

    /// The link of one worker.
    #[must_use]
    pub fn link(&self, me: WorkerId) -> Arc<dyn Link> {
        Arc::new(LocalLink {
            me,
            boxes: Arc::clone(&self.boxes),
        })
    }

    /// Behaves as if the worker's process had died.
    pub fn kill(&self, worker: WorkerId) {
        for (other, mailbox) in self.boxes.iter() {
            if *other == worker {
                mailbox.abort();
            } else {
                mailbox.close(worker);
            }
        }
    }
}

impl LocalLink {
    fn own(&self) -> Result<&Mailbox, LinkError> {
        self.boxes.get(&self.me).ok_or(LinkError::Unknown(self.me))
    }
}

impl Link for LocalLink {
    fn send(&self, to: WorkerId, tag: Tag, packet: Packet, deadline: Instant) -> Result<(), LinkError> {
        if self.own()?.is_aborted() {
            return Err(LinkError::Aborted);
        }
        let peer = self.boxes.get(&to).ok_or(LinkError::Unknown(to))?;
        peer.put(self.me, tag, packet, Some(deadline))
            .map_err(|e| match e {
                PutError::Closed => LinkError::Closed(to),
                PutError::Full => LinkError::Deadline { from: to, tag },
            })
    }

    fn recv(&self, from: WorkerId, tag: Tag, deadline: Instant) -> Result<Packet, LinkError> {
        self.own()?.take(from, tag, deadline)
    }

    fn recv_any(
        &self,
        wanted: &BTreeSet<Address>,
        deadline: Instant,
    ) -> Result<Option<(Address, Packet)>, LinkError> {
        self.own()?.take_any(wanted, deadline)
    }

    fn wake(&self) {
        if let Ok(own) = self.own() {
            own.wake();
        }
    }

    fn abort(&self) {
        if let Ok(own) = self.own() {
            own.abort();
        }
    }

    fn is_aborted(&self) -> bool {
        self.own().is_ok_and(Mailbox::is_aborted)
    }
}
