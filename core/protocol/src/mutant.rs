//! Seeded bugs: proof that the simulated world's checker sees what it claims to see.
//!
//! The names exist in every build, the bugs only under the feature `mutants`, which the simulation's tests enable.

macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// A seeded bug.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Mutant { $($(#[$doc])* $name),* }
        impl Mutant {
            /// All of them.
            pub const ALL: &'static [Mutant] = &[$(Mutant::$name),*];
        }
    };
}

mutants! {
    /// Messages of any generation are taken from peers.
    SkipFenceCheck,
    /// A member goes on committing after it answered a fence.
    CommitAfterFence,
    /// Roll-forward applies without the reduced norm.
    ForgetNorm,
    /// Go as soon as one member is ready; members obey.
    GoEarly,
    /// The plan is sent before it is persisted.
    SendBeforePersist,
    /// The record is written without compare-and-swap.
    BlindWrite,
    /// The next generation counts from the plan in force, not from the highest ever persisted.
    ReuseGeneration,
    /// Prepared gradients are ignored: resume where all units are held, even when someone committed further.
    RollBackPrepared,
    /// Roll forward only if a survivor committed.
    OnlyIfSurvivorCommitted,
    /// A persisted decision to finish a step is not remembered at the next recovery.
    ForgetPersistedDecision,
    /// A state is known by its step alone.
    StepIsIdentity,
    /// A fence interrupts the optimizer.
    TornApply,
    /// Units that the new plan takes away are freed when the plan is accepted.
    FreeBeforeGo,
    /// Shards are named by step alone.
    ShardsWithoutGeneration,
    /// Each worker resolves "newest checkpoint" itself.
    NewestByEach,
    /// Each member switches at its own next boundary.
    SwitchAlone,
    /// An armed plan is dropped without a fence.
    CancelAfterArm,
    /// Workers leave after their last commit.
    ExitAtEnd,
    /// Links that failed are forgotten: the same plan again.
    ForgetBadLinks,
    /// No way round a dead link between a target and its only source.
    NoRelay,
}

/// Whether the seeded bug is switched on in this machine; `false` at compile time without the feature.
#[cfg(feature = "mutants")]
macro_rules! bug {
    ($machine:expr, $name:ident) => {
        $machine.mutant == Some($crate::mutant::Mutant::$name)
    };
}
#[cfg(not(feature = "mutants"))]
macro_rules! bug {
    ($machine:expr, $name:ident) => {
        $crate::mutant::off()
    };
}

/// Not a literal, so that conditions with a bug in them read the same to the lints in both builds.
#[cfg(not(feature = "mutants"))]
pub(crate) const fn off() -> bool {
    false
}
