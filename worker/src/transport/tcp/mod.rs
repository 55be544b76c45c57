//! The data plane over TCP: each worker listens, and dials every peer of a generation once. Frames go from dialer to acceptor.
//!
//! A connection belongs to one generation and starts with proofs of its secret from both sides, so that all workers refuse a worker of an
//! older generation. It uses threads and blocking sockets: there are few connections, and the kernel wakes only the thread that waits.
//! Traffic is encrypted if the job asks for it ([`Mesh::encrypt`]); otherwise a private network has to keep attackers out.

mod connection;
mod handshake;
mod limits;
mod link;
mod options;
mod pending_handshakes;
mod queue;
mod states;
mod transfers;

use super::Link;
use super::mailbox::{BYTES_MAX, Mailbox};
use connection::{accept_loop, dial_loop};
pub use limits::of_job;
use link::TcpLink;
use parking_lot::{Condvar, Mutex};
use pending_handshakes::PendingHandshakes;
use queue::Queue;
pub use states::StateSource;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use varuna_frames::{
    GradientHeader, Limits, PreparedHeader, Refusal, StateError, StateHeader, Tls, TlsError,
};
use varuna_plan::{Generation, Unit, WorkerId};
use varuna_protocol::PeerMessage;

/// Events of connections, for the agent.
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields are named by their types")]
pub enum PeerEvent {
    /// A peer accepted this worker's connection.
    Connected { generation: Generation, peer: WorkerId },
    /// A connection of an open generation ended; once for each peer.
    Closed { generation: Generation, peer: WorkerId },
    /// What came from a peer was no sound frame: its connection ends, and `Closed` follows.
    Damaged { generation: Generation, from: WorkerId },
    /// A protocol message.
    Message {
        generation: Generation,
        from: WorkerId,
        message: PeerMessage,
    },
    /// A part of a state, or of a gradient, has arrived.
    StateProgress {
        generation: Generation,
        from: WorkerId,
        unit: Unit,
    },
    /// A state was sent to the end.
    StateSent {
        generation: Generation,
        to: WorkerId,
        unit: Unit,
    },
    /// A complete state has arrived.
    State {
        generation: Generation,
        from: WorkerId,
        header: StateHeader,
        data: Vec<f32>,
    },
    /// A complete gradient of a unit that this worker follows has arrived.
    Gradient {
        generation: Generation,
        from: WorkerId,
        header: GradientHeader,
        data: Vec<f32>,
    },
    /// A complete gradient of a unit whose spare copy this worker keeps has arrived, before its step is decided.
    PreparedGradient {
        generation: Generation,
        from: WorkerId,
        header: PreparedHeader,
        data: Vec<f32>,
    },
    /// A gradient, of either kind, was sent to the end.
    GradientSent {
        generation: Generation,
        to: WorkerId,
        unit: Unit,
    },
    /// A state or a gradient has arrived that is not what was sent.
    StateFailed {
        generation: Generation,
        from: WorkerId,
        unit: Unit,
        why: StateError,
    },
    /// A peer refuses this worker; no other try can succeed.
    Refused {
        generation: Generation,
        peer: WorkerId,
        why: Refusal,
    },
}

/// One worker's connections of all generations.
pub struct Mesh {
    shared: Arc<Shared>,
    address: SocketAddr,
}

struct Shared {
    me: WorkerId,
    generations: Mutex<BTreeMap<Generation, Arc<Open>>>,
    emit: Box<dyn Fn(PeerEvent) + Send + Sync>,
    ended: AtomicBool,
    bytes_max: usize,
    pending_handshakes: Arc<PendingHandshakes>,
    /// Limits of connections that begin from now on.
    limits: Mutex<Arc<Limits>>,
    /// Set, if the job encrypts, before the first generation: nothing that a peer says changes it.
    tls: OnceLock<Tls>,
}

/// A generation that is open on this worker.
struct Open {
    generation: Generation,
    secret: String,
    mailbox: Mailbox,
    peers: Mutex<Peers>,
    /// Signalled when the generation is closed: ends dials that wait for their next attempt.
    closing: Condvar,
}

#[derive(Default)]
struct Peers {
    outgoing: BTreeMap<WorkerId, Arc<Queue>>,
    dialled: BTreeSet<WorkerId>,
    /// Peers whose connection was accepted: one for each peer and generation.
    incoming: BTreeSet<WorkerId>,
    closed: BTreeSet<WorkerId>,
    /// Handles to shut the connections down while other threads use them.
    sockets: Vec<TcpStream>,
    ended: bool,
}

impl Open {
    fn queue(&self, to: WorkerId) -> Option<Arc<Queue>> {
        self.peers.lock().outgoing.get(&to).cloned()
    }

    fn close(&self) {
        self.mailbox.abort();
        let mut peers = self.peers.lock();
        peers.ended = true;
        for queue in peers.outgoing.values() {
            queue.close();
        }
        for socket in peers.sockets.drain(..) {
            // An error means that the other side has closed it.
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        self.closing.notify_all();
    }

    /// Stores another handle of a socket for [`Open::close`]. False: the generation has ended.
    ///
    /// # Errors
    /// There is no such handle, for want of file descriptors: the connection cannot be used.
    fn keep(&self, handle: io::Result<TcpStream>) -> io::Result<bool> {
        keep(&mut self.peers.lock(), handle)
    }

    /// Accepts a peer's connection. False: the generation has ended, or has a connection of this peer.
    ///
    /// # Errors
    /// As for [`Open::keep`].
    fn accept(&self, from: WorkerId, socket: &TcpStream) -> io::Result<bool> {
        let mut peers = self.peers.lock();
        Ok(peers.incoming.insert(from) && keep(&mut peers, socket.try_clone())?)
    }

    /// Marks a peer's connection as ended. True: for the first time, in a generation that is open and not fenced (a fence closes
    /// connections itself, so their end says nothing about the peers).
    fn lost(&self, peer: WorkerId) -> bool {
        self.mailbox.close(peer);
        let mut peers = self.peers.lock();
        if let Some(queue) = peers.outgoing.get(&peer) {
            queue.close();
        }
        !peers.ended && !self.mailbox.is_aborted() && peers.closed.insert(peer)
    }
}

fn keep(peers: &mut Peers, handle: io::Result<TcpStream>) -> io::Result<bool> {
    if peers.ended {
        return Ok(false);
    }
    peers.sockets.push(handle?);
    Ok(true)
}

impl Mesh {
    /// Listens on `bind` (port 0 = any free one). `emit` is called from several threads and must not block for long.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn listen(
        me: WorkerId,
        bind: impl ToSocketAddrs,
        emit: impl Fn(PeerEvent) + Send + Sync + 'static,
    ) -> io::Result<Mesh> {
        Mesh::listen_bounded(me, bind, BYTES_MAX, emit)
    }

    /// Like [`Mesh::listen`]; `bytes_max` limits what waits from each peer and generation, see [`Mailbox::bounded`].
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn listen_bounded(
        me: WorkerId,
        bind: impl ToSocketAddrs,
        bytes_max: usize,
        emit: impl Fn(PeerEvent) + Send + Sync + 'static,
    ) -> io::Result<Mesh> {
        let listener = TcpListener::bind(bind)?;
        let address = listener.local_addr()?;
        let generations = Mutex::default();
        let ended = AtomicBool::new(false);
        let shared = Arc::new(Shared {
            me,
            generations,
            emit: Box::new(emit),
            ended,
            pending_handshakes: Arc::default(),
            limits: Mutex::default(),
            tls: OnceLock::new(),
            bytes_max,
        });
        let own = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("accept".into())
            .spawn(move || accept_loop(&own, &listener))?;
        Ok(Mesh { shared, address })
    }

    /// The address on which this worker listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bounds what later connections may carry.
    pub fn limit(&self, limits: Limits) {
        *self.shared.limits.lock() = Arc::new(limits);
    }

    /// Encrypts all connections; to be called before the first generation is opened.
    ///
    /// # Errors
    /// There is no key.
    pub fn encrypt(&self) -> Result<(), TlsError> {
        let tls = Tls::new()?;
        // A second call changes nothing: the first key is as good.
        let _ = self.shared.tls.set(tls);
        Ok(())
    }

    /// Accepts connections of a generation from now on.
    pub fn open(&self, generation: Generation, secret: &str) {
        self.shared
            .generations
            .lock()
            .entry(generation)
            .or_insert_with(|| {
                Arc::new(Open {
                    generation,
                    secret: secret.to_owned(),
                    mailbox: Mailbox::bounded(self.shared.bytes_max),
                    peers: Mutex::default(),
                    closing: Condvar::new(),
                })
            });
    }

    /// Dials a peer until it accepts or the generation is closed; at most one dial for each peer.
    pub fn dial(&self, generation: Generation, peer: WorkerId, address: &str) {
        let Some(open) = self.shared.open(generation) else {
            return;
        };
        if !open.peers.lock().dialled.insert(peer) {
            return;
        }
        let (shared, address) = (Arc::clone(&self.shared), address.to_owned());
        let spawned = std::thread::Builder::new()
            .name(format!("dial-{generation}"))
            .spawn(move || dial_loop(&shared, &open, peer, &address));
        if let Err(error) = spawned {
            tracing::error!(%error, %peer, "cannot start a thread to dial a peer");
        }
    }

    /// Ends a generation: closes its connections, stops its dials and refuses new connections.
    pub fn close(&self, generation: Generation) {
        if let Some(open) = self.shared.generations.lock().remove(&generation) {
            open.close();
        }
    }

    /// The data plane of an open generation.
    #[must_use]
    pub fn link(&self, generation: Generation) -> Option<Arc<dyn Link>> {
        Some(Arc::new(TcpLink {
            open: self.shared.open(generation)?,
        }))
    }

    /// Sends a protocol message. Without a connection it is dropped: the protocol repeats important messages.
    pub fn send_message(&self, generation: Generation, to: WorkerId, message: &PeerMessage) {
        let Some(queue) = self.shared.open(generation).and_then(|o| o.queue(to)) else {
            return;
        };
        match postcard::to_stdvec(message) {
            Ok(bytes) => queue.push_message(bytes),
            Err(error) => tracing::error!(%error, "cannot encode a message to a peer"),
        }
    }

    /// Drops the states of a generation that are not sent to the end. The receiver drops what it has of them.
    pub fn stop_states(&self, generation: Generation) {
        if let Some(open) = self.shared.open(generation) {
            for queue in open.peers.lock().outgoing.values() {
                queue.drop_states();
            }
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        for open in std::mem::take(&mut *self.shared.generations.lock()).into_values() {
            open.close();
        }
        // Wakes the listener, so that it ends.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(200));
    }
}

impl Shared {
    fn open(&self, generation: Generation) -> Option<Arc<Open>> {
        self.generations.lock().get(&generation).cloned()
    }
}
