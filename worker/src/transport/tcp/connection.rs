//! The threads of connections: accept and receive, dial and send.

use super::queue::Queue;
use super::{Open, PeerEvent, Shared};
use backon::{BackoffBuilder, ExponentialBuilder};
use std::io::{self, BufReader, Read};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use varuna_frames::{
    Frame, Hello, Incoming, Refusal, StateHeader, read_answer, read_confirmation, write_answer,
    write_confirmation,
};
use varuna_plan::{Generation, WorkerId};

/// How long a peer may take to send or answer a hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Pauses between two attempts to dial. A peer refuses until it knows the plan, typically for milliseconds.
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(2))
    .with_max_delay(Duration::from_millis(100))
    .without_max_times();

/// Connections with an incomplete hello at the same time; more are dropped, and their dialers try again.
const GREETINGS_MAX: usize = 256;
/// Pause after a failed accept: without file descriptors it would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

pub(super) fn accept_loop(shared: &Arc<Shared>, listener: &TcpListener) {
    for socket in listener.incoming() {
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let Some(greeting) = Greeting::begin(shared) else {
            continue;
        };
        let spawned = std::thread::Builder::new().name("peer-in".into()).spawn(move || {
            let own = Arc::clone(&greeting.0);
            match handshake(greeting, &socket) {
                Ok(Some((from, open))) => serve(&own, &open, from, &socket),
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "a connection was not accepted"),
            }
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "cannot start a thread for a connection");
        }
    }
}

/// Counts a connection whose hello is not complete.
struct Greeting(Arc<Shared>);

impl Greeting {
    fn begin(shared: &Arc<Shared>) -> Option<Greeting> {
        let greeting = Greeting(Arc::clone(shared));
        (shared.greeting.fetch_add(1, Ordering::SeqCst) < GREETINGS_MAX).then_some(greeting)
    }
}

impl Drop for Greeting {
    fn drop(&mut self) {
        self.0.greeting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Reads with a deadline for all reads together.
struct DeadlineReader<'a>(&'a TcpStream, Instant);

impl Read for DeadlineReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.0.set_read_timeout(Some(left))?;
        self.0.read(buffer)
    }
}

/// Checks a hello and answers it. Returns the peer and its generation once the dialer has confirmed.
fn handshake(greeting: Greeting, mut socket: &TcpStream) -> io::Result<Option<(WorkerId, Arc<Open>)>> {
    let shared = &*greeting.0;
    socket.set_nodelay(true)?;
    let mut input = DeadlineReader(socket, Instant::now() + HELLO_TIMEOUT);
    let checked = Hello::read(&mut input)?.and_then(|hello| {
        let open = shared.open(hello.generation).ok_or(Refusal::Generation)?;
        let valid = hello.to == shared.me && hello.proves(&open.secret);
        if valid {
            Ok((hello.from, open))
        } else {
            Err(Refusal::Secret)
        }
    });
    let (from, open) = match checked {
        Ok(peer) => peer,
        Err(refusal) => return write_answer(&mut socket, Err(refusal)).map(|()| None),
    };
    write_answer(&mut socket, Ok(()))?;
    read_confirmation(&mut input)?;
    if !open.accept(from, socket) {
        return Ok(None);
    }
    socket.set_read_timeout(None)?;
    Ok(Some((from, open)))
}

/// Receives frames until the connection ends.
fn serve(shared: &Shared, open: &Open, from: WorkerId, socket: &TcpStream) {
    let generation = open.generation;
    match receive(shared, open, from, socket) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            tracing::warn!(%generation, %from, %error, "a peer's connection is closed: what came is no frame");
        }
        ended => tracing::debug!(%generation, %from, why = ?ended.err(), "a peer's connection ended"),
    }
    // The generation holds another handle: without a shutdown the peer would not see the end.
    let _ = socket.shutdown(Shutdown::Both);
    report_loss(shared, open, from);
}

fn report_loss(shared: &Shared, open: &Open, peer: WorkerId) {
    if open.lost(peer) {
        (shared.emit)(PeerEvent::Closed {
            generation: open.generation,
            peer,
        });
    }
}

fn receive(shared: &Shared, open: &Open, from: WorkerId, socket: &TcpStream) -> io::Result<()> {
    let generation = open.generation;
    let mut input = BufReader::with_capacity(1 << 16, socket);
    let mut state: Option<Incoming> = None;
    loop {
        match Frame::read(&mut input)? {
            Frame::Tensor(tag, payload) => {
                // Fails after a fence. The connection stays, to notice the peer's end.
                let _ = open.mailbox.put(from, tag, payload, None);
            }
            Frame::Message(bytes) => {
                let message = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
                (shared.emit)(PeerEvent::Message {
                    generation,
                    from,
                    message,
                });
            }
            Frame::State(bytes) => {
                state = Some(Incoming::new(StateHeader::decode(&bytes)?));
            }
            Frame::Part(unit, step, part) => {
                let Some(incoming) = state.as_mut() else {
                    return Err(io::Error::other("a part without its header"));
                };
                incoming.extend(unit, step, &part)?;
                (shared.emit)(PeerEvent::StateProgress {
                    generation,
                    from,
                    unit,
                });
            }
        }
        if let Some(Incoming { header, data }) = state.take_if(|s| s.is_complete()) {
            (shared.emit)(PeerEvent::State {
                generation,
                from,
                header,
                data,
            });
        }
    }
}

/// Dials until the peer accepts, then waits for the end of the connection.
pub(super) fn dial_loop(shared: &Arc<Shared>, open: &Arc<Open>, peer: WorkerId, address: &str) {
    let generation = open.generation;
    let mut backoff = BACKOFF.build();
    loop {
        match dial(shared, open, peer, address) {
            Ok(Ok(socket)) => return watch(shared, open, peer, socket),
            Ok(Err(Refusal::Generation)) => {}
            Ok(Err(why)) => {
                return (shared.emit)(PeerEvent::Refused {
                    generation,
                    peer,
                    why,
                });
            }
            Err(error) => tracing::debug!(%error, %generation, %peer, address, "a dial failed"),
        }
        let mut peers = open.peers.lock();
        if peers.ended {
            return;
        }
        open.closing
            .wait_for(&mut peers, backoff.next().unwrap_or_default());
        if peers.ended {
            return;
        }
    }
}

fn dial(
    shared: &Shared,
    open: &Open,
    peer: WorkerId,
    address: &str,
) -> io::Result<Result<TcpStream, Refusal>> {
    let mut socket = connect(address)?;
    socket.set_nodelay(true)?;
    let proof = Hello::prove(&open.secret, open.generation, shared.me, peer);
    Hello {
        generation: open.generation,
        from: shared.me,
        to: peer,
        proof,
    }
    .write(&mut socket)?;
    let answer = read_answer(&mut DeadlineReader(&socket, Instant::now() + HELLO_TIMEOUT))?;
    if answer.is_ok() {
        write_confirmation(&mut socket)?;
    }
    socket.set_read_timeout(None)?;
    Ok(answer.map(|()| socket))
}

/// Connects to the first address of the name that answers (`localhost` has two, and a worker listens on one).
fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for resolved in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&resolved, HELLO_TIMEOUT) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Starts the writer, then waits for the end of the connection: the acceptor sends nothing more.
fn watch(shared: &Arc<Shared>, open: &Arc<Open>, peer: WorkerId, mut socket: TcpStream) {
    let generation = open.generation;
    if !open.keep(&socket) {
        return;
    }
    let queue = Arc::new(Queue::default());
    let started = socket.try_clone().and_then(|writer| {
        let (own, queue) = (Arc::clone(shared), Arc::clone(&queue));
        std::thread::Builder::new()
            .name("peer-out".into())
            .spawn(move || send_frames(&own, (generation, peer), &queue, writer))
    });
    match started {
        Ok(_) => {
            open.peers.lock().outgoing.insert(peer, Arc::clone(&queue));
            (shared.emit)(PeerEvent::Connected { generation, peer });
            let _ = socket.read(&mut [0u8]);
        }
        Err(error) => tracing::error!(%error, %peer, "cannot start a thread to write to a peer"),
    }
    queue.close();
    let _ = socket.shutdown(Shutdown::Both);
    report_loss(shared, open, peer);
}

fn send_frames(shared: &Shared, to: (Generation, WorkerId), queue: &Queue, mut socket: TcpStream) {
    let (generation, to) = to;
    while let Some((frame, sent)) = queue.pop() {
        if frame.write(&mut socket).is_err() {
            break;
        }
        if let Some(unit) = sent {
            (shared.emit)(PeerEvent::StateSent { generation, to, unit });
        }
    }
    queue.close();
    // Both the peer and the thread in `watch` see the end at once.
    let _ = socket.shutdown(Shutdown::Both);
}
