//! Faults that a test switches on with `VARUNA_FAKE_NCCL_FAULT`:
//!
//! * `hang:K`: the K-th operation of this process (the first is 1) never ends by itself.
//! * `error:K`: the K-th operation fails: the communicator reports a remote error, and the operation ends when it is revoked.
//! * `slow:MS`: each operation takes this many milliseconds longer.
//! * `stuck-destroy`: freeing a communicator never returns.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The fault of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    Hang,
    Fail,
}

#[derive(Clone, Copy)]
enum Asked {
    None,
    At(u64, Fault),
    Slow(Duration),
    StuckDestroy,
}

static ASKED: LazyLock<Asked> = LazyLock::new(|| {
    let Ok(text) = std::env::var("VARUNA_FAKE_NCCL_FAULT") else {
        return Asked::None;
    };
    let number = |n: &str| n.parse::<u64>().ok();
    let asked = match text.split_once(':') {
        Some(("hang", k)) => number(k).map(|k| Asked::At(k, Fault::Hang)),
        Some(("error", k)) => number(k).map(|k| Asked::At(k, Fault::Fail)),
        Some(("slow", ms)) => number(ms).map(|ms| Asked::Slow(Duration::from_millis(ms))),
        None if text == "stuck-destroy" => Some(Asked::StuckDestroy),
        _ => None,
    };
    asked.unwrap_or_else(|| {
        panic!("VARUNA_FAKE_NCCL_FAULT is {text:?}; allowed are hang:K, error:K, slow:MS and stuck-destroy")
    })
});
static OPERATIONS: AtomicU64 = AtomicU64::new(0);

/// A number from an environment variable.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is {text:?}; a number is needed")),
        Err(_) => default,
    }
}

/// The fault of the operation that begins now.
pub(crate) fn next() -> Option<Fault> {
    let now = OPERATIONS.fetch_add(1, Ordering::Relaxed) + 1;
    match *ASKED {
        Asked::At(k, fault) if k == now => Some(fault),
        Asked::Slow(time) => {
            std::thread::sleep(time);
            None
        }
        _ => None,
    }
}

/// Whether freeing a communicator never returns.
pub(crate) fn destroy_is_stuck() -> bool {
    matches!(*ASKED, Asked::StuckDestroy)
}
