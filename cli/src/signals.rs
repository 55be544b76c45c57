//! Signals that ask a command to end: from Ctrl-C, a closed terminal or a service manager.

use crate::failure::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals are queued from the moment this is made, so that none is lost between two waits.
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Interrupts {
    /// Must be called within a tokio runtime.
    pub(crate) fn listen() -> Result<Interrupts, Failure> {
        let on =
            |kind| signal(kind).map_err(|e| Failure::Internal(format!("cannot listen for signals: {e}")));
        Ok(Interrupts {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hang_up: on(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}
