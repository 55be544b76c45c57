//! Signals that ask a command to end: from Ctrl-C, a closed terminal or a service manager.

use crate::failure::Failure;
use std::future::pending;
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
    /// None if the process was started so that it outlives its terminal.
    hang_up: Option<Signal>,
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
            // To listen would end what `nohup` keeps.
            hang_up: match ignores(SignalKind::hangup()) {
                true => None,
                false => Some(on(SignalKind::hangup())?),
            },
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
            () = received(self.hang_up.as_mut()) => false,
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

/// Waits for a signal; for ever where there is none to listen for.
async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => pending().await,
    }
}

/// Whether this process was started with the signal ignored, as by `nohup`. The system's function that tells it may also change it, and is
/// unsafe to call.
fn ignores(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_ignored(&status, kind)
}

/// Whether a process with this `/proc/PID/status` ignores the signal: the first bit of the mask is signal 1.
fn is_ignored(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let bit = u32::try_from(kind.as_raw_value() - 1).ok();
    let bit = bit.and_then(|bit| 1u64.checked_shl(bit));
    mask.zip(bit).is_some_and(|(mask, bit)| mask & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::runtime;
    use nix::sys::signal::{Signal as Kind, raise};

    #[test]
    fn a_signal_is_ignored_if_its_bit_is_set() {
        let status =
            |mask: &str| format!("SigBlk:\t0000000000000001\nSigIgn:\t{mask}\nSigCgt:\t0000000000000001\n");
        let hang_up = |status: &str| is_ignored(status, SignalKind::hangup());
        assert!(hang_up(&status("0000000000001001")));
        assert!(is_ignored(&status("0000000000004000"), SignalKind::terminate()));
        assert!(!hang_up(&status("0000000000004002")));
        assert!(!hang_up(""));
    }

    #[test]
    fn only_ctrl_c_after_a_request_ends_a_command_at_once() {
        // Where the tests run under `nohup` there is none, and SIGTERM asks for the same.
        let hang_up = match ignores(SignalKind::hangup()) {
            true => Kind::SIGTERM,
            false => Kind::SIGHUP,
        };
        runtime().unwrap().block_on(async {
            let mut interrupts = Interrupts::listen().unwrap();
            for (kind, asked) in [
                (hang_up, StopRequest::Graceful),
                (hang_up, StopRequest::Graceful),
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
            raise(hang_up).unwrap();
            raise(Kind::SIGINT).unwrap();
            interrupts.at_once().await;
        });
    }
}
