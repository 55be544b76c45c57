//! A seeded world around the protocol: workers with a modelled engine, a network, a store, coordinators, faults, and a checker
//! that looks after every event.
//!
//! One seed is one schedule: `World::new(seed).run()` either ends with a finished job or names the invariant
//! (`docs/protocol.md`) that was broken. Everything is drawn from the seed; the same seed gives the same trace.
//! It must never use a clock, a thread, or randomness of its own.

mod arbitrary;
mod check;
mod effects_digest;
mod engine;
mod host;
mod planner;
pub mod replay;
mod rng;
mod world;

pub use arbitrary::{coordinator_with_arbitrary_inputs, member_with_arbitrary_inputs};
pub use check::Violation;
pub use rng::Rng;
pub use world::{Stats, World};
