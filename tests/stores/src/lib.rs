//! Real blob stores on loopback for tests, a front that makes them fail, and what every store must do.
//!
//! The servers are programs that `scripts/setup-stores.sh` provides. Each has a loopback address of its own, so that no port
//! is fought over, and ends with its test.

#![expect(clippy::expect_used, reason = "a test that cannot be set up has failed")]

mod conform;
mod front;
mod google;
mod loopback;
mod server;

pub use conform::{LAYOUT, conforms, facts, save, shard, state};
pub use front::{Answer, Front};
pub use server::{Server, azurite, google, minio};
