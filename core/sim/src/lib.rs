//! One simulated world around the shipped state machines of the protocol, in two environments.
//!
//! A host (`host`) runs coordinators and members on simulated time. [`World`] is the checker's environment: modelled engines, a
//! network, a store and faults, all drawn from a seed, and a checker that looks after every event. One seed is one schedule:
//! `World::new(seed).run()` either ends with a finished job or names the invariant (`docs/internals/protocol.md`) that was broken; the same
//! seed gives the same trace. [`replay`] is another environment: the nodes of an availability trace, with measured delays. [`scale`] counts what a step,
//! a launch and a recovery cost with thousands of workers.
//! Nothing here may use a clock, a thread, or randomness of its own.

mod check;
mod effects_digest;
mod engine;
mod host;
mod planner;
pub mod replay;
mod rng;
pub mod scale;
pub mod shrink;
pub mod timeline;
mod world;

pub use check::Violation;
pub use effects_digest::EffectsDigest;
pub use planner::RandomPlanner;
pub use rng::Rng;
pub use world::{Fault, InjectedFault, Stats, World};
