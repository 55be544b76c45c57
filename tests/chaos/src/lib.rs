//! Whole runs of real processes under faults, judged by what they leave in the run folder.
//!
//! | module | owns |
//! |---|---|
//! | [`schedule`], [`fault`] | which faults a seed stands for, and when: pure |
//! | [`links`] | what a fault of the network does to a piece of data: pure |
//! | [`judge`] | what must hold of a run that has ended: pure |
//! | [`proxy`] | forwarders before every worker and before the coordinator, which carry out what `links` says |
//! | [`processes`], [`disk`], [`job`] | the processes, the disk of the record, the job |
//! | [`run`], [`world`] | one run: carries the timeline out, and starts again what must be there |
//! | [`needed`] | which workers hold what nobody else holds |
//! | [`evidence`] | reads what a run left behind |
//! | [`campaign`] | many runs, each a line of a file, so that a campaign can be taken up again |

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
