//! Everything that reads from the API server or writes to it.

mod applied;
pub mod apply;
pub mod connection;
pub mod credentials;
mod event_history;
pub mod event_recorder;
#[cfg(test)]
pub(crate) mod fake_server;
mod joined_events;
pub mod lease;
pub mod orders;
pub mod ownership;
pub mod pod_writer;
pub mod publish;
pub mod record;
pub mod workloads;
