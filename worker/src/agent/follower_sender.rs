//! Sends followers and keepers of spare copies what they need, in the order in which the member ordered it: a copy of a unit before the
//! gradients of later steps.
//!
//! A separate thread makes the copies, in parallel with the next step. A gradient that overtook its copy would be useless to the follower.
//! The member limits how much waits here: eight copies for each follower, and four gradients of each unit that it follows. Copies share the
//! memory that training leaves with those of checkpoints. If there is no room for one, it is not made now, unless no other is on its way. What
//! waits for a generation that is closed is dropped: its copies lie on the device, whose memory the next plan may need.

use super::engine_thread::Recipient;
use super::{AgentError, AgentEvent};
use crate::checkpoints::{Buffers, StateCopy};
use crate::state::{ReadError, UnitSnapshot};
use crate::transport::data_plane::DataPlane;
use crate::transport::tcp::StateSource;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::mpsc::Sender as EventSender;
use varuna_frames::{StateHeader, TransferHeader};
use varuna_plan::Generation;
use varuna_torch::TorchError;

/// Closed generations that are remembered: what waits is of the last few.
const CLOSED_MAX: usize = 64;

/// What a follower or a keeper needs.
pub(super) enum Sending {
    /// The state of a unit, which is copied first.
    Copy(StateHeader, UnitSnapshot),
    /// The gradient of a unit, after or before its step's decision.
    Gradient(TransferHeader, Vec<f32>),
}

/// A copy on its way to a peer. Its memory is free again when it is dropped.
struct CopyOnTheWay {
    copy: StateCopy,
    _counted: Arc<()>,
}

impl StateSource for CopyOnTheWay {
    fn elements(&self) -> usize {
        self.copy.as_ref().len()
    }
    fn range(&self, start: usize, end: usize) -> Result<Vec<f32>, TorchError> {
        Ok(self.copy.as_ref()[start..end].to_vec())
    }
}

/// Makes copies, and counts those that are on their way.
struct Copier {
    buffers: Arc<Buffers>,
    count: Arc<()>,
}

impl Copier {
    /// A copy for a peer; none if it has no room beside others.
    fn copy(&self, snapshot: &UnitSnapshot) -> Result<Option<CopyOnTheWay>, ReadError> {
        let is_only = Arc::strong_count(&self.count) == 1;
        let copy = self.buffers.copy_at_once(snapshot, is_only)?;
        Ok(copy.map(|copy| CopyOnTheWay {
            copy,
            _counted: Arc::clone(&self.count),
        }))
    }
}

/// The newest generations that are closed.
type Closed = Arc<Mutex<BTreeSet<Generation>>>;

/// The queue to the thread, which starts with the first that is sent: most workers never have a follower or a keeper.
pub(super) struct FollowerSender {
    mesh: Arc<dyn DataPlane>,
    events: EventSender<AgentEvent>,
    buffers: Arc<Buffers>,
    closed: Closed,
    queue: Option<Sender<(Recipient, Sending)>>,
}

impl FollowerSender {
    /// Sends over these connections, with copies in these buffers, and tells `events` what is not sent.
    pub(super) fn new(
        mesh: Arc<dyn DataPlane>,
        events: EventSender<AgentEvent>,
        buffers: Arc<Buffers>,
    ) -> FollowerSender {
        FollowerSender {
            mesh,
            events,
            buffers,
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
                let copier = Copier {
                    buffers: Arc::clone(&self.buffers),
                    count: Arc::default(),
                };
                let thread = std::thread::Builder::new().name("to-followers".into());
                thread.spawn(move || send_all(&*mesh, &events, &closed, &copier, &inbox))?;
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
    copier: &Copier,
    inbox: &Receiver<(Recipient, Sending)>,
) {
    while let Ok((recipient, what)) = inbox.recv() {
        let Recipient { generation, to, .. } = recipient;
        if closed.lock().contains(&generation) {
            continue;
        }
        match what {
            Sending::Copy(header, snapshot) => {
                let copied = copier.copy(&snapshot);
                // The optimizer may go on.
                drop(snapshot);
                // If nothing is sent of it, it would count as on its way for ever without an answer. An error of the queue means that the agent
                // has ended.
                let answer = match copied {
                    Ok(Some(copy)) => {
                        mesh.send_state(generation, to, header, Box::new(copy));
                        continue;
                    }
                    Ok(None) => {
                        tracing::debug!(%to, unit = %recipient.unit, "no room for a copy of this unit now");
                        AgentEvent::NoRoom(recipient)
                    }
                    Err(error) => {
                        log_copy_error(&error, recipient);
                        AgentEvent::NotCopied(recipient)
                    }
                };
                let _ = events.blocking_send(answer);
            }
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
    use crate::state::UnitBuffers;
    use crate::transport::Link;
    use varuna_frames::PreparedHeader;
    use varuna_plan::state::UnitNorm;
    use varuna_plan::{OptimizerProgress, StateId, Step, Unit, WorkerId};
    use varuna_protocol::PeerMessage;

    /// What a connection was given: the unit, and its state if it is no gradient.
    type Given = (Unit, Option<Box<dyn StateSource>>);

    /// Connections that pass on what they get, and send nothing.
    struct RecordingPlane(Sender<Given>);

    impl DataPlane for RecordingPlane {
        fn open(&self, _: Generation, _: &str) {}
        fn dial(&self, _: Generation, _: WorkerId, _: &str) {}
        fn close(&self, _: Generation) {}
        fn link(&self, _: Generation) -> Option<Arc<dyn Link>> {
            None
        }
        fn send_message(&self, _: Generation, _: WorkerId, _: &PeerMessage) {}
        fn stop_states(&self, _: Generation) {}
        fn send_state(&self, _: Generation, _: WorkerId, header: StateHeader, state: Box<dyn StateSource>) {
            // The test may have ended.
            let _ = self.0.send((header.unit, Some(state)));
        }
        fn send_gradient(&self, _: Generation, _: WorkerId, header: TransferHeader, _: Vec<f32>) {
            let _ = self.0.send((header.unit(), None));
        }
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

    /// A peer that follows this unit.
    fn recipient(unit: Unit) -> Recipient {
        Recipient {
            generation: Generation(3),
            to: WorkerId(7),
            unit,
        }
    }

    /// The gradient of a unit in a step that is skipped.
    fn gradient_of(unit: Unit) -> Sending {
        let header = PreparedHeader {
            unit,
            run_gen: Generation(3),
            step: Step(1),
            norm: UnitNorm {
                norm2: 1.0,
                overflow: true,
                before: OptimizerProgress::START,
                loss: 0.5,
                eval_loss: None,
            },
            elements: 0,
        };
        Sending::Gradient(TransferHeader::Prepared(header), Vec::new())
    }

    #[test]
    fn copies_without_room_are_made_one_at_a_time() {
        let [first, second] = [Unit(1), Unit(2)];
        let (told, given) = channel();
        let (events, mut inbox) = tokio::sync::mpsc::channel(4);
        let no_room = Buffers::within(Box::new(|_, _| Some(0)));
        let plane = Arc::new(RecordingPlane(told));
        let mut followers = FollowerSender::new(plane, events, Arc::new(no_room));
        for unit in [first, second] {
            followers
                .send(recipient(unit), copy_of(unit, &UnitBuffers::of_small_model(unit)))
                .unwrap();
        }
        followers.send(recipient(second), gradient_of(second)).unwrap();
        let (unit, on_the_way) = given.recv().unwrap();
        assert_eq!((unit, on_the_way.is_some()), (first, true));
        // Everything is done in order: after the first copy comes the gradient.
        let (unit, state) = given.recv().unwrap();
        assert_eq!((unit, state.is_some()), (second, false));
        let Ok(AgentEvent::NoRoom(left)) = inbox.try_recv() else {
            panic!("the member is not told that a copy has no room")
        };
        assert_eq!(left, recipient(second));
        drop(on_the_way);
        followers
            .send(
                recipient(second),
                copy_of(second, &UnitBuffers::of_small_model(second)),
            )
            .unwrap();
        let (unit, state) = given.recv().unwrap();
        assert_eq!((unit, state.is_some()), (second, true));
        assert!(inbox.try_recv().is_err());
    }

    #[test]
    fn transfers_of_a_closed_generation_are_dropped() {
        let [late, sent] = [Unit(1), Unit(2)];
        let (told, given) = channel();
        let (events, mut inbox) = tokio::sync::mpsc::channel(4);
        let mut followers = FollowerSender::new(Arc::new(RecordingPlane(told)), events, Arc::default());
        // A planned change was called off; the generation before it goes on.
        followers.close(Generation(4));
        for (generation, unit) in [(4, late), (3, sent)] {
            let recipient = Recipient {
                generation: Generation(generation),
                to: WorkerId(7),
                unit,
            };
            followers
                .send(recipient, copy_of(unit, &UnitBuffers::of_small_model(unit)))
                .unwrap();
        }
        // All is done in order, so the first one has been dropped by then.
        assert_eq!(given.recv().unwrap().0, sent);
        assert!(given.try_recv().is_err());
        assert!(inbox.try_recv().is_err(), "nobody waits for an answer");
    }

    #[test]
    fn aborted_copy_is_answered() {
        let [slow, other] = [Unit(1), Unit(2)];
        let (told, given) = channel();
        let (events, mut inbox) = tokio::sync::mpsc::channel(4);
        let mut followers = FollowerSender::new(Arc::new(RecordingPlane(told)), events, Arc::default());
        for unit in [slow, other] {
            let mut state = UnitBuffers::of_small_model(unit);
            let copy = copy_of(unit, &state);
            if unit == slow {
                state.ask_readers();
            }
            followers.send(recipient(unit), copy).unwrap();
        }
        // Everything is done in order, so the first request has been answered by then.
        assert_eq!(given.recv().unwrap().0, other);
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
