//! The operator: creates the pods of `VarunaJob`s, workers and coordinators, and reports on them.
//!
//! A reconciliation observes, decides, carries out, reports and publishes (`reconcile`). The plan of a job is not decided here but
//! by its coordinator.
//!
//! | module | owns | side effects |
//! |---|---|---|
//! | [`decide`] | every decision about a job: pods, coordinator, status, conditions, Events | none: pure |
//! | [`metrics`] | what is measured | state only |
//! | [`backoff`] | what failed and is not tried again yet | state only |
//! | [`probes`] | whether coordinators answer | HTTP requests |
//! | [`cluster`] | reading from and writing to the API server, the Lease included | API calls |
//! | [`health`] | `/healthz`, `/readyz`, `/metrics` | serves HTTP |
//! | [`installation`] | whether an installation is whole | API calls |
//! | [`context`], [`reconcile`], [`controller`] | what all reconciliations share; one reconciliation; what triggers it | API watches |

pub mod backoff;
pub mod cluster;
pub mod context;
pub mod controller;
pub mod decide;
pub mod error;
pub mod health;
pub mod installation;
pub mod metrics;
pub mod probes;
pub mod reconcile;
pub mod resource;
