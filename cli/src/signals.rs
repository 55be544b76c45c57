//! Signals that ask a command to end: from Ctrl-C, a closed terminal or a service manager.

use crate::failure::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StopRequest {
    /// End in order.
    Graceful,
    /// End at once: the user pressed Ctrl-C again.
    Immediate,
}

/// Signals are queued from the moment this is made, so that none is lost between two waits.
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    /// A signal has come.
    asked: bool,
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
            asked: false,
        })
    }

    /// Waits for the next signal.
    ///
    /// Only a second Ctrl-C, which a person has sent, means that somebody is impatient. The others come several times for one reason:
    /// SIGHUP from the shell and from the kernel when a terminal is closed, SIGTERM twice from `timeout`, SIGTERM and SIGHUP from systemd.
    pub(crate) async fn next(&mut self) -> StopRequest {
        let by_hand = tokio::select! {
            _ = self.interrupt.recv() => true,
            _ = self.terminate.recv() => false,
            _ = self.hang_up.recv() => false,
        };
        let again = std::mem::replace(&mut self.asked, true);
        match again && by_hand {
            true => StopRequest::Immediate,
            false => StopRequest::Graceful,
        }
    }

    /// Waits until a signal asks for the end at once.
    pub(crate) async fn at_once(&mut self) {
        while self.next().await != StopRequest::Immediate {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::runtime;
    use nix::sys::signal::{Signal as Kind, raise};

    #[test]
    fn only_ctrl_c_after_a_request_ends_a_command_at_once() {
        runtime().unwrap().block_on(async {
            let mut interrupts = Interrupts::listen().unwrap();
            for (kind, asked) in [
                (Kind::SIGHUP, StopRequest::Graceful),
                (Kind::SIGHUP, StopRequest::Graceful),
                (Kind::SIGTERM, StopRequest::Graceful),
                (Kind::SIGINT, StopRequest::Immediate),
            ] {
                raise(kind).unwrap();
                assert_eq!(interrupts.next().await, asked, "{kind}");
            }
            let mut interrupts = Interrupts::listen().unwrap();
            for asked in [StopRequest::Graceful, StopRequest::Immediate] {
                raise(Kind::SIGINT).unwrap();
                assert_eq!(interrupts.next().await, asked);
            }
            // Those that do not ask for it are passed over.
            let mut interrupts = Interrupts::listen().unwrap();
            raise(Kind::SIGTERM).unwrap();
            assert_eq!(interrupts.next().await, StopRequest::Graceful);
            raise(Kind::SIGHUP).unwrap();
            raise(Kind::SIGINT).unwrap();
            interrupts.at_once().await;
        });
    }
}
