//! The stage after the search: plans for workers of unequal speed, interleaved plans, and the reasons for spares.

pub(super) mod interleave;
pub(super) mod spares;
pub(super) mod uneven_speeds;
