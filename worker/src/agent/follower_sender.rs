//! Gives connections what followers and keepers of spare copies need, in the order in which the member ordered it: a copy of a unit before the gradients of the steps
//! after it.
//!
//! A copy is made on a thread of its own, beside the next step, while the engine goes on; a gradient that overtook it would be of no use to
//! the follower. How much waits here is bounded by the member: one copy for each follower, and four gradients of each unit that it follows.

use super::AgentError;
use super::engine_thread::Recipient;
use crate::state::UnitSnapshot;
use crate::transport::data_plane::DataPlane;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use varuna_frames::{StateHeader, TransferHeader};

/// What a follower or a keeper needs.
pub(super) enum Sending {
    /// The state of a unit, which is copied first.
    Copy(StateHeader, UnitSnapshot),
    /// The gradient of a unit, after or before its step's decision.
    Gradient(TransferHeader, Vec<f32>),
}

/// The queue to the thread, which starts with the first that is sent: most workers never have a follower or a keeper.
pub(super) struct FollowerSender {
    mesh: Arc<dyn DataPlane>,
    queue: Option<Sender<(Recipient, Sending)>>,
}

impl FollowerSender {
    pub(super) fn new(mesh: Arc<dyn DataPlane>) -> FollowerSender {
        FollowerSender { mesh, queue: None }
    }

    /// Sends it after all that was given before, and returns at once.
    ///
    /// # Errors
    /// The thread does not start.
    pub(super) fn send(&mut self, recipient: Recipient, what: Sending) -> Result<(), AgentError> {
        let queue = match &self.queue {
            Some(queue) => queue,
            None => {
                let (queue, inbox) = channel();
                let mesh = Arc::clone(&self.mesh);
                let thread = std::thread::Builder::new().name("to-followers".into());
                thread.spawn(move || send_all(&*mesh, &inbox))?;
                self.queue.insert(queue)
            }
        };
        // The thread ends with this queue alone.
        let _ = queue.send((recipient, what));
        Ok(())
    }
}

fn send_all(mesh: &dyn DataPlane, inbox: &Receiver<(Recipient, Sending)>) {
    while let Ok((recipient, what)) = inbox.recv() {
        let Recipient { generation, to, .. } = recipient;
        match what {
            Sending::Copy(header, snapshot) => match snapshot.copy() {
                Ok(copy) => mesh.send_state(generation, to, header, Box::new(copy.data)),
                // Who waits for it is late, as one to whom the copy is too slow.
                Err(error) => tracing::error!(%error, "a unit cannot be read for who follows it"),
            },
            Sending::Gradient(header, gradient) => mesh.send_gradient(generation, to, header, gradient),
        }
    }
}
