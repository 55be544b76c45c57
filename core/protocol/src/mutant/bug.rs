//! How the code asks for a bug.

/// Whether the bug is switched on; `false` at compile time without the feature.
#[cfg(feature = "mutants")]
macro_rules! bug {
    ($name:ident) => {
        $crate::mutant::is_on($crate::mutant::Mutant::$name)
    };
}
#[cfg(not(feature = "mutants"))]
macro_rules! bug {
    ($name:ident) => {
        $crate::mutant::off()
    };
}

/// Not a literal, so that conditions with a bug in them read the same to the lints in both builds.
#[cfg(not(feature = "mutants"))]
pub(crate) const fn off() -> bool {
    false
}
