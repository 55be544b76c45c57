//! The interface of the connections between workers to the agent.

use super::Link;
use super::tcp::{Mesh, StateSource};
use std::sync::Arc;
use varuna_frames::{StateHeader, TransferHeader};
use varuna_plan::{Generation, WorkerId};
use varuna_protocol::PeerMessage;

/// One worker's connections of all generations. Workers use [`Mesh`]. A program that runs thousands of agents on one machine has too few
/// threads for their connections, and uses an implementation without threads. The functions of [`Mesh`] document what each one does.
#[expect(missing_docs, reason = "they stand with those of Mesh")]
pub trait DataPlane: Send + Sync {
    fn open(&self, generation: Generation, secret: &str);
    fn dial(&self, generation: Generation, peer: WorkerId, address: &str);
    fn close(&self, generation: Generation);
    fn link(&self, generation: Generation) -> Option<Arc<dyn Link>>;
    fn send_message(&self, generation: Generation, to: WorkerId, message: &PeerMessage);
    fn stop_states(&self, generation: Generation);
    fn send_state(
        &self,
        generation: Generation,
        to: WorkerId,
        header: StateHeader,
        state: Box<dyn StateSource>,
    );
    fn send_gradient(&self, generation: Generation, to: WorkerId, header: TransferHeader, gradient: Vec<f32>);

    /// Whether something on the device does not end, so that the process should.
    fn is_stuck(&self) -> bool {
        false
    }
}

impl DataPlane for Mesh {
    fn open(&self, generation: Generation, secret: &str) {
        Mesh::open(self, generation, secret);
    }

    fn dial(&self, generation: Generation, peer: WorkerId, address: &str) {
        Mesh::dial(self, generation, peer, address);
    }

    fn close(&self, generation: Generation) {
        Mesh::close(self, generation);
    }

    fn link(&self, generation: Generation) -> Option<Arc<dyn Link>> {
        Mesh::link(self, generation)
    }

    fn send_message(&self, generation: Generation, to: WorkerId, message: &PeerMessage) {
        Mesh::send_message(self, generation, to, message);
    }

    fn stop_states(&self, generation: Generation) {
        Mesh::stop_states(self, generation);
    }

    fn send_state(
        &self,
        generation: Generation,
        to: WorkerId,
        header: StateHeader,
        state: Box<dyn StateSource>,
    ) {
        Mesh::send_state(self, generation, to, header, state);
    }

    fn send_gradient(
        &self,
        generation: Generation,
        to: WorkerId,
        header: TransferHeader,
        gradient: Vec<f32>,
    ) {
        Mesh::send_gradient(self, generation, to, header, gradient);
    }
}
