//! The threads of connections: accepting and sorting in, dialling and writing out.

use super::frame::{Frame, Hello, Refusal, StateHeader, read_answer, write_answer};
use super::queue::Queue;
use super::{Incoming, Open, PeerEvent, Shared, locked};
use std::io::{self, BufReader};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use varuna_plan::WorkerId;

/// A peer that does not say hello, or does not answer it, for so long is given up.
const HELLO_PATIENCE: Duration = Duration::from_secs(2);
/// Between two attempts to dial; doubles up to the second. A peer refuses until it knows the plan, typically for milliseconds.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

pub(super) fn accept_loop(shared: &Arc<Shared>, listener: &TcpListener) {
    for socket in listener.incoming() {
        if shared.over.load(Ordering::SeqCst) {
            return;
        }
        let Ok(socket) = socket else { continue };
        let own = Arc::clone(shared);
        let spawned = std::thread::Builder::new().name("peer-in".into()).spawn(move || {
            if let Err(error) = serve(&own, socket) {
                tracing::debug!(%error, "a connection was not taken in");
            }
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "cannot start a thread for a connection");
        }
    }
}

/// Judges a hello, then sorts frames in until the connection ends.
fn serve(shared: &Shared, mut socket: TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(HELLO_PATIENCE))?;
    let judged = Hello::read(&mut socket)?.and_then(|hello| {
        let open = shared.open(hello.generation).ok_or(Refusal::Generation)?;
        let expected = Hello::prove(&open.secret, hello.generation, hello.from, shared.me);
        let right = hello.to == shared.me && expected == hello.proof;
        if right { Ok((hello.from, open)) } else { Err(Refusal::Secret) }
    });
    let (from, open) = match judged {
        Ok(peer) => peer,
        Err(refusal) => return write_answer(&mut socket, Err(refusal)),
    };
    if !open.keep(&socket) {
        return write_answer(&mut socket, Err(Refusal::Generation));
    }
    write_answer(&mut socket, Ok(()))?;
    socket.set_read_timeout(None)?;
    let ended = sort_in(shared, &open, from, socket);
    tracing::debug!(generation = %open.generation, %from, why = ?ended.err(), "a peer's connection ended");
    report_loss(shared, &open, from);
    Ok(())
}

fn report_loss(shared: &Shared, open: &Open, peer: WorkerId) {
    if open.lost(peer) {
        (shared.tell)(PeerEvent::Closed { generation: open.generation, peer });
    }
}

fn sort_in(shared: &Shared, open: &Open, from: WorkerId, socket: TcpStream) -> io::Result<()> {
    let generation = open.generation;
    let mut input = BufReader::with_capacity(1 << 16, socket);
    let mut state: Option<Incoming> = None;
    loop {
        match Frame::read(&mut input)? {
            Frame::Tensor(tag, payload) => {
                // After a fence there is nobody to take it, and the connection still serves to notice the peer's end.
                let _ = open.mailbox.put(from, tag, payload, None);
            }
            Frame::Message(bytes) => {
                let message = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
                (shared.tell)(PeerEvent::Message { generation, from, message });
            }
            Frame::State(bytes) => {
                let header: StateHeader = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
                state = Some(Incoming { header, data: Vec::new() });
            }
            Frame::Part(part) => {
                let Some(incoming) = state.as_mut() else {
                    return Err(io::Error::other("a part without its header"));
                };
                incoming.data.extend_from_slice(&part);
                let unit = incoming.header.unit;
                (shared.tell)(PeerEvent::StateProgress { generation, from, unit });
            }
        }
        if let Some(Incoming { header, data }) = state.take_if(|s| s.whole()) {
            (shared.tell)(PeerEvent::State { generation, from, header, data });
        }
    }
}

/// Dials until accepted, then watches the connection for its end.
pub(super) fn dial_loop(shared: &Shared, open: &Arc<Open>, peer: WorkerId, address: &str) {
    let generation = open.generation;
    let mut backoff = BACKOFF.0;
    loop {
        match dial(shared, open, peer, address) {
            Ok(Ok(socket)) => return watch(shared, open, peer, socket),
            Ok(Err(Refusal::Generation)) => {}
            Ok(Err(why)) => return (shared.tell)(PeerEvent::Refused { generation, peer, why }),
            Err(error) => tracing::debug!(%error, %generation, %peer, address, "a dial failed"),
        }
        let peers = locked(&open.peers);
        if peers.over {
            return;
        }
        let waited = open.closing.wait_timeout(peers, backoff).unwrap_or_else(PoisonError::into_inner);
        if waited.0.over {
            return;
        }
        backoff = (backoff * 2).min(BACKOFF.1);
    }
}

fn dial(shared: &Shared, open: &Open, peer: WorkerId, address: &str) -> io::Result<Result<TcpStream, Refusal>> {
    let resolved = address.to_socket_addrs()?.next();
    let resolved = resolved.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the address names no host"))?;
    let mut socket = TcpStream::connect_timeout(&resolved, HELLO_PATIENCE)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(HELLO_PATIENCE))?;
    let proof = Hello::prove(&open.secret, open.generation, shared.me, peer);
    Hello { generation: open.generation, from: shared.me, to: peer, proof }.write(&mut socket)?;
    let answer = read_answer(&mut socket)?;
    socket.set_read_timeout(None)?;
    Ok(answer.map(|()| socket))
}

/// Starts the writer, then waits for the end: the acceptor never sends anything more.
fn watch(shared: &Shared, open: &Arc<Open>, peer: WorkerId, mut socket: TcpStream) {
    let generation = open.generation;
    let queue = Arc::new(Queue::default());
    let started = socket.try_clone().and_then(|writer| {
        let queue = Arc::clone(&queue);
        std::thread::Builder::new().name("peer-out".into()).spawn(move || write_out(&queue, writer))
    });
    if started.is_err() || !open.keep(&socket) {
        return;
    }
    locked(&open.peers).outgoing.insert(peer, Arc::clone(&queue));
    (shared.tell)(PeerEvent::Connected { generation, peer });
    let mut byte = [0u8];
    let _ = io::Read::read(&mut socket, &mut byte);
    queue.close();
    report_loss(shared, open, peer);
}

fn write_out(queue: &Queue, mut socket: TcpStream) {
    while let Some(frame) = queue.pop() {
        if frame.write(&mut socket).is_err() {
            break;
        }
    }
    queue.close();
    // The other side sees the end at once, and so does our own watcher.
    let _ = socket.shutdown(std::net::Shutdown::Both);
}
