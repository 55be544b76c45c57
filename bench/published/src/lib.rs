//! Other systems by what was published of them, on this project's planner and simulator.
//!
//! Measured steps of another framework become a calibrated profile ([`calibrate`]); schedules from papers ([`zero_bubble`]) and
//! published costs of a restart ([`restart`]) are computed for a plan or a trace of ours. The product knows none of this: it takes
//! the profile, and `bench/*.py` prints the comparisons. The library does no I/O; its program does.

pub mod calibrate;
pub mod grid;
pub mod measured_table;
pub mod profile_table;
pub mod restart;
pub mod zero_bubble;
