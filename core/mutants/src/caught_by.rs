//! What is expected to catch a mutant.

/// What catches a mutant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CaughtBy {
    /// Some unit test of its crate fails.
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

/// Unit tests alone.
pub const UNIT_TESTS: CaughtBy = CaughtBy {
    unit_tests: true,
    seeds: None,
};

/// One of the 400 seeds from there on, by one of these invariants.
#[must_use]
pub const fn seeds(invariants: &'static str, from: u64) -> CaughtBy {
    CaughtBy {
        unit_tests: false,
        seeds: Some(Seeds { invariants, from }),
    }
}

/// Unit tests and seeds.
#[must_use]
pub const fn unit_tests_and_seeds(invariants: &'static str, from: u64) -> CaughtBy {
    CaughtBy {
        unit_tests: true,
        ..seeds(invariants, from)
    }
}

/// No mutant may survive: one that cannot be told from the sound code is a guard that can go.
pub const NOTHING: CaughtBy = CaughtBy {
    unit_tests: false,
    seeds: None,
};
