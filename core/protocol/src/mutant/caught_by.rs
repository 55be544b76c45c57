//! What is expected to catch a mutant.

/// What catches a mutant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CaughtBy {
    /// Some unit test of this crate fails.
    pub unit_tests: bool,
    /// One of the seeds of the simulated world breaks an invariant.
    pub seeds: Option<Seeds>,
}

/// Where in the simulated world a mutant is caught.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seeds {
    /// Letters of the invariants that it may break.
    pub invariants: &'static str,
    /// One of the 400 seeds from here on breaks one of them.
    pub from: u64,
}

pub(super) const UNIT_TESTS: CaughtBy = CaughtBy {
    unit_tests: true,
    seeds: None,
};

pub(super) const fn seeds(invariants: &'static str, from: u64) -> CaughtBy {
    CaughtBy {
        unit_tests: false,
        seeds: Some(Seeds { invariants, from }),
    }
}

pub(super) const fn unit_tests_and_seeds(invariants: &'static str, from: u64) -> CaughtBy {
    CaughtBy {
        unit_tests: true,
        ..seeds(invariants, from)
    }
}
