//! Connections whose peer has not proven itself yet. [`UnauthenticatedConnections`] limits their number: each can be shut down to make room
//! for another.

use parking_lot::Mutex;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use varuna_wire::UnauthenticatedConnections;

/// Maximum number of handshakes at the same time. Each has a thread and a file descriptor.
const MAX: usize = 256;
/// Maximum number of them from one source. All workers of a node have the same source, and dial together when a plan arrives.
const OF_ONE_SOURCE: usize = 128;

/// All connections whose handshake has not ended.
pub(super) struct PendingHandshakes(Mutex<UnauthenticatedConnections<Arc<TcpStream>>>);

impl Default for PendingHandshakes {
    fn default() -> Self {
        PendingHandshakes(Mutex::new(UnauthenticatedConnections::new(MAX, OF_ONE_SOURCE)))
    }
}

/// A connection whose peer has not proven itself.
pub(super) struct PendingHandshake {
    all: Arc<PendingHandshakes>,
    number: u64,
}

impl PendingHandshakes {
    /// Lets a connection in, and closes another one if there is no room for both.
    pub(super) fn begin(
        all: &Arc<PendingHandshakes>,
        socket: &Arc<TcpStream>,
    ) -> io::Result<PendingHandshake> {
        let from = socket.peer_addr()?.ip();
        let (number, displaced) = all.0.lock().begin(from, Arc::clone(socket));
        if let Some(socket) = displaced {
            // An error means that its peer has closed it.
            let _ = socket.shutdown(Shutdown::Both);
        }
        Ok(PendingHandshake {
            all: Arc::clone(all),
            number,
        })
    }
}

impl PendingHandshake {
    /// Ends the handshake: the peer has proven itself. False: it had to make room for another one.
    pub(super) fn end(self) -> bool {
        self.all.0.lock().end(self.number).is_some()
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        self.all.0.lock().end(self.number);
    }
}
