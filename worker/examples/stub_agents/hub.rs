//! Connections between workers of this process, without sockets and threads: for more workers than a machine has threads for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc::Sender;
use varuna_frames::{StateHeader, TransferHeader};
use varuna_plan::{Generation, WorkerId};
use varuna_protocol::PeerMessage;
use varuna_worker::agent::AgentEvent;
use varuna_worker::transport::Link;
use varuna_worker::transport::data_plane::DataPlane;
use varuna_worker::transport::local::LocalMesh;
use varuna_worker::transport::tcp::{PeerEvent, StateSource};

/// All workers of the process.
#[derive(Default)]
pub(crate) struct Hub(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    events: BTreeMap<WorkerId, Sender<AgentEvent>>,
    /// Open generations: each with its worker, whom it is connected with, and its link, which carries nothing.
    open: BTreeMap<(Generation, WorkerId), Open>,
    /// Who dials a worker that is not open yet.
    waiting: BTreeMap<(Generation, WorkerId), BTreeSet<WorkerId>>,
}

struct Open {
    peers: BTreeSet<WorkerId>,
    link: Arc<dyn Link>,
}

impl Inner {
    fn emit(&self, to: WorkerId, event: PeerEvent) {
        let Some(events) = self.events.get(&to) else {
            return;
        };
        if events.try_send(AgentEvent::Peer(event)).is_err() {
            eprintln!("worker {to} does not take its events, or has ended");
        }
    }

    fn connect(&mut self, generation: Generation, from: WorkerId, to: WorkerId) {
        for (one, other) in [(from, to), (to, from)] {
            if let Some(open) = self.open.get_mut(&(generation, one)) {
                open.peers.insert(other);
            }
        }
        self.emit(from, PeerEvent::Connected { generation, peer: to });
    }

    fn close(&mut self, generation: Generation, worker: WorkerId) {
        let Some(open) = self.open.remove(&(generation, worker)) else {
            return;
        };
        open.link.abort();
        for peer in open.peers {
            let Some(theirs) = self.open.get_mut(&(generation, peer)) else {
                continue;
            };
            if theirs.peers.remove(&worker) {
                let peer_of_theirs = worker;
                self.emit(
                    peer,
                    PeerEvent::Closed {
                        generation,
                        peer: peer_of_theirs,
                    },
                );
            }
        }
    }
}

impl Hub {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connections of one worker; they end when this is dropped.
    pub(crate) fn worker(self: &Arc<Hub>, me: WorkerId, events: Sender<AgentEvent>) -> Connections {
        self.inner().events.insert(me, events);
        Connections {
            hub: Arc::clone(self),
            me,
        }
    }
}

pub(crate) struct Connections {
    hub: Arc<Hub>,
    me: WorkerId,
}

impl Drop for Connections {
    fn drop(&mut self) {
        let mut inner = self.hub.inner();
        inner.events.remove(&self.me);
        let all = inner.open.keys().filter(|(_, worker)| *worker == self.me);
        let all: Vec<Generation> = all.map(|(generation, _)| *generation).collect();
        for generation in all {
            inner.close(generation, self.me);
        }
    }
}

impl DataPlane for Connections {
    fn open(&self, generation: Generation, _: &str) {
        let mut inner = self.hub.inner();
        inner.open.entry((generation, self.me)).or_insert_with(|| Open {
            peers: BTreeSet::new(),
            link: LocalMesh::new(&[self.me]).link(self.me),
        });
        let waiting = inner.waiting.remove(&(generation, self.me));
        for from in waiting.into_iter().flatten() {
            inner.connect(generation, from, self.me);
        }
    }

    fn dial(&self, generation: Generation, peer: WorkerId, _: &str) {
        let mut inner = self.hub.inner();
        if inner.open.contains_key(&(generation, peer)) {
            inner.connect(generation, self.me, peer);
        } else {
            inner
                .waiting
                .entry((generation, peer))
                .or_default()
                .insert(self.me);
        }
    }

    fn close(&self, generation: Generation) {
        self.hub.inner().close(generation, self.me);
    }

    fn link(&self, generation: Generation) -> Option<Arc<dyn Link>> {
        let inner = self.hub.inner();
        let open = inner.open.get(&(generation, self.me))?;
        Some(Arc::clone(&open.link))
    }

    fn send_message(&self, generation: Generation, to: WorkerId, message: &PeerMessage) {
        let inner = self.hub.inner();
        if inner.open.contains_key(&(generation, to)) {
            let (from, message) = (self.me, message.clone());
            inner.emit(
                to,
                PeerEvent::Message {
                    generation,
                    from,
                    message,
                },
            );
        }
    }

    fn stop_states(&self, _: Generation) {}

    fn send_state(
        &self,
        generation: Generation,
        to: WorkerId,
        header: StateHeader,
        state: Box<dyn StateSource>,
    ) {
        let inner = self.hub.inner();
        if !inner.open.contains_key(&(generation, to)) {
            return;
        }
        let (from, unit) = (self.me, header.unit);
        // It lies in the host's memory.
        let Ok(data) = state.range(0, state.elements()) else {
            return;
        };
        inner.emit(
            to,
            PeerEvent::State {
                generation,
                from,
                header,
                data,
            },
        );
        inner.emit(from, PeerEvent::StateSent { generation, to, unit });
    }

    fn send_gradient(&self, generation: Generation, to: WorkerId, header: TransferHeader, data: Vec<f32>) {
        let inner = self.hub.inner();
        if !inner.open.contains_key(&(generation, to)) {
            return;
        }
        let (from, unit) = (self.me, header.unit());
        let arrived = match header {
            TransferHeader::Gradient(header) => PeerEvent::Gradient {
                generation,
                from,
                header,
                data,
            },
            TransferHeader::Prepared(header) => PeerEvent::PreparedGradient {
                generation,
                from,
                header,
                data,
            },
            TransferHeader::State(_) => return,
        };
        inner.emit(to, arrived);
        inner.emit(from, PeerEvent::GradientSent { generation, to, unit });
    }
}
