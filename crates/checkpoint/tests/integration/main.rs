//! Tests of the crate's interface, in one program: each program of its own would compile and link the stores again.

#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

mod folders;
mod formats;
mod origin;
mod reading;
