//! Real blob stores on loopback addresses for tests, a proxy that makes them fail, and checks that every store must pass.
//!
//! The servers are programs that `scripts/setup-stores.sh` provides. Each has a loopback address of its own, so that ports do not conflict,
//! and ends with its test.

#![expect(clippy::expect_used, reason = "a test that cannot be set up has failed")]

mod conform;
mod faulty_proxy;
mod google;
mod loopback;
mod server;

pub use conform::{LAYOUT, conforms, facts, save, shard, state};
pub use faulty_proxy::{Answer, FaultyProxy};
pub use server::{Server, azurite, google, minio};
