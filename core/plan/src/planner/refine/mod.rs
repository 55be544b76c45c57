//! What follows the search: plans for workers of unequal speed, interleaved plans, and the reasons of spares.

pub(super) mod interleave;
pub(super) mod spares;
pub(super) mod uneven_speeds;
