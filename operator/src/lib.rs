//! The operator: creates the pods of `VarunaJob`s, workers and coordinators, and reports on them.
//!
//! A reconciliation observes, decides, carries out and reports (`reconcile`). The plan of a job is not decided here but
//! by its coordinator.
//!
//! | module | owns | side effects |
//! |---|---|---|
//! | [`decide`] | every decision about a job: pods, coordinator, status, conditions, Events | none: pure |
//! | [`metrics`] | what is measured | state only |
//! | [`backoff`] | what failed and is not tried again yet | state only |
//! | [`job_object`], [`run_object`], [`node_object`] | the objects of jobs, of their runs and of nodes, as they are kept | none: pure |
//! | [`observe_node`], [`observe_pod`], [`observe_queue`], [`observe_run`] | what decisions are made from, of nodes, pods, Kueue's objects, and reports of coordinators | none: pure |
//! | [`parsed_specs`] | the specs of jobs, parsed | state only |
//! | [`index`] | what the watches have shown, by job | state only |
//! | [`probes`] | whether coordinators answer | HTTP requests |
//! | [`cluster`] | reading from and writing to the API server, the Lease included | API calls |
//! | [`health`] | `/healthz`, `/readyz`, `/metrics` | serves HTTP |
//! | [`installation`] | whether an installation is whole | API calls |
//! | [`leadership`] | the thread that holds the Lease and answers probes | API calls, serves HTTP |
//! | `observe`, `carry_out`, [`reconcile`] | what is observed of a job; the actions of a decision; the reconciliation that joins them | API calls |
//! | [`context`], [`controller`], [`watches`] | what all reconciliations share; when one is due; what fills the index | API watches |

pub mod backoff;
mod carry_out;
pub mod cluster;
pub mod context;
pub mod controller;
pub mod decide;
pub mod error;
#[cfg(test)]
mod fixtures;
pub mod health;
pub mod index;
pub mod installation;
pub mod job_object;
mod kueue_watch;
pub mod leadership;
pub mod metrics;
pub mod node_object;
mod object_document;
mod observe;
pub mod observe_node;
pub mod observe_pod;
pub mod observe_queue;
pub mod observe_run;
pub mod parsed_specs;
pub mod probes;
pub mod reconcile;
pub mod resource;
pub mod run_object;
pub mod watches;
