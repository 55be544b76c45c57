//! The commit and reconfiguration protocol as two sans-IO state machines: [`Coordinator`] and [`Member`].
//!
//! This crate owns membership, generations, step commit and recovery (`docs/internals/protocol.md`). Messages and time come in as
//! arguments. Effects are returned in a list, and their order is part of the contract: a driver carries them out in that order. This crate
//! must never do I/O, read a clock, or know what tensors, sockets or stores look like.

#[macro_use]
extern crate varuna_mutants;

pub mod comparison_record;
pub mod coordinator;
pub mod member;
pub mod message;
mod mutant;
pub mod record;
mod versions;

pub use comparison_record::{ComparisonRecord, MinorityHolder, Rollback};
pub use coordinator::{
    Coordinator, CoordinatorConfig, CoordinatorEffect, CoordinatorInput, CoordinatorTables, Divergence,
    Event, Hello, Listing, Outcome, RunMode, Snapshot, TREE_FAN_OUT, Timing,
};
pub use member::{ExitReason, Member, MemberConfig, MemberEffect, MemberInput, MemberTables, MemberTiming};
pub use message::{
    Conclusion, Digests, Following, Inventory, Keeping, Lack, MemoryShortage, Norms, Order, PeerMessage,
    Phase, Prepared, Ran, Report, Status, Suspicion, Time,
};
pub use mutant::Mutant;
pub use record::Record;
pub use varuna_mutants::{CaughtBy, Seeds};
pub use versions::Versions;

/// Runs a function in this thread with a mutant switched on, or with none.
#[cfg(feature = "mutants")]
pub fn with_mutant<T>(mutant: Option<Mutant>, run: impl FnOnce() -> T) -> T {
    varuna_mutants::with_mutant(mutant.map(Mutant::name), run)
}
