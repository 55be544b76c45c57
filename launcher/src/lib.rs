//! Starts the workers of a pod, one for each of its GPUs, and starts those again that end with an error.
//!
//! All GPUs of a pod belong to one container, so that their workers reach each other's memory. This program is the container's first process: it
//! forwards SIGTERM, collects the ends of all processes, reports them to the coordinator, and ends when all workers have.
//!
//! | module | owns | side effects |
//! |---|---|---|
//! | [`restarts`] | which worker is started when, and how the pod ends | none: pure |
//! | [`shared_gpus`] | whether workers may share GPUs | none: pure |
//! | [`processes`] | the processes | starts, signals and waits for them |
//! | [`report`] | reports to the coordinator | gRPC |

pub mod processes;
pub mod report;
pub mod restarts;
pub mod shared_gpus;
