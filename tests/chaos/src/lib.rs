//! Whole runs of real processes under faults, judged by the files that they leave in the run folder.
//!
//! | module | owns |
//! |---|---|
//! | [`schedule`], [`fault`] | the faults that follow from a seed, and their times: pure |
//! | [`links`] | the effect of a network fault on a piece of data: pure |
//! | [`judge`] | what must be true after a run: pure |
//! | [`proxy`] | forwarders in front of every worker and of the coordinator, which apply `links` |
//! | [`processes`], [`disk`], [`job`] | the processes, the disk of the record, the job |
//! | [`run`], [`world`] | one run: applies the timeline, and restarts or replaces processes |
//! | [`needed`] | which workers hold units that no other worker holds |
//! | [`evidence`] | reads the files that a run has left |
//! | [`campaign`] | many runs, each a line of a file, so that a campaign can be continued |

pub mod campaign;
pub mod disk;
pub mod evidence;
pub mod fault;
pub mod job;
pub mod judge;
pub mod links;
pub mod needed;
pub mod processes;
pub mod proxy;
pub mod run;
pub mod schedule;
pub mod world;
