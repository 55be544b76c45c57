//! The coordinator of a job in a cluster: a pod of the job. It shares documents with the operator. It calls only the API server and the
//! checkpoint store, and answers its workers.
//!
//! | module | owns | side effects |
//! |---|---|---|
//! | [`connection`] | how long the API server is waited for | none: pure |
//! | [`orders`] | what the operator has ordered, and the role of this coordinator | an API watch; the role is pure |
//! | [`record`] | the coordinator's record in a `VarunaRecord` | API calls |
//! | [`report`] | what is reported of a run | none: pure |
//! | [`reporter`] | when it is written into the `VarunaRun` | API calls |
//! | [`page`] | what a browser shows of the run | none: pure |
//! | [`health`] | `/healthz`, `/metrics` (of `varuna-metrics`) and the page at `/` | serves HTTP |
//! | [`run`] | one coordinator from its start to its end | all of these |

pub mod connection;
pub mod error;
pub mod health;
pub mod orders;
pub mod page;
pub mod record;
pub mod report;
pub mod reporter;
pub mod run;
