//! What asks a command to end: Ctrl-C, a terminal that closes, a service manager.

use crate::failure::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens from the moment it is made, so that a signal between two waits is not lost.
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Interrupts {
    /// Needs a runtime.
    pub(crate) fn listen() -> Result<Interrupts, Failure> {
        let on =
            |kind| signal(kind).map_err(|e| Failure::Internal(format!("cannot listen for signals: {e}")));
        Ok(Interrupts {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hang_up: on(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}
