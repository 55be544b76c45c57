//! Sends followers and keepers of spare copies what they need, in the order in which the member ordered it: a copy of a unit before the
//! gradients of later steps.
//!
//! A separate thread makes the copies, in parallel with the next step. A gradient that overtook its copy would be useless to the follower.
//! The member limits how much waits here: eight copies for each follower, and four gradients of each unit that it follows. What waits for a
//! generation that is closed is dropped: its copies lie on the device, whose memory the next plan may need.

use super::engine_thread::Recipient;
use super::{AgentError, AgentEvent};
use crate::state::{ReadError, UnitSnapshot};
use crate::transport::data_plane::DataPlane;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::mpsc::Sender as EventSender;
use varuna_frames::{StateHeader, TransferHeader};
use varuna_plan::Generation;

/// Closed generations that are remembered: what waits is of the last few.
const CLOSED_MAX: usize = 64;

/// What a follower or a keeper needs.
pub(super) enum Sending {
    /// The state of a unit, which is copied first.
    Copy(StateHeader, UnitSnapshot),
    /// The gradient of a unit, after or before its step's decision.
    Gradient(TransferHeader, Vec<f32>),
}

/// The newest generations that are closed.
type Closed = Arc<Mutex<BTreeSet<Generation>>>;

/// The queue to the thread, which starts with the first that is sent: most workers never have a follower or a keeper.
pub(super) struct FollowerSender {
    mesh: Arc<dyn DataPlane>,
    events: EventSender<AgentEvent>,
    closed: Closed,
    queue: Option<Sender<(Recipient, Sending)>>,
}

impl FollowerSender {
    /// Sends over these connections, and tells `events` what is not sent.
    pub(super) fn new(mesh: Arc<dyn DataPlane>, events: EventSender<AgentEvent>) -> FollowerSender {
        FollowerSender {
            mesh,
            events,
            closed: Closed::default(),
            queue: None,
        }
    }

    /// Nothing more is sent in this generation, whose connections are closed: nobody waits for an answer.
    pub(super) fn close(&self, generation: Generation) {
        let mut closed = self.closed.lock();
        closed.insert(generation);
        if closed.len() > CLOSED_MAX {
            closed.pop_first();
        }
    }

    /// Sends the data after all that was given before, and returns at once.
    ///
    /// # Errors
    /// The thread does not start.
    pub(super) fn send(&mut self, recipient: Recipient, what: Sending) -> Result<(), AgentError> {
        let queue = match &self.queue {
            Some(queue) => queue,
            None => {
                let (queue, inbox) = channel();
                let (mesh, events) = (Arc::clone(&self.mesh), self.events.clone());
                let closed = Arc::clone(&self.closed);
                let thread = std::thread::Builder::new().name("to-followers".into());
                thread.spawn(move || send_all(&*mesh, &events, &closed, &inbox))?;
                self.queue.insert(queue)
            }
        };
        // The thread ends only with this queue.
        let _ = queue.send((recipient, what));
        Ok(())
    }
}

fn send_all(
    mesh: &dyn DataPlane,
    events: &EventSender<AgentEvent>,
    closed: &Closed,
    inbox: &Receiver<(Recipient, Sending)>,
) {
    while let Ok((recipient, what)) = inbox.recv() {
        let Recipient { generation, to, .. } = recipient;
        if closed.lock().contains(&generation) {
            continue;
        }
        match what {
            Sending::Copy(header, snapshot) => match snapshot.copy() {
                Ok(copy) => mesh.send_state(generation, to, header, Box::new(copy.data)),
                Err(error) => {
                    log_copy_error(&error, recipient);
                    // Nothing is sent of it: without an answer it would count as on its way for ever. An error means that the agent has ended.
                    let _ = events.blocking_send(AgentEvent::NotCopied(recipient));
                }
            },
            Sending::Gradient(header, gradient) => mesh.send_gradient(generation, to, header, gradient),
        }
    }
}

fn log_copy_error(error: &ReadError, Recipient { to, unit, .. }: Recipient) {
    match error {
        ReadError::LeftOff => tracing::warn!(
            %to, %unit,
            "the optimizer has waited too long for a copy of this unit, which is asked for anew"
        ),
        // The engine learns of a broken device by itself.
        ReadError::Torch(error) => {
            tracing::error!(%error, %to, %unit, "a unit cannot be read for who follows it or keeps its spare copy");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use crate::model::Module;
    use crate::numerics::Numerics;
    use crate::state::UnitBuffers;
    use crate::transport::Link;
    use crate::transport::tcp::StateSource;
    use varuna_model::{Transformer, gpt2};
    use varuna_plan::{Moments, StateId, Unit, WorkerId};
    use varuna_protocol::PeerMessage;

    /// Connections that report which units they get.
    struct RecordingPlane(Sender<Unit>);

    impl DataPlane for RecordingPlane {
        fn open(&self, _: Generation, _: &str) {}
        fn dial(&self, _: Generation, _: WorkerId, _: &str) {}
        fn close(&self, _: Generation) {}
        fn link(&self, _: Generation) -> Option<Arc<dyn Link>> {
            None
        }
        fn send_message(&self, _: Generation, _: WorkerId, _: &PeerMessage) {}
        fn stop_states(&self, _: Generation) {}
        fn send_state(&self, _: Generation, _: WorkerId, header: StateHeader, _: Box<dyn StateSource>) {
            self.0.send(header.unit).unwrap();
        }
        fn send_gradient(&self, _: Generation, _: WorkerId, _: TransferHeader, _: Vec<f32>) {}
    }

    fn held(unit: Unit) -> UnitBuffers {
        let model = Transformer {
            layers: 1,
            hidden_size: 8,
            heads: 2,
            sequence_length: 4,
            vocabulary_size: 11,
            ..gpt2::SMALL
        };
        let backend = Backend::of_processor(Numerics::FP32);
        UnitBuffers::new(&Module::from(model).unit(unit), backend, Moments::Adam).unwrap()
    }

    /// A copy of this state.
    fn copy_of(unit: Unit, state: &UnitBuffers) -> Sending {
        let snapshot = state.snapshot().unwrap();
        let header = StateHeader {
            unit,
            id: StateId::INITIAL,
            decision: None,
            progress: snapshot.progress(),
            elements: snapshot.elements() as u64,
        };
        Sending::Copy(header, snapshot)
    }

    #[test]
    fn transfers_of_a_closed_generation_are_dropped() {
        let [late, sent] = [Unit(1), Unit(2)];
        let (told, given) = channel();
        let (events, mut inbox) = tokio::sync::mpsc::channel(4);
        let mut followers = FollowerSender::new(Arc::new(RecordingPlane(told)), events);
        // A planned change was called off; the generation before it goes on.
        followers.close(Generation(4));
        for (generation, unit) in [(4, late), (3, sent)] {
            let recipient = Recipient {
                generation: Generation(generation),
                to: WorkerId(7),
                unit,
            };
            followers.send(recipient, copy_of(unit, &held(unit))).unwrap();
        }
        // All is done in order, so the first one has been dropped by then.
        assert_eq!(given.recv(), Ok(sent));
        assert!(given.try_recv().is_err());
        assert!(inbox.try_recv().is_err(), "nobody waits for an answer");
    }

    #[test]
    fn aborted_copy_is_answered() {
        let [slow, other] = [Unit(1), Unit(2)];
        let (told, given) = channel();
        let (events, mut inbox) = tokio::sync::mpsc::channel(4);
        let mut followers = FollowerSender::new(Arc::new(RecordingPlane(told)), events);
        let recipient = |unit| Recipient {
            generation: Generation(3),
            to: WorkerId(7),
            unit,
        };
        for unit in [slow, other] {
            let mut state = held(unit);
            let copy = copy_of(unit, &state);
            if unit == slow {
                state.ask_readers();
            }
            followers.send(recipient(unit), copy).unwrap();
        }
        // Everything is done in order, so the first request has been answered by then.
        assert_eq!(given.recv(), Ok(other));
        let Ok(AgentEvent::NotCopied(left)) = inbox.try_recv() else {
            panic!("nobody is told that the unit is not sent")
        };
        assert_eq!(left, recipient(slow));
        assert!(
            inbox.try_recv().is_err(),
            "the other one is answered by its connection"
        );
    }
}
