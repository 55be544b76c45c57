//! Connections whose peer has not proven itself yet. [`Strangers`] limits their number: each can be shut down to make room for another.

use parking_lot::Mutex;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use varuna_wire::Strangers;

/// Greetings at the same time. Each has a thread and a file descriptor.
const MAX: usize = 256;
/// Of them from one source. All workers of a node come from one, and dial together when a plan comes.
const OF_ONE_SOURCE: usize = 128;

/// All connections whose greeting has not ended.
pub(super) struct Greetings(Mutex<Strangers<Arc<TcpStream>>>);

impl Default for Greetings {
    fn default() -> Self {
        Greetings(Mutex::new(Strangers::new(MAX, OF_ONE_SOURCE)))
    }
}

/// A connection whose peer has not proven itself.
pub(super) struct Greeting {
    all: Arc<Greetings>,
    number: u64,
}

impl Greetings {
    /// Lets a connection in, and closes another one if there is no room for both.
    pub(super) fn begin(all: &Arc<Greetings>, socket: &Arc<TcpStream>) -> io::Result<Greeting> {
        let from = socket.peer_addr()?.ip();
        let (number, displaced) = all.0.lock().begin(from, Arc::clone(socket));
        if let Some(socket) = displaced {
            // An error means that its peer has closed it.
            let _ = socket.shutdown(Shutdown::Both);
        }
        Ok(Greeting {
            all: Arc::clone(all),
            number,
        })
    }
}

impl Greeting {
    /// Ends the greeting: the peer has proven itself. False: it had to make room for another one.
    pub(super) fn end(self) -> bool {
        self.all.0.lock().end(self.number).is_some()
    }
}

impl Drop for Greeting {
    fn drop(&mut self) {
        self.all.0.lock().end(self.number);
    }
}
