//! Mutants: bugs that can be switched on at run time, to prove that the tests see what they claim to see.
//!
//! A crate of the core names its mutants with [`mutants!`], in a module `mutant`, and asks for one with [`bug!`]. Each name stands
//! with what is expected to catch it; `compare_with_unit_tests` compares this table with what happens, so that it is never better or worse than
//! the truth. The names exist in every build, the bugs only under the feature `on`.

mod caught_by;
#[cfg(feature = "on")]
mod switch;
#[cfg(feature = "on")]
mod unit_tests;

pub use caught_by::{CaughtBy, NOTHING, Seeds, UNIT_TESTS, seeds, unit_tests_and_seeds};
#[cfg(feature = "on")]
pub use switch::{environment, is_on, with_mutant};
#[cfg(feature = "on")]
pub use unit_tests::compare_with_unit_tests;

/// Not a literal, so that conditions with a bug in them read the same to the lints in both builds.
#[cfg(not(feature = "on"))]
#[must_use]
pub const fn is_on(_: &'static str) -> bool {
    false
}

/// Names the mutants of a crate, each with what catches it: `/// What goes wrong.` `Name => UNIT_TESTS,`. No two crates have the same
/// name.
#[macro_export]
macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident => $caught_by:expr),* $(,)?) => {
        /// A bug that can be switched on.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Mutant { $($(#[$doc])* $name),* }
        impl Mutant {
            /// All mutants.
            pub const ALL: &'static [Mutant] = &[$(Mutant::$name),*];

            /// What is expected to catch it.
            #[must_use]
            pub fn caught_by(self) -> $crate::CaughtBy {
                match self { $(Mutant::$name => $caught_by),* }
            }

            /// Name of the mutant.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Mutant::$name => stringify!($name)),* }
            }

            /// The mutant of that name.
            #[must_use]
            pub fn named(name: &str) -> Option<Mutant> {
                Mutant::ALL.iter().copied().find(|m| m.name() == name)
            }
        }
    };
}

/// Whether the bug of that name, one of the asking crate's `mutant::Mutant`, is switched on; `false` at compile time without the feature.
#[macro_export]
#[expect(
    clippy::crate_in_macro_def,
    reason = "the table is that of the crate that asks"
)]
macro_rules! bug {
    ($name:ident) => {
        $crate::is_on(crate::mutant::Mutant::$name.name())
    };
}
