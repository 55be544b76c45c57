//! The published gRPC protocol between workers and the coordinator (`proto/varuna/v1/coordinator.proto`), and its
//! translation to and from the types of `varuna-protocol`, `varuna-plan` and `varuna-run-folder`.
//!
//! Messages from the wire are external data: each is checked once, here, with errors that name the field. Other crates use only the
//! service's client, server and requests from the generated code. This crate decides nothing. It also has the rules of both kinds of
//! listeners for peers that have not proven themselves ([`UnauthenticatedConnections`]), and the form in which the programs that speak the
//! protocol tell why they failed ([`report_failure`]).

pub mod address;
pub mod client;
pub mod down;
mod encoded_plans;
pub mod error;
mod failure;
mod hello;
pub mod metrics;
mod plan;
mod process_host;
mod state;
pub mod status;
mod unauthenticated;
pub mod up;
mod version;

/// The generated code.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic
)]
pub mod v1 {
    tonic::include_proto!("varuna.v1");
}

pub use client::{Client, SERVER_NAME, connect, is_refusal, shown_token};
pub use down::{Downward, Welcome};
pub use encoded_plans::EncodedPlans;
pub use error::WireError;
pub use failure::{report_failure, with_causes};
pub use hello::Hello;
pub use metrics::{SegmentTimes, StepMetrics};
pub use process_host::process_host;
pub use unauthenticated::UnauthenticatedConnections;
pub use up::{UPLOADS_FAIL_BYTES_MAX, Upward};
pub use version::{VERSIONS, program_version};

/// Newest version of the protocol that this build speaks; [`VERSIONS`] has the oldest. 2: plans and the status are messages instead of JSON texts. 3: norms are
/// gathered along the plan's tree. 4: holders' digests of a state. 6: plans carry no
/// secret, workers derive those of generations.
pub const PROTOCOL_VERSION: u32 = 6 + cfg!(feature = "next-version") as u32;

/// Maximum size of a message that is sent or accepted, in bytes. An inventory of 10,000 units is below 2 MB, a plan for 10,000 workers
/// below 5 MB.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Longest text that a worker may say about itself (names, addresses).
pub const TEXT_BYTES_MAX: usize = 256;
