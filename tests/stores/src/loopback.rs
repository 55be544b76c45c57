//! Addresses for the servers of a test.

use std::sync::atomic::{AtomicU32, Ordering};

/// A loopback address that no other process and no other call gets.
pub(crate) fn address() -> String {
    static CALLS: AtomicU32 = AtomicU32::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    format!("127.{}.{high}.{}", 80 + call % 100, low.max(1))
}
