//! Tensors of one generation over its connections.

use super::Open;
use super::queue::QueueError;
use crate::transport::{Address, Link, LinkError, Packet, Tag};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;
use varuna_frames::Frame;
use varuna_plan::WorkerId;

/// The tensors of a generation.
pub(super) struct TcpLink {
    pub(super) open: Arc<Open>,
}

impl Link for TcpLink {
    fn send(&self, to: WorkerId, tag: Tag, packet: Packet, deadline: Instant) -> Result<(), LinkError> {
        if self.open.mailbox.is_aborted() {
            return Err(LinkError::Aborted);
        }
        let queue = self.open.queue(to).ok_or(LinkError::Unknown(to))?;
        queue
            .push(Frame::Tensor(tag, packet), deadline)
            .map_err(|e| match e {
                QueueError::Closed if self.open.mailbox.is_aborted() => LinkError::Aborted,
                QueueError::Closed => LinkError::Closed(to),
                QueueError::Deadline => LinkError::Deadline { from: to, tag },
            })
    }

    fn recv(&self, from: WorkerId, tag: Tag, deadline: Instant) -> Result<Packet, LinkError> {
        self.open.mailbox.take(from, tag, deadline)
    }

    fn recv_any(
        &self,
        wanted: &BTreeSet<Address>,
        deadline: Instant,
    ) -> Result<Option<(Address, Packet)>, LinkError> {
        self.open.mailbox.take_any(wanted, deadline)
    }

    fn wake(&self) {
        self.open.mailbox.wake();
    }

    fn abort(&self) {
        self.open.mailbox.abort();
        for queue in self.open.peers.lock().outgoing.values() {
            queue.close();
        }
    }

    fn is_aborted(&self) -> bool {
        self.open.mailbox.is_aborted()
    }
}
