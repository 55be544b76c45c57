//! States and gradients that are given to connections.

use super::Mesh;
use super::states::StateSource;
use varuna_frames::{StateHeader, TransferHeader};
use varuna_plan::{Generation, WorkerId};

impl Mesh {
    /// Sends a unit's state in parts of 1 MiB, after all urgent frames and earlier states; [`super::PeerEvent::StateSent`] follows.
    /// Without a connection it is dropped. `header.elements` is set to the length of the state.
    pub fn send_state(
        &self,
        generation: Generation,
        to: WorkerId,
        header: StateHeader,
        state: Box<dyn StateSource>,
    ) {
        self.transfer(generation, to, TransferHeader::State(header), state);
    }

    /// Sends a unit's gradient, of either kind, as [`Mesh::send_state`] sends its state, and after what was given to either before;
    /// [`super::PeerEvent::GradientSent`] follows.
    pub fn send_gradient(
        &self,
        generation: Generation,
        to: WorkerId,
        header: TransferHeader,
        gradient: Vec<f32>,
    ) {
        self.transfer(generation, to, header, Box::new(gradient));
    }

    fn transfer(
        &self,
        generation: Generation,
        to: WorkerId,
        header: TransferHeader,
        source: Box<dyn StateSource>,
    ) {
        let header = header.with_elements(source.elements() as u64);
        let Some(queue) = self.shared.open(generation).and_then(|o| o.queue(to)) else {
            return;
        };
        let unit = header.unit();
        match header.encode() {
            Ok(encoded) => {
                if !queue.push_transfer(encoded, header, source) {
                    tracing::error!(%to, %unit, "too many states and gradients wait for this peer; one is dropped");
                }
            }
            Err(error) => tracing::error!(%error, %unit, "cannot encode the header of a state or gradient"),
        }
    }
}
